"""Matrices a Hugging Face checkpoint stores as codes and scales, as tensors with the numbers they mean.

Whether a matrix is quantized is decided by its own scale tensors; the lists of modules in configs carry other prefixes
than the tensors and have misled loaders. Every matrix is decoded when it is read, never before.
Forms: ``spec/family-qwen35.md`` §3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ninfer_core.api import ArtifactError, EncodedTensor, Source, SourceTensor

if TYPE_CHECKING:
    from torch import Tensor

FP8, BYTES = "f8_e4m3", "u8"
SCALES = ("fp32", "bf16", "fp16")
GROUP = 16  # columns of one NVFP4 scale
# scales of activations and of a KV cache: nothing here runs on them
UNUSED = (".input_scale", ".input_global_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale")


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """``tensors`` replace the codes of the same name; ``consumed`` are the tensors they are made from."""

    tensors: dict[str, SourceTensor] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)


def decoded(source: Source, place: str) -> Decoded:
    """All quantized matrices; ArtifactError for a form that is not implemented, or codes without their scales."""
    block = check_config(source.config.get("quantization_config"), place)
    out = Decoded()
    for name in source.tensors:
        stem, _, kind = name.rpartition(".")
        if kind == "weight_scale_inv":
            _add(out, source, stem, partial(_block_fp8, block=block), ("weight", kind))
        elif kind == "weight_packed":
            _add(out, source, stem, _packed_nvfp4, (kind, "weight_scale", "weight_global_scale"))
        elif kind == "weight_scale_2":
            _add(out, source, stem, _modelopt_nvfp4, ("weight", "weight_scale", kind))
        elif kind == "weight_scale" and _is_plain_fp8(source, stem):
            _add(out, source, stem, _row_fp8, ("weight", kind))
        elif name.endswith(UNUSED):
            out.consumed.add(name)
    for name, tensor in source.tensors.items():
        if tensor.format in (FP8, BYTES) and name not in out.tensors and name not in out.consumed:
            raise ArtifactError(f"{source.path}: tensor {name!r} is {tensor.format} without the scales that go with it")
    return out


def check_config(config: Any, place: str) -> tuple[int, int]:
    """The block size of scales; ArtifactError for a quantization that is not implemented."""
    if config is None:
        return 128, 128
    if not isinstance(config, Mapping):
        raise ArtifactError(f"{place}: quantization_config is {config!r:.80}; expected an object")
    method = config.get("quant_method")
    if method == "fp8":
        _must_be(config, "fmt", ("e4m3", None), place)
        return _block_size(config.get("weight_block_size"), place)
    if method == "modelopt":
        _must_be(config, "quant_algo", ("FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION", None), place)
    elif method == "compressed-tensors":
        formats = ("nvfp4-pack-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense", None)
        _must_be(config, "format", formats, place)
    else:
        accepted = "fp8, modelopt, compressed-tensors"
        raise ArtifactError(
            f"{place}: quantization_config.quant_method {method!r} is not implemented; accepted: {accepted}"
        )
    return 128, 128


def _must_be(config: Mapping[str, Any], key: str, accepted: tuple[str | None, ...], place: str) -> None:
    if config.get(key) not in accepted:
        spelled = ", ".join(value for value in accepted if value is not None)
        raise ArtifactError(
            f"{place}: quantization_config.{key} {config[key]!r} is not implemented; accepted: {spelled}"
        )


def _block_size(value: Any, place: str) -> tuple[int, int]:
    if value is None:
        return 128, 128
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise ArtifactError(
            f"{place}: quantization_config.weight_block_size is {value!r:.80}; expected two whole numbers above 0"
        )
    return value[0], value[1]


def _is_plain_fp8(source: Source, stem: str) -> bool:
    weight = source.tensors.get(f"{stem}.weight")
    return weight is not None and weight.format == FP8


Decoder = Callable[..., "Tensor"]
Form = Callable[..., tuple[tuple[int, ...], Decoder]]


def _add(out: Decoded, source: Source, stem: str, form: Form, kinds: tuple[str, ...]) -> None:
    """One matrix: its tensors checked, its numbers not read."""
    names = [f"{stem}.{kind}" for kind in kinds]
    for name in names:
        if name not in source.tensors:
            raise ArtifactError(f"{source.path}: tensor {name!r} is missing beside {f'{stem}.{kinds[-1]}'!r}")
    tensors = [source.tensors[name] for name in names]
    shape, decode = form(source.path, *tensors)
    target = f"{stem}.weight"
    read = partial(_read, source.path, target, shape, tensors, decode)
    out.tensors[target] = SourceTensor(name=target, format="fp32", shape=shape, read=read)
    out.consumed.update(names)


def _read(path: str, name: str, shape: tuple[int, ...], tensors: list[SourceTensor], decode: Decoder) -> EncodedTensor:
    import torch

    try:
        values = decode(*(_values(tensor) for tensor in tensors))
    except ValueError as error:
        raise ArtifactError(f"{path}: tensor {name!r}: {error}") from None
    data = values.contiguous().reshape(-1).view(torch.uint8)
    return EncodedTensor(format="fp32", layout="contiguous_le_v1", shape=shape, data=data)


# each form: the shape of the matrix, and how its tensors' values become numbers


def _block_fp8(path: str, weight: SourceTensor, scale: SourceTensor, *, block: tuple[int, int]) -> Any:
    N, K = _codes(path, weight, FP8)
    wanted = (-(-N // block[0]), -(-K // block[1]))
    if scale.shape != wanted:
        raise _misshapen(path, scale, wanted)
    _scale_format(path, scale)

    def decode(codes: Tensor, scales: Tensor) -> Tensor:
        _check_fp8(codes)
        _check_scales(scales)
        each = scales.float().repeat_interleave(block[0], 0)[:N]
        return codes.float().mul_(each.repeat_interleave(block[1], 1)[:, :K])

    return (N, K), decode


def _row_fp8(path: str, weight: SourceTensor, scale: SourceTensor) -> Any:
    N, K = _codes(path, weight, FP8)
    if scale.shape not in ((), (1,), (1, 1), (N,), (N, 1)):
        raise _misshapen(path, scale, (N, 1))
    _scale_format(path, scale)

    def decode(codes: Tensor, scales: Tensor) -> Tensor:
        _check_fp8(codes)
        _check_scales(scales)
        return codes.float().mul_(scales.float().reshape(-1, 1))

    return (N, K), decode


def _packed_nvfp4(path: str, codes: SourceTensor, scale: SourceTensor, divisor: SourceTensor) -> Any:
    return _nvfp4(path, codes, scale, divisor, lambda x, d: x / d)


def _modelopt_nvfp4(path: str, codes: SourceTensor, scale: SourceTensor, multiplier: SourceTensor) -> Any:
    return _nvfp4(path, codes, scale, multiplier, lambda x, m: x * m)


def _nvfp4(
    path: str,
    codes: SourceTensor,
    scale: SourceTensor,
    whole: SourceTensor,
    apply: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    N, half = _codes(path, codes, BYTES)
    K = 2 * half
    if K % GROUP:
        raise ArtifactError(f"{path}: tensor {codes.name!r} has {K} columns; expected a multiple of {GROUP}")
    if scale.shape != (N, K // GROUP):
        raise _misshapen(path, scale, (N, K // GROUP))
    if scale.format != FP8:
        raise ArtifactError(f"{path}: tensor {scale.name!r} is {scale.format}; expected {FP8}")
    if whole.shape not in ((), (1,)):
        raise _misshapen(path, whole, ())
    _scale_format(path, whole)

    def decode(packed: Tensor, scales: Tensor, one: Tensor) -> Tensor:
        _check_fp8(scales)
        _check_scales(scales.float(), negative_zero=False)
        _check_scales(one.float(), zero=False)
        values = _e2m1(packed).view(N, K // GROUP, GROUP)
        return apply(values * scales.float()[..., None], one.float().reshape(())).view(N, K)

    return (N, K), decode


def _e2m1(packed: Tensor) -> Tensor:
    """[N, K/2] bytes -> [N, K] fp32; the low nibble is the even column."""
    import torch

    table = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), device=packed.device)
    table = torch.cat((table, -table))
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1)
    return table[nibbles.to(torch.int64)].flatten(1)


def _codes(path: str, tensor: SourceTensor, form: str) -> tuple[int, int]:
    if tensor.format != form:
        raise ArtifactError(f"{path}: tensor {tensor.name!r} is {tensor.format}; expected {form}")
    if len(tensor.shape) != 2:
        # a convolution's [C, 1, taps] included: its scales are a matrix's
        if len(tensor.shape) == 3 and tensor.shape[1] == 1:
            return tensor.shape[0], tensor.shape[2]
        raise ArtifactError(f"{path}: tensor {tensor.name!r} has shape {list(tensor.shape)}; expected a matrix")
    return tensor.shape[0], tensor.shape[1]


def _scale_format(path: str, tensor: SourceTensor) -> None:
    if tensor.format not in SCALES:
        raise ArtifactError(f"{path}: tensor {tensor.name!r} is {tensor.format}; expected one of {', '.join(SCALES)}")


def _misshapen(path: str, tensor: SourceTensor, wanted: tuple[int, ...]) -> ArtifactError:
    return ArtifactError(f"{path}: tensor {tensor.name!r} has shape {list(tensor.shape)}; expected {list(wanted)}")


def _check_fp8(codes: Tensor) -> None:
    """No NaN codes (0x7F, 0xFF)."""
    import torch

    found = codes.reshape(-1).view(torch.uint8)
    if bool(((found & 0x7F) == 0x7F).any()):
        raise ValueError("an fp8 code is not a number")


def _check_scales(scales: Tensor, *, zero: bool = True, negative_zero: bool = True) -> None:
    import torch

    sound = bool(torch.isfinite(scales).all()) and not bool((scales < 0).any())
    if not negative_zero:
        sound = sound and not bool(torch.signbit(scales).any())
    if not zero:
        sound = sound and not bool((scales == 0).any())
    if not sound:
        raise ValueError(f"a scale is negative or not finite{'' if zero else ', or zero'}")


def _values(tensor: SourceTensor) -> Tensor:
    """The stored words in their own dtype and shape."""
    import torch

    dtypes = {
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "fp32": torch.float32,
        FP8: torch.float8_e4m3fn,
        BYTES: torch.uint8,
    }
    dtype, data = dtypes[tensor.format], tensor.read().data
    if data.data_ptr() % dtype.itemsize or data.storage_offset() % dtype.itemsize:
        data = data.clone()
    shape = tensor.shape if len(tensor.shape) < 3 else (tensor.shape[0], tensor.shape[-1])
    return data.view(dtype).reshape(shape)
