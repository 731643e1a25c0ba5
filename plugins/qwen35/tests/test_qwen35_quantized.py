"""Quantized Hugging Face checkpoints: codes and scales as the numbers they mean, decided tensor by tensor."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

import tiny_qwen35 as tiny
from test_qwen35_huggingface import opened, values

from ninfer_core.api import ArtifactError
from ninfer_core.testing import Opened, compose
from ninfer_qwen35 import QWEN35
from ninfer_qwen35.from_huggingface import plan

P = "model.language_model."
GATE, DOWN = f"{P}layers.0.mlp.gate_proj", f"{P}layers.0.mlp.down_proj"
QUERY = f"{P}layers.3.self_attn.q_proj"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Parts = tuple[dict[str, Tensor], Tensor]  # tensors by suffix, and the matrix they mean


DRAWS = itertools.count()  # two matrices are never alike


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(next(DRAWS))


def fp8(rows: int, columns: int) -> Tensor:
    codes = torch.randint(0, 256, (rows, columns), generator=generator(), dtype=torch.int64).to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x10
    return codes.view(torch.float8_e4m3fn)


def block_fp8(
    rows: int, columns: int, block: tuple[int, int] = (128, 128), dtype: torch.dtype = torch.bfloat16
) -> Parts:
    grid = -(-rows // block[0]), -(-columns // block[1])
    codes, scales = fp8(rows, columns), (torch.rand(grid, generator=generator()) + 0.1).to(dtype)
    meant = torch.empty(rows, columns)
    for n in range(rows):
        for k in range(columns):
            meant[n, k] = codes[n, k].float() * scales[n // block[0], k // block[1]].float()
    return {"weight": codes, "weight_scale_inv": scales}, meant


def row_fp8(rows: int, columns: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Parts:
    codes, scales = fp8(rows, columns), (torch.rand(shape, generator=generator()) + 0.1).to(dtype)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales.float().reshape(-1, 1)


def nvfp4(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes, block scales, and codes times scales."""
    nibbles = torch.randint(0, 16, (rows, columns), generator=generator())
    packed = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).to(torch.uint8)
    scales = (torch.rand(rows, columns // 16, generator=generator()) * 3).to(torch.float8_e4m3fn)
    meant = torch.empty(rows, columns)
    for n in range(rows):
        for k in range(columns):
            code = int(nibbles[n, k])
            meant[n, k] = (-1 if code & 8 else 1) * E2M1[code & 7] * scales[n, k // 16].float()
    return packed, scales, meant


def packed_nvfp4(rows: int, columns: int) -> Parts:
    packed, scales, meant = nvfp4(rows, columns)
    divisor = torch.tensor([37.5])
    parts = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": divisor}
    return parts | {"input_global_scale": torch.tensor([2.0])}, meant / divisor


def modelopt_nvfp4(rows: int, columns: int) -> Parts:
    packed, scales, meant = nvfp4(rows, columns)
    multiplier = torch.tensor(0.0123)
    parts = {"weight": packed, "weight_scale": scales, "weight_scale_2": multiplier}
    return parts | {"input_scale": torch.tensor(0.5)}, meant * multiplier


FORMS: dict[str, tuple[dict[str, Any] | None, Callable[[int, int], Parts]]] = {
    "block-fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, block_fp8),
    "block-fp8-small": (
        {"quant_method": "fp8", "weight_block_size": [20, 12]},
        lambda n, k: block_fp8(n, k, (20, 12), torch.float32),
    ),
    "row-fp8": ({"quant_method": "compressed-tensors"}, lambda n, k: row_fp8(n, k, (n, 1), torch.bfloat16)),
    "row-fp8-flat": (
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        lambda n, k: row_fp8(n, k, (n,)),
    ),
    "tensor-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, lambda n, k: row_fp8(n, k, ())),
    "packed-nvfp4": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, packed_nvfp4),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, modelopt_nvfp4),
    "no-config": (None, modelopt_nvfp4),  # some exports say it in a file of their own
}


def checkpoint(
    form: str, stems: tuple[str, ...], **how: Any
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """config.json, tensors with ``stems`` quantized, and what those mean."""
    config, quantize = FORMS[form]
    c = tiny.config(**how)
    if config is not None:
        c["quantization_config"] = config
    tensors, meant = tiny.random_tensors(tiny.shapes(c, vision=False)), {}
    for stem in stems:
        rows, columns = tensors.pop(f"{stem}.weight").shape
        parts, meant[stem] = quantize(rows, columns)
        tensors |= {f"{stem}.{suffix}": tensor for suffix, tensor in parts.items()}
    return c, tensors, meant


@pytest.mark.parametrize("form", FORMS)
def test_codes_and_scales_are_the_numbers_they_mean(tmp_path, form):
    c, tensors, meant = checkpoint(form, (GATE, DOWN, QUERY, "lm_head"))
    read = values(tiny.write(tmp_path, c, tensors))
    assert torch.equal(read("text/layers/0/mlp/gate"), meant[GATE])
    assert torch.equal(read("text/layers/0/mlp/down"), meant[DOWN])
    assert torch.equal(read("text/output_head"), meant["lm_head"])
    by_head = meant[QUERY].view(4, 2, 32, 32)
    assert torch.equal(read("text/layers/3/attention/query"), by_head[:, 0].reshape(128, 32))
    assert torch.equal(read("text/layers/3/attention/gate"), by_head[:, 1].reshape(128, 32))
    # beside them nothing has changed
    assert torch.equal(read("text/layers/1/mlp/gate"), tensors[f"{P}layers.1.mlp.gate_proj.weight"])


def split_experts(form: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Config and tensors of a model whose experts are stored one by one, and what each of them means."""
    config, quantize = FORMS[form]
    c = tiny.config(moe=True)
    c["quantization_config"] = config
    tensors, meant = tiny.random_tensors(tiny.shapes(c, vision=False)), {}
    for stem in (f"{P}layers.{i}.mlp.experts" for i in range(4)):
        gate_up, down = tensors.pop(f"{stem}.gate_up_proj"), tensors.pop(f"{stem}.down_proj")
        shapes = {"gate": gate_up[0, :16].shape, "up": gate_up[0, 16:].shape, "down": down[0].shape}
        for e in range(6):
            for part, shape in shapes.items():
                name = f"{stem}.{e}.{part}_proj"
                parts, meant[name] = quantize(*shape)
                tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in parts.items()}
    return c, tensors, meant


@pytest.mark.parametrize("form", ["block-fp8", "packed-nvfp4", "modelopt-nvfp4"])
def test_each_split_expert_has_its_own_scales(tmp_path, form):
    c, tensors, meant = split_experts(form)
    read = values(tiny.write(tmp_path, c, tensors))
    for e, part in ((0, "gate"), (5, "down"), (3, "up")):
        expected = meant[f"{P}layers.2.mlp.experts.{e}.{part}_proj"]
        assert torch.equal(read(f"text/layers/2/moe/experts/{e}/{part}"), expected)


@pytest.mark.parametrize("form", ["block-fp8", "packed-nvfp4"])
def test_quantized_experts_become_dense_stacks_where_kernels_choose_among_them(tmp_path, form, monkeypatch):
    c, tensors, meant = split_experts(form)
    made = opened(tiny.write(tmp_path, c, tensors))
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    model = made.rig(reference=False).model
    assert model.records_steps
    stacks = model.blocks[2].ffn.stacked
    stem = f"{P}layers.2.mlp.experts."
    for e in range(6):
        parts = [meant[f"{stem}{e}.{part}_proj"] for part in ("gate", "up")]
        assert torch.equal(stacks.gate_up[e], torch.cat(parts))
        assert torch.equal(stacks.down[e], meant[f"{stem}{e}.down_proj"])
    monkeypatch.undo()
    x = torch.randn(5, stacks.down.shape[1], generator=torch.Generator().manual_seed(0))
    one_by_one = made.rig(reference=False).model.blocks[2].ffn
    torch.testing.assert_close(model.blocks[2].ffn(x), one_by_one(x), rtol=1e-4, atol=1e-4)


def test_gated_delta_net_projections_may_be_quantized_too(tmp_path):
    stems = tuple(f"{P}layers.0.linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_a", "out_proj"))
    c, tensors, meant = checkpoint("row-fp8-flat", stems)
    read = values(tiny.write(tmp_path, c, tensors))
    assert torch.equal(read("text/layers/0/gdn/key"), meant[stems[0]][16:32])
    assert torch.equal(read("text/layers/0/gdn/a_projection"), meant[stems[2]])


def test_scales_of_a_quantized_cache_are_left_alone(tmp_path):
    c, tensors, _ = checkpoint("tensor-fp8", (QUERY,))
    for name in ("k_proj.k_scale", "v_proj.v_scale"):
        tensors[f"{P}layers.3.self_attn.{name}"] = torch.tensor(1.0)
    plan(tiny.source(tmp_path, c, tensors))


CONFIGS: dict[str, tuple[Any, str]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, "quant_method 'gptq' is not implemented; accepted: fp8, modelopt"),
    "awq": ({"quant_method": "awq"}, "quant_method 'awq' is not implemented"),
    "nothing": ({}, "quant_method None is not implemented"),
    "e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "quantization_config.fmt 'e5m2' is not implemented"),
    "block": ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is [128]; expected two whole"),
    "algo": ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' is not implemented"),
    "packed ints": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        "quantization_config.format 'pack-quantized' is not implemented",
    ),
    "a word": ("int8", "quantization_config is 'int8'; expected an object"),
}


@pytest.mark.parametrize("how", CONFIGS)
def test_an_unsupported_quantization_is_refused_by_name(tmp_path, how):
    value, message = CONFIGS[how]
    c = tiny.config() | {"quantization_config": value}
    with pytest.raises(ArtifactError) as refused:
        plan(tiny.source(tmp_path, c))
    assert str(refused.value).startswith(f"{tmp_path}: config.json: ")
    assert message in str(refused.value)


SCALE, SCALE_INV = f"{GATE}.weight_scale", f"{GATE}.weight_scale_inv"
Spoil = Callable[[dict[str, Tensor]], Any]
SPOILED: dict[str, tuple[str, Spoil, str]] = {
    "codes alone": ("block-fp8", lambda t: t.pop(SCALE_INV), f"'{GATE}.weight' is f8_e4m3 without the scales"),
    "scales alone": (
        "block-fp8",
        lambda t: t.pop(f"{GATE}.weight"),
        f"'{GATE}.weight' is missing beside '{SCALE_INV}'",
    ),
    "no block scales": ("packed-nvfp4", lambda t: t.pop(SCALE), f"'{SCALE}' is missing beside"),
    "no global scale": (
        "packed-nvfp4",
        lambda t: t.pop(f"{GATE}.weight_global_scale"),
        f"'{GATE}.weight_global_scale' is missing beside",
    ),
    "scale grid": (
        "block-fp8",
        lambda t: t.update({SCALE_INV: torch.ones(2, 1)}),
        f"'{SCALE_INV}' has shape [2, 1]; expected [1, 1]",
    ),
    "row scales": (
        "row-fp8",
        lambda t: t.update({SCALE: torch.ones(5, 1)}),
        f"'{SCALE}' has shape [5, 1]; expected [48, 1]",
    ),
    "scale type": (
        "row-fp8",
        lambda t: t.update({SCALE: torch.ones(48, 1, dtype=torch.int32)}),
        f"'{SCALE}' is int32; expected one of fp32, bf16, fp16",
    ),
    "block scale type": (
        "packed-nvfp4",
        lambda t: t.update({SCALE: torch.ones(48, 2)}),
        f"'{SCALE}' is fp32; expected f8_e4m3",
    ),
    "plain codes under block scales": (
        "block-fp8",
        lambda t: t.update({f"{GATE}.weight": torch.zeros(48, 32)}),
        f"'{GATE}.weight' is fp32; expected f8_e4m3",
    ),
    "shape of the matrix": (
        "row-fp8",
        lambda t: t.update({f"{GATE}.weight": fp8(48, 16)}),
        f"'{GATE}.weight' has shape [48, 16]; expected [48, 32]",
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_codes_and_scales_that_do_not_belong_together_are_refused(tmp_path, how):
    form, spoil, message = SPOILED[how]
    c, tensors, _ = checkpoint(form, (GATE,))
    spoil(tensors)
    with pytest.raises(ArtifactError) as refused:
        plan(tiny.source(tmp_path, c, tensors))
    assert f"{tmp_path}: tensor {message}" in str(refused.value)
    assert "\n" not in str(refused.value)


def nan_code(t: dict[str, Tensor]) -> None:
    t[f"{GATE}.weight"].view(torch.uint8)[3, 4] = 0xFF


CONTENT: dict[str, tuple[str, Spoil]] = {
    "a code that is no number": ("block-fp8", nan_code),
    "a code that is no number in rows": ("row-fp8", nan_code),
    "a negative scale": ("block-fp8", lambda t: t[SCALE_INV].neg_()),
    "an infinite scale": ("row-fp8", lambda t: t[SCALE].fill_(float("inf"))),
    "a negative block scale": ("packed-nvfp4", lambda t: t[SCALE].view(torch.uint8).fill_(0x81)),
    "a block scale that is no number": ("modelopt-nvfp4", lambda t: t[SCALE].view(torch.uint8).fill_(0x7F)),
    "a zero divisor": ("packed-nvfp4", lambda t: t[f"{GATE}.weight_global_scale"].zero_()),
}


@pytest.mark.parametrize("how", CONTENT)
def test_contents_that_mean_nothing_are_refused_when_they_are_read(tmp_path, how):
    form, spoil = CONTENT[how]
    c, tensors, _ = checkpoint(form, (GATE,))
    spoil(tensors)
    source = tiny.source(tmp_path, c, tensors)
    opened = Opened(source, compose({"qwen35"}), QWEN35)
    with pytest.raises(ArtifactError, match=rf"tensor '{GATE}.weight': .*(scale is|code is)"):
        opened.value("text/layers/0/mlp/gate")
