"""How ``ninfer convert --weights SCHEME`` stores each matrix; norms and biases stay as the source has them."""

from __future__ import annotations

from .config import LlamaConfig
from .names import inventory

BF16, ROW_FP8, NVFP4 = "bf16", "fp8_e4m3fn_row_bf16", "nvfp4"
GROUPWISE = {
    "token_embedding": "q8_g32_fp16",
    "output_head": "q8_g32_fp16",
    "attention/query": "q4_g64_fp16",
    "attention/key": "q4_g64_fp16",
    "attention/value": "q5_g64_fp16",
    "attention/output": "q5_g64_fp16",
    "mlp/gate": "q4_g64_fp16",
    "mlp/up": "q4_g64_fp16",
    "mlp/down": "q5_g64_fp16",
}
"""What writes into the residual, and the values, get a bit more than what is only compared or gated."""


def weight_recipe(config: LlamaConfig, scheme: str) -> dict[str, str]:
    """Parameter -> format; a tied head is the token table under a second name and shares its format."""
    matrices = {name: shape for name, shape in inventory(config).items() if len(shape) == 2}
    return {name: format_of(name, shape, scheme) for name, shape in matrices.items()}


def format_of(name: str, shape: tuple[int, ...], scheme: str) -> str:
    if scheme == "groupwise-int":
        return next(form for end, form in GROUPWISE.items() if name.endswith(end))
    if scheme == "nvfp4":
        # token table and head show an error most; nvfp4 holds whole tiles only
        inner = name.startswith("text/layers/")
        return NVFP4 if inner and shape[0] % 128 == 0 and shape[1] % 64 == 0 else ROW_FP8
    return ROW_FP8 if scheme == "fp8" else BF16
