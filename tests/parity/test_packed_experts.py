"""Models whose experts stay packed against the definition over the numbers they mean: recorded rounds, and an artifact
that ``ninfer convert`` wrote.

Without a GPU the same kernels run interpreted, and formats offer on the CPU what they offer there.
"""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer_core.api import WeightFormat
from ninfer_core.api.nn import Runtime
from ninfer_core.cli.main import main as ninfer
from ninfer_core.engine.graphs import Shape
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.nn.random import RandomWeights
from ninfer_core.registry import Registry
from ninfer_core.testing import Rig, compose
from ninfer_kernels.moe import Experts, PackedExperts
from ninfer_kernels.moe.reference import matrices

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share their oracles

import qwen35_oracle as oracle
import test_recorded_rounds as recorded
from conversion_cases import CASES as CONVERTED
from conversion_cases import WIDE_MOE, opened
from test_recorded_rounds import CPU, MOE, Family, Walk, kernels

EXPERTS, CHOSEN = 5, 2
WIDE = {
    **MOE,
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
}
P = "text/layers/0/moe/"
GATE_UP = [f"{P}experts/{e}/{part}" for e in range(EXPERTS) for part in ("gate", "up")]
DOWN = [f"{P}experts/{e}/down" for e in range(EXPERTS)]
SHARED = [f"{P}shared/{part}" for part in ("gate", "up", "down")]


def on(device: torch.device, form: WeightFormat) -> WeightFormat:
    """Without a GPU the CPU has the operation that one would have."""
    make = form.gpu_linear
    if device.type != "cpu" or make is None:
        return form
    return replace(form, cpu_linear=lambda tensors: make(tensors, device))


def formats(device: torch.device, first: str, second: str, shared: str) -> dict[str, WeightFormat]:
    installed = compose({"groupwise_int", "row_fp8", "nvfp4"}).weight_formats
    there = {form: on(device, installed[form]) for form in (first, second, shared) if form in installed}
    named = (first, GATE_UP), (second, DOWN), (shared, SHARED)
    return {name: there[form] for form, names in named for name in names if form in there}


def as_numbers(packed: PackedExperts) -> Experts:
    """The same mixture, dense and in fp32."""

    def numbers(operation: Any, width: int) -> torch.Tensor:
        product: torch.Tensor = operation(torch.eye(width, device=packed.scores.device))
        return product.t().contiguous()

    inner = packed.down.shape[2]
    return Experts.of(
        packed.scores[:-1], packed.scores[-1:], matrices(packed.gate_up), matrices(packed.down),
        numbers(packed.shared_gate_up, packed.scores.shape[1]), numbers(packed.shared_down, inner),
    )  # fmt: skip


@pytest.fixture
def walk(device, monkeypatch):
    """Sequences on a side whose experts are packed, and on one of their numbers."""

    def made(first: str, second: str, shared: str) -> Walk:
        stored = formats(device, first, second, shared)
        monkeypatch.setattr(recorded, "RandomWeights", lambda runtime: RandomWeights(runtime, formats=stored))
        monkeypatch.setitem(recorded.FAMILIES, "packed-moe", Family("qwen35", WIDE))
        walk = Walk("packed-moe", "fp32", device, seed=3)
        if device.type != "cpu":
            walk.tolerance = 2e-2  # bf16 products
        for fast, plain in zip(walk.fast.model.blocks, walk.plain.model.blocks, strict=True):
            assert isinstance(fast.ffn.stacked, PackedExperts)
            with kernels(device):
                plain.ffn.stacked = as_numbers(fast.ffn.stacked)
        return walk

    return made


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(("q4_g64_fp16", "q5_g64_fp16", "q8_g32_fp16"), id="q4-q5-q8"),
        pytest.param(("fp8_e4m3fn_row_bf16", "q6_g64_fp16", "bf16"), id="fp8-q6-bf16", marks=pytest.mark.slow),
    ],
)
def test_recorded_rounds_of_packed_experts_equal_the_definition_of_their_numbers(stored, walk):
    here = walk(*stored)
    shapes = [Shape(rows=2, width=1), Shape(rows=2, width=2), Shape(rows=3, width=6)]
    for shape in shapes:
        here.graphs.add(shape, news=4)
    for lane, count in enumerate((3, 20, 70, 1)):  # few tokens, some and many
        here.prefill(lane, count)
    here.round([0, 1], [1, 1], [1, 1], shapes[0])
    here.round([1, 3], [2, 1], [1, 1], shapes[1])
    here.round([2, 0, 1], [6, 6, 2], [3, 6, 0], shapes[2])


@pytest.mark.parametrize(("first", "second"), [("q4_g64_fp16", "bf16"), ("bf16", "q4_g64_fp16")])
def test_experts_become_numbers_where_a_format_has_no_operation_on_a_gpu(first, second):
    """The other half alone would save little, and the kernels read both."""
    runtime = Runtime(device=CPU, dtype=torch.float32, reference=False, max_context=64, options={})
    stored = formats(CPU, first, second, "bf16")
    with kernels():
        model = Family("qwen35", WIDE).model(RandomWeights(runtime, formats=stored), runtime)
    assert isinstance(model.blocks[0].ffn.stacked, Experts)


def test_experts_whose_widths_fill_no_tiles_become_numbers():
    runtime = Runtime(device=CPU, dtype=torch.float32, reference=False, max_context=64, options={})
    narrow, stored = {**WIDE, "moe_intermediate_size": 48}, formats(CPU, "q4_g64_fp16", "q4_g64_fp16", "bf16")
    with kernels():
        model = Family("qwen35", narrow).model(RandomWeights(runtime, formats=stored), runtime)
    assert isinstance(model.blocks[0].ffn.stacked, Experts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a rig's sequences lie on the CPU, where kernels are interpreted")
def test_a_converted_model_keeps_its_experts_packed_and_says_what_its_numbers_say(tmp_path):
    case = CONVERTED["qwen35-moe"]
    source, path = tmp_path / "model", tmp_path / "model.ninfer"
    text = {**WIDE_MOE, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    case.save(oracle.build(text), source)
    with contextlib.redirect_stdout(io.StringIO()):
        assert ninfer(["convert", str(source), str(path), "--weights", "groupwise-int"]) == 0
    said = {}
    for reference in (True, False):
        plugins, family, checkpoint = opened(path, case)
        registry: Registry[WeightFormat] = Registry("weight format")
        for form in plugins.weight_formats:
            registry.add(form.name, on(CPU, form), origin="test")
        runtime = Runtime(device=CPU, dtype=torch.float32, reference=reference, max_context=512, options={})
        weights = CheckpointWeights(checkpoint, registry, runtime)
        with contextlib.nullcontext() if reference else kernels():
            model = family.build(checkpoint, weights, runtime)
            layout = family.state_layout(checkpoint.config, runtime)
            rig = Rig(model, family.kv_geometry(checkpoint.config), layout)
            ids = torch.randint(0, case.public, (20,), generator=torch.Generator().manual_seed(4)).tolist()
            said[reference] = torch.cat([rig.feed({0: ids[:17]})[0], rig.feed({0: ids[17:]})[0]])
        if not reference:
            assert isinstance(model.blocks[0].ffn.stacked, PackedExperts)
            assert weights.decoded_bytes == {}
    scale = said[True].abs().max()
    torch.testing.assert_close(said[False], said[True], rtol=0, atol=2e-4 * scale)
    assert torch.equal(said[False].argmax(-1), said[True].argmax(-1))
