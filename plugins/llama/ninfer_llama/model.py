"""The model: pre-norm blocks of grouped-query attention and SwiGLU.

Legend: T tokens of this step, L wanted logits, H query heads, G KV heads, D head dimension, I inner width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import CopySource
from ninfer_core.api.nn import Cache, Linear, Runtime, Step, StepOutput, Weights
from ninfer_kernels import activation, norm, rope
from ninfer_kernels.rope import frequencies

from .config import DividedScaling, LinearScaling, Llama3Scaling, LlamaConfig
from .names import inventory, layer_shapes


class LlamaModel:
    """``api.nn.Model``. It has no recurrent state, so a provisional step leaves nothing to fold."""

    draft_source: CopySource | None = None
    records_steps = True

    def __init__(self, config: LlamaConfig, weights: Weights, runtime: Runtime) -> None:
        shapes = inventory(config)
        self.eps = config.rms_norm_eps
        self.add_rms_norm = norm.reference.add_rms_norm if runtime.reference else norm.add_rms_norm
        self.rotation = rope.reference.rotation if runtime.reference else rope.rotation
        self.frequencies = inverse_frequencies(config).to(runtime.device)
        self.embed = weights.embedding("text/token_embedding", shapes["text/token_embedding"])
        self.layers = [Layer(i, config, weights, runtime) for i in range(config.num_hidden_layers)]
        self.final_norm = weights.tensor("text/final_norm", shapes["text/final_norm"])
        head = "text/token_embedding" if config.tie_word_embeddings else "text/output_head"
        self.head = weights.linear(head, shapes[head])

    @torch.inference_mode()
    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        """Logits [L, V] of the wanted tokens; everything past the last layer's attention runs for those only."""
        x = self.embed(step.token_ids)
        angles = self.rotation(step.positions, self.frequencies)
        attended = self.layers[0].attention(x, angles, cache, step)
        for before, layer in pairwise(self.layers):
            attended = layer.attention(x, angles, cache, step, before.feed_forward(x, attended))
        wanted = step.logit_index
        if not wanted.shape[0]:
            return StepOutput(logits=torch.empty(0, self.head.rows, device=x.device))
        # then all tokens are wanted, in order, and whoever draws widens the logits
        recorded = step.on_device is not None
        if not recorded:
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        owed = self.layers[-1].feed_forward(x, attended)
        logits = self.head(self.add_rms_norm(x, owed, self.final_norm, self.eps))
        return StepOutput(logits=logits if recorded else logits.float())

    def fold(self, step: Step, records: Any, kept: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Nothing: what a token leaves behind is in the cache alone."""


class Layer:
    """One block, in two halves, so that the last one can drop the tokens nobody asks for in between."""

    def __init__(self, index: int, config: LlamaConfig, weights: Weights, runtime: Runtime) -> None:
        self.index = index
        self.eps = config.rms_norm_eps
        self.heads = (config.num_attention_heads, config.num_key_value_heads)
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        reference = runtime.reference
        self.norm: Any = norm.reference if reference else norm
        self.rotate = rope.reference.rotate if reference else rope.rotate
        self.swiglu = activation.reference.swiglu if reference else activation.swiglu
        parameters = LayerParameters(f"text/layers/{index}/", layer_shapes(config), weights, runtime)
        self.input_norm = parameters.tensor("input_norm")
        self.query_key_value = parameters.linear("attention/query", "attention/key", "attention/value")
        self.output = parameters.linear("attention/output")
        self.post_attention_norm = parameters.tensor("post_attention_norm")
        self.gate_up = parameters.linear("mlp/gate", "mlp/up")
        self.down = parameters.linear("mlp/down")

    def attention(
        self, x: Tensor, angles: tuple[Tensor, Tensor], cache: Cache, step: Step, owed: Tensor | None = None
    ) -> Tensor:
        """Store this step's keys and values, then attend: the heads' outputs side by side, [T, H * D].

        ``owed``: what the layer before has yet to add to the residual ``x``, in place.
        """
        H, G = self.heads
        if owed is None:
            h = self.norm.rms_norm(x, self.input_norm, self.eps)
        else:
            h = self.norm.add_rms_norm(x, owed, self.input_norm, self.eps)
        qkv = self.query_key_value(h).view(-1, H + 2 * G, self.head_dim)
        # queries and keys are neighbours in the stack and rotate together
        rotated = self.rotate(qkv[:, : H + G], *angles)
        cache.store(self.index, rotated[:, H:], qkv[:, H + G :], step)
        return cache.attend(self.index, rotated[:, :H], step, self.scale).reshape(x.shape[0], H * self.head_dim)

    def feed_forward(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention's projection to the residual ``x``, in place; what is yet to be added to it."""
        h = self.norm.add_rms_norm(x, self.output(attended), self.post_attention_norm, self.eps)
        return self.down(self.swiglu(self.gate_up(h)))


class LayerParameters:
    """The parameters under one layer's prefix; a matrix comes with its bias where the config has one."""

    def __init__(self, prefix: str, shapes: Mapping[str, tuple[int, ...]], weights: Weights, runtime: Runtime) -> None:
        self.prefix, self.shapes, self.weights, self.runtime = prefix, shapes, weights, runtime

    def tensor(self, name: str) -> Tensor:
        return self.weights.tensor(self.prefix + name, self.shapes[name])

    def linear(self, *names: str) -> Linear:
        matrix = self.weights.linear([self.prefix + name for name in names], [self.shapes[name] for name in names])
        if f"{names[0]}_bias" not in self.shapes:
            return matrix
        bias = torch.cat([self.tensor(f"{name}_bias") for name in names])
        return BiasedLinear(matrix, bias.to(self.runtime.dtype))


class BiasedLinear:
    """A matrix product and then its bias."""

    def __init__(self, matrix: Linear, bias: Tensor) -> None:
        self.matrix, self.bias = matrix, bias
        self.rows = matrix.rows

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix(x).add_(self.bias)


def inverse_frequencies(config: LlamaConfig) -> Tensor:
    """Radians per token of each of the head_dim / 2 pairs, scaled as the config says: fp32."""
    plain = frequencies.plain(config.head_dim, config.rope_theta)
    match config.rope_scaling:
        case LinearScaling(factor=factor):
            return frequencies.linear(plain, factor)
        case Llama3Scaling() as s:
            return frequencies.llama3(
                plain,
                factor=s.factor,
                low_freq_factor=s.low_freq_factor,
                high_freq_factor=s.high_freq_factor,
                original_context=s.original_max_position_embeddings,
            )
        case DividedScaling(factors=factors):
            return frequencies.divided(plain, torch.tensor(factors))
        case _:
            return plain
