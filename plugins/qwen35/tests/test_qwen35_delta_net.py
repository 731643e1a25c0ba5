"""A layer of Gated DeltaNet reads all it needs of a token by one operation, or by two where the storages part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ninfer_qwen35.blocks import DeltaNet
from ninfer_qwen35.config import read

WIDTH = 8
CONFIG = read(
    {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 11,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "intermediate_size": 8,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
        "layer_types": ["full_attention", "linear_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 4,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 3,
        "rms_norm_eps": 1e-6,
    }
)
MIXED, GATES = 2 * 4 + 2 * 2 * 3, 2 * 2  # q, k, v and z; the inputs of decay and strength


class Dense:
    def __init__(self, weight: Tensor) -> None:
        self.weight, self.rows, self.calls = weight, weight.shape[0], 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x @ self.weight.t()


class Stack(Dense):
    """Parts where one of ``bounds`` is asked for."""

    def __init__(self, weight: Tensor, bounds: tuple[int, ...]) -> None:
        super().__init__(weight)
        self.bounds, self.two = bounds, (Dense(weight[:MIXED]), Dense(weight[MIXED:]))

    def parted(self, rows: int) -> Any:
        return self.two if rows in self.bounds else None


@pytest.mark.parametrize(
    ("projection", "calls"),
    [
        (Dense(torch.randn(MIXED + GATES, WIDTH)), [1]),
        (Stack(torch.randn(MIXED + GATES, WIDTH), (MIXED,)), [0, 1, 1]),
        (Stack(torch.randn(MIXED + GATES, WIDTH), (8,)), [1, 0, 0]),
    ],
    ids=["one storage", "two storages", "storages that part elsewhere"],
)
def test_what_a_layer_reads_of_a_token(projection, calls):
    seen: list[Tensor] = []
    kernels = SimpleNamespace(gdn=SimpleNamespace(step=lambda mixed, ab, *_: seen.extend((mixed, ab)) or mixed))
    asked: list[tuple[str, ...]] = []
    parameters = SimpleNamespace(
        linear=lambda *names: asked.append(names) or projection, tensor=lambda name: torch.zeros(1)
    )
    layer = DeltaNet(1, CONFIG, parameters, kernels)
    h = torch.randn(3, WIDTH)
    layer(h, SimpleNamespace(parts=object(), rows=None, tape=None))
    mixed, ab = seen
    assert mixed.shape == (3, MIXED) and ab.shape == (3, GATES)
    torch.testing.assert_close(torch.cat((mixed, ab), -1), h @ projection.weight.t())
    assert asked[0] == tuple(f"gdn/{name}" for name in ("query", "key", "value", "z", "a_projection", "b_projection"))
    assert [one.calls for one in (projection, *getattr(projection, "two", ()))] == calls
