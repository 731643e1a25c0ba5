"""The tiny models that go through every ``--weights`` scheme, and transformers' model of what an artifact means.

An artifact's parameters are decoded and saved under the source's names, and transformers loads that folder. So an
artifact that is read, stacked or multiplied differently from its definition shows, whatever its format loses. A further
family is a further entry of ``CASES``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ninfer_core.api import Checkpoint, ModelFamily
from ninfer_core.plugins import Plugins
from ninfer_core.testing import compose
from ninfer_core.weights.checkpoint import open_stored
from ninfer_core.weights.stored import StoredCheckpoint, full_inventory

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share their oracles

import qwen35_oracle as oracle
from serving_oracle import BYTES

FORMATS = {"gguf", "groupwise_int", "row_fp8", "nvfp4"}
SCHEMES = ("keep", "bf16", "fp32", "fp8", "groupwise-int", "nvfp4")
ROW_FP8, NVFP4 = "fp8_e4m3fn_row_bf16", "nvfp4"
Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One tiny model: how transformers makes and saves it, and our parameters under its names."""

    plugins: frozenset[str]
    public: int  # tokens that may be said
    make: Callable[[], Any]
    save: Callable[[Any, Path], object]
    foreign: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    formats: Callable[[str], set[str]]  # scheme -> the formats of its artifact
    mtp: bool = False


def opened(path: Path, case: Case) -> tuple[Plugins, ModelFamily, StoredCheckpoint]:
    plugins = compose(case.plugins | FORMATS)
    return (plugins, *open_stored(str(path), plugins))


def meant(path: Path, case: Case) -> dict[str, Tensor]:
    """Every parameter of a checkpoint, its companions' too, as its bytes mean it."""
    plugins, family, checkpoint = opened(path, case)
    return {
        name: decoded(plugins, checkpoint, name, shape) for name, shape in full_inventory(family, checkpoint).items()
    }


def decoded(plugins: Plugins, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    parts = checkpoint.parameter(name, shape)
    return torch.cat([plugins.weight_formats[part.format].decode(part) for part in parts]).reshape(shape)


def loaded(kind: type, folder: Path) -> Any:
    """Read back rather than cast back, which would leave rotary frequencies rounded."""
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def decoded_folder(case: Case, source: Path, artifact: Path, out: Path) -> None:
    """``source`` with every tensor of its text model replaced by what ``artifact`` holds for it; none is left over."""
    out.mkdir()
    shutil.copyfile(source / "config.json", out / "config.json")
    before, after = load_file(source / WEIGHTS), case.foreign(meant(artifact, case))
    if "lm_head.weight" not in before:
        table = next(tensor for name, tensor in after.items() if name.endswith("embed_tokens.weight"))
        assert torch.equal(after.pop("lm_head.weight"), table), "a tied head is the table"
    kept = {name: tensor for name, tensor in before.items() if name.startswith("model.visual.")}
    assert set(before) == set(after) | set(kept), set(before) ^ set(after) ^ set(kept)
    assert [n for n in after if after[n].shape != before[n].shape] == []
    save_file({**kept, **{n: x.contiguous().clone() for n, x in after.items()}}, out / WEIGHTS, {"format": "pt"})


def make_llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=BYTES,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **changes,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + 1)
    return model


def llama_names(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from ninfer_llama.names import huggingface_name

    return {huggingface_name(name): tensor for name, tensor in parameters.items()}


def llama_formats(scheme: str, vectors: str = "fp32") -> set[str]:
    matrices = {"keep": {vectors}, "bf16": {"bf16"}, "fp32": {"fp32"}, "fp8": {ROW_FP8}, "groupwise-int": {Q4, Q5, Q8}}
    return {vectors} | matrices.get(scheme, {NVFP4, ROW_FP8})


def qwen35_formats(groupwise: set[str], nvfp4: set[str], vectors: str = "fp32") -> Callable[[str], set[str]]:
    """Decays are fp32 whatever the source, gates bf16 in every scheme that rounds."""

    def formats(scheme: str) -> set[str]:
        rounded = {"fp8": {ROW_FP8}, "groupwise-int": groupwise, "nvfp4": nvfp4}
        matrices = rounded[scheme] | {"bf16"} if scheme in rounded else {vectors if scheme == "keep" else scheme}
        return {vectors, "fp32"} | matrices

    return formats


LLAMA: dict[str, Any] = {
    "plugins": frozenset({"llama"}),
    "public": BYTES,
    "save": lambda model, folder: model.save_pretrained(folder),
    "foreign": llama_names,
}
QWEN35: dict[str, Any] = {
    "plugins": frozenset({"qwen35"}),
    "public": BYTES + len(oracle.CONTROL),
    "save": oracle.save,
    "foreign": oracle.foreign,
    "mtp": True,
}
# one layer before the eight that never take NVFP4, and widths of whole tiles
WIDE_DENSE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 9,
    "layer_types": ["linear_attention", *["full_attention", "linear_attention"] * 3, *["full_attention"] * 2],
}
SHORT_DENSE = {**oracle.DENSE, "num_hidden_layers": 4, "tie_word_embeddings": True}
WIDE_MOE = {**oracle.MOE, "hidden_size": 128, "num_experts": 4, "moe_intermediate_size": 128}
NARROW_MOE = {**oracle.MOE, "tie_word_embeddings": True}
CASES = {
    "llama": Case(**LLAMA, make=make_llama, formats=llama_formats),
    "llama-tied": Case(**LLAMA, make=lambda: make_llama(tie_word_embeddings=True), formats=llama_formats),
    # widths that end inside a group, rows that no tile of nvfp4 covers
    "llama-odd": Case(
        **LLAMA,
        make=lambda: make_llama(head_dim=24, attention_bias=True, mlp_bias=True),
        formats=llama_formats,
    ),
    "llama-bf16": Case(
        **LLAMA,
        make=lambda: make_llama().to(torch.bfloat16),
        formats=lambda scheme: llama_formats(scheme, "bf16"),
    ),
    "qwen35": Case(
        **QWEN35, make=lambda: oracle.build(WIDE_DENSE), formats=qwen35_formats({Q4, Q5, Q8}, {NVFP4, ROW_FP8})
    ),
    # as the official checkpoints are stored; widths that end inside a group
    "qwen35-tied-bf16": Case(
        **QWEN35,
        make=lambda: oracle.build(SHORT_DENSE).to(torch.bfloat16),
        formats=qwen35_formats({Q4, Q5, Q8}, {ROW_FP8}, "bf16"),
    ),
    "qwen35-moe": Case(
        **QWEN35,
        make=lambda: oracle.build(WIDE_MOE),
        formats=qwen35_formats({Q4, Q5, Q6, Q8}, {NVFP4, ROW_FP8, Q6, Q8}),
    ),
    "qwen35-moe-tied": Case(
        **QWEN35,
        make=lambda: oracle.build(NARROW_MOE),
        formats=qwen35_formats({Q4, Q5, Q8}, {ROW_FP8, Q8}),
    ),
}
