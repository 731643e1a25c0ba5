"""The halves of a block: two kinds of mixer, two kinds of feed-forward.

Legend: T tokens of this step, N hidden width, H query (GDN: value) heads, G KV (GDN: key) heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api.nn import Cache, Linear, Step
from ninfer_kernels import device
from ninfer_kernels.gdn import Rows

from .config import Qwen35Config
from .parts import Kernels, Parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the layers of one step share."""

    step: Step
    angles: tuple[Tensor, Tensor]
    rows: Rows
    cache: Cache
    state: Mapping[str, Tensor]


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

    def __call__(self, h: Tensor, context: Context) -> tuple[Tensor, None]:
        """[T, N] -> the gated heads side by side, [T, H * D]; keys and values go to the cache."""
        H, G, D, T = self.heads, self.kv_heads, self.head_dim, h.shape[0]
        projected = self.project(h).view(T, 2 * (H + G), D)
        turning, gate, value = projected.split((H + G, H, G), dim=1)
        # queries and keys are neighbours in the stack and rotate together
        turned = self.k.rope.norm_rotate(turning, self.head_norms, self.eps, *context.angles)
        context.cache.store(self.cache_layer, turned[:, H:], value, context.step)
        attended = context.cache.attend(self.cache_layer, turned[:, :H], context.step, self.scale)
        return self.k.activation.sigmoid_gate(attended, gate).reshape(T, H * D), None


class DeltaNet:
    """Gated DeltaNet: a short convolution, then a matrix of state per head that each token decays and writes to."""

    def __init__(self, layer: int, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        self.g, self.k, self.eps = config.gdn, kernels, config.rms_norm_eps
        self.conv_part, self.delta_part = conv_part(layer), delta_part(layer)
        self.project = p.linear("gdn/query", "gdn/key", "gdn/value", "gdn/z")
        self.decay_and_strength = p.linear("gdn/a_projection", "gdn/b_projection")
        self.a_log, self.dt_bias = p.tensor("gdn/a_log"), p.tensor("gdn/dt_bias")
        self.convolution, self.norm = p.tensor("gdn/convolution"), p.tensor("gdn/norm")
        self.output = p.linear("gdn/output")

    def __call__(self, h: Tensor, context: Context) -> tuple[Tensor, tuple[Any, Any]]:
        """[T, N] -> the gated heads side by side, [T, H * D], and what ``fold`` needs after a provisional step."""
        g, T, provisional = self.g, h.shape[0], context.step.provisional
        qkv, z = self.project(h).split((g.channels, g.value_width), dim=-1)
        a, b = self.decay_and_strength(h).split((g.value_heads, g.value_heads), dim=-1)
        history, state = context.state[self.conv_part], context.state[self.delta_part]
        y, conv_record = self.k.gdn.conv_step(qkv, history, self.convolution, context.rows, provisional=provisional)
        q, k, v = y.split((g.key_width, g.key_width, g.value_width), dim=-1)
        o, record = self.k.gdn.rule_step(
            q.unflatten(-1, (g.key_heads, g.key_dim)),
            k.unflatten(-1, (g.key_heads, g.key_dim)),
            v.unflatten(-1, (g.value_heads, g.value_dim)),
            *self.k.gdn.gates(a, b, self.a_log, self.dt_bias),
            state,
            context.rows,
            provisional=provisional,
        )
        gated = self.k.norm.gated_rms_norm(o, z.view(T, g.value_heads, g.value_dim), self.norm, self.eps)
        return gated.reshape(T, g.value_width), (conv_record, record)

    def fold(
        self, records: tuple[Any, Any], rows: Rows, kept: Sequence[int] | Tensor, state: Mapping[str, Tensor]
    ) -> None:
        self.k.gdn.conv_fold(records[0], state[self.conv_part], rows, kept)
        self.k.gdn.rule_fold(records[1], state[self.delta_part], rows, kept)


def conv_part(layer: int) -> str:
    return f"convolution/{layer}"


def delta_part(layer: int) -> str:
    return f"delta/{layer}"


class GatedMlp:
    """``down(SiLU(gate) * up)``."""

    records_steps = True

    def __init__(self, gate: str, up: str, down: str, p: Parameters, kernels: Kernels) -> None:
        self.swiglu = kernels.activation.swiglu
        self.gate_up: Linear = p.linear(gate, up)
        self.down: Linear = p.linear(down)

    def __call__(self, h: Tensor) -> Tensor:
        return self.down(self.swiglu(self.gate_up(h)))


class SparseMlp:
    """The most probable experts of each token, and one expert for all of them behind a gate of its own."""

    def __init__(self, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        self.chosen, self.k = config.num_experts_per_tok or 0, kernels
        # fp32: two experts a rounding apart must not trade places
        self.router_t = p.tensor("moe/router").t()
        self.shared_score_t = p.tensor("moe/shared_score").t()
        self.shared = GatedMlp("moe/shared/gate", "moe/shared/up", "moe/shared/down", p, kernels)
        stems = [f"moe/experts/{e}/" for e in range(config.num_experts or 0)]
        # on a GPU one stack for all experts, which kernels read without asking the host who was chosen
        self.stacks = _stacks(stems, p) if device.launches(self.router_t) else None
        self.records_steps = self.stacks is not None
        self.experts: list[GatedMlp] = []
        if self.stacks is None:
            self.experts = [GatedMlp(stem + "gate", stem + "up", stem + "down", p, kernels) for stem in stems]

    def __call__(self, h: Tensor) -> Tensor:
        wide = h.float()
        shares, ids = self.k.moe.route(wide @ self.router_t, self.chosen)
        if self.stacks is not None:
            routed = self.k.moe.mix_stacked(h, shares, ids, *self.stacks)
        else:
            routed = self.k.moe.mix(h, shares, ids, self.experts)
        shared = self.k.activation.sigmoid_gate(self.shared(h).float(), wide @ self.shared_score_t)
        return (routed + shared).to(h.dtype)


def _stacks(stems: Sequence[str], p: Parameters) -> tuple[Tensor, Tensor] | None:
    """Gate and up of all experts, [E, 2I, N], and their down, [E, N, I]; None where they are not held densely."""
    gate_up = getattr(p.linear(*(stem + part for stem in stems for part in ("gate", "up"))), "weight", None)
    down = getattr(p.linear(*(stem + "down" for stem in stems)), "weight", None)
    if gate_up is None or down is None:
        return None
    return gate_up.unflatten(0, (len(stems), -1)), down.unflatten(0, (len(stems), -1))


class Block:
    """``x += mixer(norm(x)); x += ffn(norm(x))``, in two halves, so that tokens can be dropped in between."""

    def __init__(self, mixer: GatedAttention | DeltaNet, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        self.mixer, self.eps, self.norm = mixer, config.rms_norm_eps, kernels.norm
        self.input_norm, self.post_attention_norm = p.centred("input_norm"), p.centred("post_attention_norm")
        if config.is_moe:
            self.ffn: GatedMlp | SparseMlp = SparseMlp(config, p, kernels)
        else:
            self.ffn = GatedMlp("mlp/gate", "mlp/up", "mlp/down", p, kernels)

    def mix(self, x: Tensor, context: Context, owed: Tensor | None = None) -> tuple[Tensor, Any]:
        """What the mixer says, before its output projection, and its record. ``owed``: what the block before has yet
        to add to the residual ``x``, in place."""
        if owed is None:
            return self.mixer(self.norm.rms_norm(x, self.input_norm, self.eps), context)
        return self.mixer(self.norm.add_rms_norm(x, owed, self.input_norm, self.eps), context)

    def feed_forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add the mixer's projection to the residual ``x``, in place; what is yet to be added to it."""
        return self.ffn(self.norm.add_rms_norm(x, self.mixer.output(mixed), self.post_attention_norm, self.eps))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add the mixer's projection and the feed-forward to the residual ``x``, in place."""
        return x.add_(self.feed_forward(x, mixed))
