"""A block and the two kinds of mixer it may begin with.

Legend: T tokens of this step, N hidden width, H query (GDN: value) heads, G KV (GDN: key) heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_core.api.nn import Cache, Linear, Step
from ninfer_kernels.gdn import Layer, Parts, Rows, Tape
from ninfer_kernels.turns import together

from .config import Qwen35Config
from .feed_forward import GatedMlp, SparseMlp
from .parts import Kernels, Parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the layers of one step share."""

    step: Step
    angles: tuple[Tensor, Tensor]
    rows: Rows
    cache: Cache
    # of a model with Gated DeltaNet: its states, and what a provisional step keeps of itself
    parts: Parts | None = None
    tape: Tape | None = None


class GatedAttention:
    """Grouped-query attention; q and k normed per head, the output gated per element by a part of the query
    projection."""

    def __init__(self, cache_layer: int, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        a = config.attention
        self.cache_layer, self.k = cache_layer, kernels
        self.heads, self.kv_heads, self.head_dim = a.heads, a.kv_heads, a.head_dim
        self.eps, self.scale = config.rms_norm_eps, a.head_dim**-0.5
        self.project = p.linear("attention/query", "attention/key", "attention/gate", "attention/value")
        query, key = p.centred("attention/query_norm"), p.centred("attention/key_norm")
        self.head_norms = torch.cat((query.expand(a.heads, -1), key.expand(a.kv_heads, -1)))
        self.output = p.linear("attention/output")

    def __call__(self, h: Tensor, context: Context) -> Tensor:
        """[T, N] -> the gated heads side by side, [T, H * D]; keys and values go to the cache."""
        H, G, D, T = self.heads, self.kv_heads, self.head_dim, h.shape[0]
        projected = self.project(h).view(T, 2 * (H + G), D)
        turning, gate, value = projected.split((H + G, H, G), dim=1)
        # queries and keys are neighbours in the stack and rotate together
        turned = self.k.rope.norm_rotate(turning, self.head_norms, self.eps, *context.angles)
        context.cache.store(self.cache_layer, turned[:, H:], value, context.step)
        attended = context.cache.attend(self.cache_layer, turned[:, :H], context.step, self.scale)
        return self.k.activation.sigmoid_gate(attended, gate).reshape(T, H * D)


class DeltaNet:
    """Gated DeltaNet: a short convolution, then a matrix of state per head that each token decays and writes to."""

    def __init__(self, layer: int, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        g, self.step = config.gdn, kernels.gdn.step
        self.at = config.gdn_layers.index(layer)
        inputs = ("query", "key", "value", "z", "a_projection", "b_projection")
        self.project = p.linear(*(f"gdn/{name}" for name in inputs))
        self.decay_and_strength: Linear | None = None
        self.widths = g.channels + g.value_width, 2 * g.value_heads
        # of two storages two operations: neither is copied into one result
        if parted := getattr(self.project, "parted", lambda rows: None)(self.widths[0]):
            self.project, self.decay_and_strength = parted
        self.layer = Layer(
            key_heads=g.key_heads,
            value_heads=g.value_heads,
            key_dim=g.key_dim,
            value_dim=g.value_dim,
            convolution=p.tensor("gdn/convolution"),
            a_log=p.tensor("gdn/a_log"),
            dt_bias=p.tensor("gdn/dt_bias"),
            norm=p.tensor("gdn/norm"),
            eps=config.rms_norm_eps,
        )
        self.output = p.linear("gdn/output")

    def __call__(self, h: Tensor, context: Context) -> Tensor:
        """[T, N] -> the gated heads side by side, [T, H * D]; states move, or the tape keeps what ``fold`` needs."""
        assert context.parts is not None
        if self.decay_and_strength is None:
            mixed, ab = self.project(h).split(self.widths, dim=-1)
        else:
            with together():
                mixed, ab = self.project(h), self.decay_and_strength(h)
        return self.step(mixed, ab, self.layer, context.parts, self.at, context.rows, context.tape)  # type: ignore[no-any-return]


def conv_part(layer: int) -> str:
    return f"convolution/{layer}"


def delta_part(layer: int) -> str:
    return f"delta/{layer}"


class Block:
    """``x += mixer(norm(x)); x += ffn(norm(x))``, in two halves, so that tokens can be dropped in between."""

    def __init__(self, mixer: GatedAttention | DeltaNet, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        self.mixer, self.eps, self.norm = mixer, config.rms_norm_eps, kernels.norm
        self.input_norm, self.post_attention_norm = p.centred("input_norm"), p.centred("post_attention_norm")
        if config.is_moe:
            self.ffn: GatedMlp | SparseMlp = SparseMlp(config, p, kernels)
        else:
            self.ffn = GatedMlp("mlp/gate", "mlp/up", "mlp/down", p, kernels)

    def mix(self, x: Tensor, context: Context, owed: Tensor | None = None) -> Tensor:
        """What the mixer says, before its output projection. ``owed``: what the block before has yet to add to the
        residual ``x``, in place."""
        if owed is None:
            return self.mixer(self.norm.rms_norm(x, self.input_norm, self.eps), context)
        return self.mixer(self.norm.add_rms_norm(x, owed, self.input_norm, self.eps), context)

    def feed_forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add the mixer's projection to the residual ``x``, in place; what is yet to be added to it."""
        return self.ffn(self.norm.add_rms_norm(x, self.mixer.output(mixed), self.post_attention_norm, self.eps))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add the mixer's projection and the feed-forward to the residual ``x``, in place."""
        return x.add_(self.feed_forward(x, mixed))
