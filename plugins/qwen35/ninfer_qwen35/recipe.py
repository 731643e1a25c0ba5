"""What artifacts of this family look like (``spec/artifact.md`` §15): formats of each scheme, inputs of each matrix."""

from __future__ import annotations

from .config import Qwen35Config
from .names import MTP_LAYER, Shape, inventory, layer_prefix, mtp_inventory

BF16, ROW_FP8, NVFP4 = "bf16", "fp8_e4m3fn_row_bf16", "nvfp4"
Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"

# small, and what they say is compared with a rounding's width: the router, gates, decays
DIRECT = ("moe/router", "moe/shared_score", "gdn/a_projection", "gdn/b_projection")
DENSE_GROUPWISE = {
    "text/token_embedding": Q8,
    "text/output_head": Q8,
    "attention/query": Q4,
    "attention/key": Q4,
    "attention/gate": Q5,
    "attention/value": Q5,
    "attention/output": Q5,
    "gdn/query": Q4,
    "gdn/key": Q4,
    "gdn/value": Q5,
    "gdn/z": Q5,
    "gdn/output": Q5,
    "mlp/gate": Q4,
    "mlp/up": Q4,
    "mlp/down": Q5,
}
MOE_HEAD = Q6
FINER_DOWN = frozenset((34, 38, 39))
"""Layers of the 35B-A3B whose experts lose most on their way down."""

FP8_TAIL = 8
"""The last layers keep row FP8 where the others are NVFP4."""


def weight_recipe(c: Qwen35Config, scheme: str) -> dict[str, str]:
    """Parameter -> format; vectors and the convolution stay as the source has them."""
    matrices = {name: shape for name, shape in (inventory(c) | _mtp(c)).items() if len(shape) == 2}
    return {
        name: format_of(c, name, shape, scheme)
        for name, shape in matrices.items()
        if not name.endswith("gdn/convolution")
    }


def direct_formats(c: Qwen35Config) -> dict[str, str]:
    """The decays are fp32 in every artifact."""
    return {f"{layer_prefix(i)}gdn/{name}": "fp32" for i in c.gdn_layers for name in ("a_log", "dt_bias")}


def format_of(c: Qwen35Config, name: str, shape: Shape, scheme: str) -> str:
    if scheme in ("bf16", "fp32"):
        return scheme
    if name.endswith(DIRECT):
        return BF16
    if scheme == "fp8":
        return ROW_FP8
    if scheme == "nvfp4" and (not c.is_moe or "moe/" in name):
        return NVFP4 if _takes_nvfp4(c, name, shape) else ROW_FP8
    return _groupwise(c, name)


def _takes_nvfp4(c: Qwen35Config, name: str, shape: Shape) -> bool:
    """Feed-forwards of all but the last layers, where whole tiles fit."""
    if not name.startswith("text/layers/") or shape[0] % 128 or shape[1] % 64:
        return False
    layer, inner = int(name.split("/")[2]), name.split("/")[3]
    return inner == "moe" or (inner == "mlp" and layer < c.num_hidden_layers - FP8_TAIL)


def _groupwise(c: Qwen35Config, name: str) -> str:
    if not name.startswith("text/"):
        return Q8
    if not c.is_moe:
        return next(form for end, form in DENSE_GROUPWISE.items() if name.endswith(end))
    # a tied head is the table, and is stored once
    if name == "text/output_head" and not c.tie_word_embeddings:
        return MOE_HEAD
    if "moe/experts/" not in name:
        return Q8
    if not name.endswith("/down"):
        return Q4
    return Q6 if int(name.split("/")[2]) in FINER_DOWN else Q5


def uses(c: Qwen35Config) -> dict[str, tuple[str, ...]]:
    """The inputs each matrix is multiplied by; the token table is looked up, never multiplied."""
    out: dict[str, tuple[str, ...]] = {
        "text/output_head": ("text/final_hidden",),
        "mtp/input_projection": ("mtp/stem_input",),
    }
    for name, shape in (inventory(c) | _mtp(c)).items():
        if len(shape) == 2 and "layers/" in name and not name.endswith("gdn/convolution"):
            out[name] = (_input(name),)
    return out if _mtp(c) else {name: inputs for name, inputs in out.items() if not name.startswith("mtp/")}


def _input(name: str) -> str:
    prefix, inner = (MTP_LAYER, name.removeprefix(MTP_LAYER)) if name.startswith("mtp/") else _of_text(name)
    if inner in ("attention/output", "gdn/output"):
        return f"{prefix}{inner.removesuffix('output')}gated_output"
    if inner.endswith("/down"):
        return f"{prefix}{inner.removesuffix('down')}product"
    return f"{prefix}{'mixer' if inner.startswith(('attention/', 'gdn/')) else 'ffn'}_input"


def _of_text(name: str) -> tuple[str, str]:
    text, layers, index, inner = name.split("/", 3)
    return f"{text}/{layers}/{index}/", inner


def _mtp(c: Qwen35Config) -> dict[str, Shape]:
    """The MTP block's parameters, where the config describes the attention it needs."""
    return mtp_inventory(c) if c.rope_parameters is not None else {}
