"""A GGUF file of architecture ``qwen35`` or ``qwen35moe`` in this family's words (``spec/artifact.md`` §14.3).

llama.cpp's export keeps the value heads of Gated DeltaNet tiled (one of each key head, then the next of each) where
they are grouped by key head here, stores norms as one plus what checkpoints hold, and the decay as ``-exp(A)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ninfer_core.api import ArtifactError, ImportPlan, Recipe, Source

from . import config as qwen35_config
from . import gguf_config, names
from .config import MTP_ARCHITECTURES, Qwen35Config
from .tensors import Missing, Tensors, rows

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_NORMS = {"input_norm": "attn_norm.weight", "post_attention_norm": "post_attention_norm.weight"}
ATTENTION = {
    "attention/key": "attn_k.weight",
    "attention/value": "attn_v.weight",
    "attention/output": "attn_output.weight",
}
ATTENTION_NORMS = {"attention/query_norm": "attn_q_norm.weight", "attention/key_norm": "attn_k_norm.weight"}
MLP = {"mlp/gate": "ffn_gate.weight", "mlp/up": "ffn_up.weight", "mlp/down": "ffn_down.weight"}
MOE = {
    "moe/router": "ffn_gate_inp.weight",
    "moe/shared/gate": "ffn_gate_shexp.weight",
    "moe/shared/up": "ffn_up_shexp.weight",
    "moe/shared/down": "ffn_down_shexp.weight",
}
SHARED_SCORE = "ffn_gate_inp_shexp.weight"
EXPERTS = {"gate": "ffn_gate_exps.weight", "up": "ffn_up_exps.weight", "down": "ffn_down_exps.weight"}
FUSED_EXPERTS = "ffn_gate_up_exps.weight"
MTP_NORMS = {
    "mtp/embedding_norm": "nextn.enorm.weight",
    "mtp/hidden_norm": "nextn.hnorm.weight",
    "mtp/final_norm": "nextn.shared_head_norm.weight",
}
MTP_PROJECTION = "nextn.eh_proj.weight"


def plan(source: Source) -> ImportPlan:
    """Config and recipes; ArtifactError names the key or tensor that cannot be represented."""
    raw, warnings = gguf_config.read(source)
    c = qwen35_config.read(raw, source.path)
    tensors = Tensors(source.path, source.tensors)
    binder = GgufBinder(c, tensors)
    recipes = binder.text()
    companions = {}
    block = f"blk.{c.num_hidden_layers}."
    if any(name.startswith(block) for name in source.tensors):
        try:
            recipes |= binder.mtp(block)
            companions["mtp"] = {"architectures": [MTP_ARCHITECTURES[c.architecture]]}
        except Missing as missing:
            tensors.used.update(name for name in source.tensors if name.startswith(block))
            warnings.append(f"{missing}; the MTP block is left out")
    tensors.refuse([name for name in source.tensors if name not in tensors.used])
    return ImportPlan(
        architecture=c.architecture,
        config=qwen35_config.to_dict(c),
        parameters=recipes,
        warnings=tuple(warnings),
        companions=companions,
    )


class GgufBinder:
    """Recipes of every parameter, each of its tensors checked."""

    def __init__(self, c: Qwen35Config, tensors: Tensors) -> None:
        self.c, self.tensors = c, tensors
        a = c.attention
        # rows go head by head, a query and then its gate
        firsts = range(0, 2 * a.heads * a.head_dim, 2 * a.head_dim)
        self.query_rows = tuple(first + d for first in firsts for d in range(a.head_dim))
        self.gate_rows = tuple(row + a.head_dim for row in self.query_rows)
        self.heads: tuple[int, ...] = ()
        if c.gdn_layers:
            self.heads = tiled_places(c.gdn.key_heads, c.gdn.value_heads)

    def text(self) -> dict[str, Recipe]:
        c, table = self.c, (self.c.vocab_size, self.c.hidden_size)
        out = {"text/token_embedding": self._one("token_embd.weight", table)}
        out["text/final_norm"] = self._norm("output_norm.weight", (c.hidden_size,))
        head = "token_embd.weight" if c.tie_word_embeddings else "output.weight"
        out[names.HEAD[0]] = self._one(head, table)
        for i, kind in enumerate(c.layer_types):
            out |= self._block(names.layer_prefix(i), kind, f"blk.{i}.")
        return out

    def mtp(self, foreign: str) -> dict[str, Recipe]:
        """Raises Missing when the block is not whole."""
        h = self.c.hidden_size
        out = {"mtp/input_projection": self._one(foreign + MTP_PROJECTION, (h, 2 * h))}
        out |= {name: self._norm(foreign + tensor, (h,)) for name, tensor in MTP_NORMS.items()}
        return out | self._block(names.MTP_LAYER, "full_attention", foreign)

    def _block(self, logical: str, kind: str, foreign: str) -> dict[str, Recipe]:
        shapes = names.block_shapes(self.c, kind)
        norms = BLOCK_NORMS | (ATTENTION_NORMS if kind == "full_attention" else {})
        out = {logical + name: self._norm(foreign + tensor, shapes[name]) for name, tensor in norms.items()}
        plain = (ATTENTION if kind == "full_attention" else {}) | (MOE if self.c.is_moe else MLP)
        out |= {logical + name: self._one(foreign + tensor, shapes[name]) for name, tensor in plain.items()}
        out |= self._query_and_gate(logical, foreign) if kind == "full_attention" else self._gdn(logical, foreign)
        return out | (self._experts(logical, foreign) if self.c.is_moe else {})

    def _one(self, tensor: str, shape: names.Shape) -> Recipe:
        return Recipe(tensors=(self.tensors.take(tensor, shape),), shape=shape)

    def _norm(self, tensor: str, shape: names.Shape) -> Recipe:
        return Recipe(tensors=(self.tensors.take(tensor, shape),), shape=shape, transform=less_one, store="bf16")

    def _query_and_gate(self, logical: str, foreign: str) -> dict[str, Recipe]:
        width, h = len(self.query_rows), self.c.hidden_size
        tensor = self.tensors.take(f"{foreign}attn_q.weight", (2 * width, h))
        return {
            f"{logical}attention/query": Recipe(tensors=(tensor,), shape=(width, h), rows=self.query_rows),
            f"{logical}attention/gate": Recipe(tensors=(tensor,), shape=(width, h), rows=self.gate_rows),
        }

    def _gdn(self, logical: str, foreign: str) -> dict[str, Recipe]:
        g, h, p = self.c.gdn, self.c.hidden_size, logical + "gdn/"
        value_rows = tuple(head * g.value_dim + d for head in self.heads for d in range(g.value_dim))
        stacked = self.tensors.take(f"{foreign}attn_qkv.weight", (g.channels, h))
        first = 2 * g.key_width
        out = {
            f"{p}query": rows(stacked, 0, g.key_width, h),
            f"{p}key": rows(stacked, g.key_width, g.key_width, h),
            f"{p}value": Recipe(
                tensors=(stacked,), shape=(g.value_width, h), rows=tuple(first + row for row in value_rows)
            ),
            f"{p}norm": self._one(f"{foreign}ssm_norm.weight", (g.value_dim,)),
            f"{p}output": self._output(foreign, value_rows),
        }
        places = {
            "z": ("attn_gate.weight", value_rows),
            "a_projection": ("ssm_alpha.weight", self.heads),
            "b_projection": ("ssm_beta.weight", self.heads),
        }
        for name, (tensor, order) in places.items():
            taken = self.tensors.take(foreign + tensor, (len(order), h))
            out[p + name] = Recipe(tensors=(taken,), shape=(len(order), h), rows=order)
        decays = log_decay(f"{self.tensors.path}: tensor '{foreign}ssm_a'", self.heads)
        vectors = {"a_log": ("ssm_a", decays), "dt_bias": ("ssm_dt.bias", in_order(self.heads))}
        for name, (tensor, transform) in vectors.items():
            taken = self.tensors.take(foreign + tensor, (g.value_heads,))
            out[p + name] = Recipe(tensors=(taken,), shape=(g.value_heads,), transform=transform, store="fp32")
        channels = (*range(first), *(first + row for row in value_rows))
        taken = self.tensors.take(f"{foreign}ssm_conv1d.weight", (g.channels, g.taps))
        out[f"{p}convolution"] = Recipe(tensors=(taken,), shape=(g.taps, g.channels), transform=tap_major(channels))
        return out

    def _output(self, foreign: str, value_rows: tuple[int, ...]) -> Recipe:
        """Its columns stay where they are where blocks of them cannot be taken apart."""
        shape = (self.c.hidden_size, self.c.gdn.value_width)
        name = self.tensors.take(f"{foreign}ssm_out.weight", shape)
        if value_rows == tuple(range(len(value_rows))):
            return Recipe(tensors=(name,), shape=shape)
        if not self.tensors.found[name].format.startswith("gguf_"):
            return Recipe(tensors=(name,), shape=shape, transform=columns_in_order(value_rows))
        belongs = [0] * len(value_rows)
        for grouped, tiled in enumerate(value_rows):
            belongs[tiled] = grouped
        return Recipe(tensors=(name,), shape=shape, columns=tuple(belongs))

    def _experts(self, logical: str, foreign: str) -> dict[str, Recipe]:
        experts, h, inner = self.c.num_experts or 0, self.c.hidden_size, self.c.moe_intermediate_size or 0
        score = foreign + SHARED_SCORE
        found = self.tensors.found.get(score)
        flat = found is not None and found.shape == (h,)
        out = {
            f"{logical}moe/shared_score": Recipe(
                tensors=(self.tensors.take(score, (h,) if flat else (1, h)),), shape=(1, h)
            )
        }
        if foreign + FUSED_EXPERTS in self.tensors.found:
            fused = self.tensors.take(foreign + FUSED_EXPERTS, (experts, 2 * inner, h))
            places = {"gate": (fused, 0, 2 * inner), "up": (fused, inner, 2 * inner)}
        else:
            places = {
                part: (self.tensors.take(foreign + EXPERTS[part], (experts, inner, h)), 0, inner)
                for part in ("gate", "up")
            }
        down = self.tensors.take(foreign + EXPERTS["down"], (experts, h, inner))
        for e in range(experts):
            stem = f"{logical}moe/experts/{e}/"
            for part, (tensor, start, step) in places.items():
                out[stem + part] = rows(tensor, start + e * step, inner, h)
            out[f"{stem}down"] = rows(down, e * h, h, inner)
        return out


def tiled_places(key_heads: int, value_heads: int) -> tuple[int, ...]:
    """The place in the file of each value head, in our order."""
    per = value_heads // key_heads
    return tuple((head % per) * key_heads + head // per for head in range(value_heads))


def less_one(x: Tensor) -> Tensor:
    return x - 1.0


def in_order(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: x[list(order)]


def log_decay(where: str, order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """``ln(-ssm_a)``, in our order of heads; ArtifactError where a value is not below zero."""

    def transform(x: Tensor) -> Tensor:
        if not bool((x < 0).all()):
            raise ArtifactError(f"{where} has a value that is not below 0; expected the negative of a decay")
        return (-x).log()[list(order)]

    return transform


def tap_major(channels: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """[C, taps] -> [taps, C] in our order of channels."""
    return lambda x: x[list(channels)].t().contiguous()


def columns_in_order(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: x[:, list(order)]
