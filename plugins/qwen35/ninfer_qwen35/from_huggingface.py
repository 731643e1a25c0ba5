"""A Hugging Face folder of this family in the family's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ninfer_core.api import ArtifactError, ImportPlan, Recipe, Source

from . import config as qwen35_config
from . import huggingface_config, names, quantized
from .config import MTP_ARCHITECTURES, Qwen35Config
from .tensors import Missing, Tensors, rows

if TYPE_CHECKING:
    from torch import Tensor

PREFIXES = ("model.language_model.", "model.")
VISION = ("model.visual.", "visual.")
MTP = "mtp."
IGNORED = ".rotary_emb.inv_freq"


def plan(source: Source) -> ImportPlan:
    """Config and recipes; ArtifactError names the key or tensor that cannot be represented."""
    place = f"{source.path}: config.json"
    raw, warnings = huggingface_config.read(source.config, source.architecture, place)
    c = qwen35_config.read(raw, place)
    decoded = quantized.decoded(source, place)
    tensors = Tensors(source.path, {**source.tensors, **decoded.tensors})
    binder = Binder(c, tensors)
    recipes = binder.text(_prefix(source))
    companions = {}
    if _has_mtp(source):
        try:
            recipes |= binder.mtp()
            companions["mtp"] = {"architectures": [MTP_ARCHITECTURES[c.architecture]]}
        except Missing as missing:
            tensors.used.update(name for name in tensors.found if name.startswith(MTP))
            warnings.append(f"{missing}; the MTP block is left out")
    unused = [name for name in tensors.found if name not in tensors.used and name not in decoded.consumed]
    vision = [name for name in unused if name.startswith(VISION)]
    if vision:
        warnings.append(f"{source.path}: the {len(vision)} tensors of the vision tower are not used: text is served")
    tensors.refuse([name for name in unused if not name.startswith(VISION) and not _ignored(name, c)])
    return ImportPlan(
        architecture=c.architecture,
        config=qwen35_config.to_dict(c),
        parameters=recipes,
        warnings=tuple(warnings),
        derived=decoded.tensors,
        companions=companions,
    )


class Binder:
    """Recipes of every parameter, each of its tensors checked."""

    def __init__(self, c: Qwen35Config, tensors: Tensors) -> None:
        self.c, self.tensors = c, tensors
        self.query_rows: tuple[int, ...] = ()
        self.gate_rows: tuple[int, ...] = ()
        if c.rope_parameters is not None:
            a = c.attention
            # rows go head by head, a query and then its gate
            firsts = range(0, 2 * a.heads * a.head_dim, 2 * a.head_dim)
            self.query_rows = tuple(first + d for first in firsts for d in range(a.head_dim))
            self.gate_rows = tuple(row + a.head_dim for row in self.query_rows)

    def text(self, prefix: str) -> dict[str, Recipe]:
        c = self.c
        table = (c.vocab_size, c.hidden_size)
        out = self._plain("", {"text/token_embedding": table, "text/final_norm": (c.hidden_size,)}, names.TOP, prefix)
        head = f"{prefix}{names.TOP['text/token_embedding']}" if c.tie_word_embeddings else names.HEAD[1]
        out[names.HEAD[0]] = Recipe(tensors=(self.tensors.take(head, table),), shape=table)
        for i, kind in enumerate(c.layer_types):
            out |= self._block(names.layer_prefix(i), kind, f"{prefix}layers.{i}.")
        return out

    def mtp(self) -> dict[str, Recipe]:
        """Raises Missing when the block is not whole."""
        inventory = names.mtp_inventory(self.c)
        out = self._plain("", {name: inventory[name] for name in names.MTP_TOP}, names.MTP_TOP, "")
        return out | self._block(names.MTP_LAYER, "full_attention", "mtp.layers.0.")

    def _block(self, logical: str, kind: str, foreign: str) -> dict[str, Recipe]:
        shapes = names.block_shapes(self.c, kind)
        out = self._plain(logical, shapes, names.BLOCK, foreign)
        if kind == "full_attention":
            out |= self._plain(logical, shapes, names.ATTENTION, foreign) | self._query_and_gate(logical, foreign)
        else:
            out |= self._plain(logical, shapes, names.GDN, foreign) | self._gdn(logical, foreign)
        if not self.c.is_moe:
            return out | self._plain(logical, shapes, names.MLP, foreign)
        return out | self._plain(logical, shapes, names.MOE, foreign) | self._experts(logical, shapes, foreign)

    def _plain(
        self, logical: str, shapes: Mapping[str, names.Shape], table: Mapping[str, str], foreign: str
    ) -> dict[str, Recipe]:
        """Parameters that are one tensor each, as it is."""
        return {
            logical + name: Recipe(tensors=(self.tensors.take(foreign + tensor, shapes[name]),), shape=shapes[name])
            for name, tensor in table.items()
        }

    def _query_and_gate(self, logical: str, foreign: str) -> dict[str, Recipe]:
        width, h = len(self.query_rows), self.c.hidden_size
        tensor = self.tensors.take(foreign + names.QUERY_AND_GATE, (2 * width, h))
        return {
            f"{logical}attention/query": Recipe(tensors=(tensor,), shape=(width, h), rows=self.query_rows),
            f"{logical}attention/gate": Recipe(tensors=(tensor,), shape=(width, h), rows=self.gate_rows),
        }

    def _gdn(self, logical: str, foreign: str) -> dict[str, Recipe]:
        g, h = self.c.gdn, self.c.hidden_size
        stacked = self.tensors.take(foreign + names.QUERY_KEY_VALUE, (g.channels, h))
        out = {
            logical + "gdn/query": rows(stacked, 0, g.key_width, h),
            logical + "gdn/key": rows(stacked, g.key_width, g.key_width, h),
            logical + "gdn/value": rows(stacked, 2 * g.key_width, g.value_width, h),
        }
        heads = (g.value_heads,)
        for name, tensor in (("a_log", names.A_LOG), ("dt_bias", names.DT_BIAS)):
            taken = self.tensors.take(foreign + tensor, heads)
            out[f"{logical}gdn/{name}"] = Recipe(tensors=(taken,), shape=heads, store="fp32")
        name = foreign + names.CONVOLUTION
        quantized_form = self.tensors.found.get(name)
        flat = quantized_form is not None and len(quantized_form.shape) == 2
        taken = self.tensors.take(name, (g.channels, g.taps) if flat else (g.channels, 1, g.taps))
        out[f"{logical}gdn/convolution"] = Recipe(
            tensors=(taken,), shape=(g.taps, g.channels), transform=_tap_major(g.taps)
        )
        return out

    def _experts(self, logical: str, shapes: Mapping[str, names.Shape], foreign: str) -> dict[str, Recipe]:
        """Fused into two tensors, or one by one; layers may differ."""
        experts, h, inner = self.c.num_experts or 0, self.c.hidden_size, self.c.moe_intermediate_size or 0
        stem = f"{logical}moe/experts/"
        out: dict[str, Recipe] = {}
        if foreign + names.FUSED_GATE_UP in self.tensors.found or foreign + names.FUSED_DOWN in self.tensors.found:
            gate_up = self.tensors.take(foreign + names.FUSED_GATE_UP, (experts, 2 * inner, h))
            down = self.tensors.take(foreign + names.FUSED_DOWN, (experts, h, inner))
            for e in range(experts):
                out[f"{stem}{e}/gate"] = rows(gate_up, 2 * e * inner, inner, h)
                out[f"{stem}{e}/up"] = rows(gate_up, (2 * e + 1) * inner, inner, h)
                out[f"{stem}{e}/down"] = rows(down, e * h, h, inner)
            return out
        for e in range(experts):
            for part in names.SPLIT_EXPERT:
                shape = shapes[f"moe/experts/{e}/{part}"]
                tensor = self.tensors.take(foreign + names.split_expert(e, part), shape)
                out[f"{stem}{e}/{part}"] = Recipe(tensors=(tensor,), shape=shape)
        return out


def _tap_major(taps: int) -> Callable[[Tensor], Tensor]:
    """[C, 1, taps] -> [taps, C], tap 0 the oldest."""
    return lambda x: x.reshape(-1, taps).t().contiguous()


def _prefix(source: Source) -> str:
    """Where the text model's tensors are: below ``model.language_model.`` beside a vision tower, else ``model.``."""
    for prefix in PREFIXES:
        if any(
            name.startswith(prefix + "layers.") or name == f"{prefix}embed_tokens.weight" for name in source.tensors
        ):
            return prefix
    raise ArtifactError(f"{source.path}: no tensor begins with {' or '.join(PREFIXES)}: there is no text model")


def _has_mtp(source: Source) -> bool:
    return any(name.startswith(MTP) for name in source.tensors)


def _ignored(name: str, c: Qwen35Config) -> bool:
    """Buffers of old checkpoints, and the copy of a tied head that some write."""
    return name.endswith(IGNORED) or (c.tie_word_embeddings and name == names.HEAD[1])
