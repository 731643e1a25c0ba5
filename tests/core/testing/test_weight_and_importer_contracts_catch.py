"""The contracts of weight formats and importers on right ones, and on broken versions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ninfer_core.api import ArtifactError, EncodedTensor, Importer, Source, SourceTensor, WeightFormat
from ninfer_core.testing import ImporterContract, WeightFormatContract


def decode(tensor: EncodedTensor) -> Tensor:
    return tensor.data.view(torch.float16).reshape(tensor.shape).float()


def quantize(x: Tensor) -> EncodedTensor:
    data = x.half().reshape(-1).view(torch.uint8)
    return EncodedTensor(format="half", layout="plain", shape=tuple(x.shape), data=data)


def take_rows(tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    return quantize(decode(tensor)[list(rows)])


def size(shape: tuple[int, ...]) -> int:
    if shape[-1] % 2:
        raise ValueError(f"{shape[-1]} columns, an even number is needed")
    return 2 * prod(shape)


class Packed:
    def __init__(self, parts: Sequence[EncodedTensor], slip: float = 0.0) -> None:
        self.weights = torch.cat([decode(part) for part in parts]) * (1 + slip)
        self.rows = len(self.weights)

    def __call__(self, x: Tensor) -> Tensor:
        return (x.float() @ self.weights.T).to(x.dtype)


class Shown(Packed):
    def take_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.weights[ids].to(dtype)


HALF = WeightFormat(
    name="half",
    layout="plain",
    encoded_bytes=size,
    decode=decode,
    take_rows=take_rows,
    quantize=quantize,
    cpu_linear=Packed,
    gpu_linear=lambda parts, device: Shown(parts),
)


class TestHalf(WeightFormatContract):
    format = HALF
    gpu = torch.device("cpu")
    refused_shapes = ((2, 3),)
    tolerance = 2**-11


def contract(**changes: Any) -> WeightFormatContract:
    class Broken(WeightFormatContract):
        format = replace(HALF, **changes)
        gpu = torch.device("cpu")
        tolerance = 2**-11
        refused_shapes = ((2, 3),)

    return Broken()


def shifted(tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    return take_rows(tensor, [row // 2 for row in rows])


CAUGHT: list[tuple[str, dict[str, Any], str, tuple[Any, ...]]] = [
    ("wrong rows", {"take_rows": shifted}, "test_taking_rows_equals_decoding_and_picking_them", ((7, 512),)),
    ("wrong size", {"encoded_bytes": lambda s: 3 * prod(s)}, "test_the_size_is_what_the_format_says", ((4, 256),)),
    (
        "bf16 out",
        {"decode": lambda t: decode(t).bfloat16()},
        "test_decode_gives_fp32_of_the_logical_shape",
        ((4, 256),),
    ),
    ("coarse", {"quantize": lambda x: quantize(x.round())}, "test_the_encoder_stays_within_its_tolerance", ((4, 256),)),
    (
        "other products",
        {"cpu_linear": lambda parts: Packed(parts, 0.001)},
        "test_the_packed_route_multiplies_by_the_decoded_weights",
        ((4, 256), 3),
    ),
    (
        "other products on a GPU",
        {"gpu_linear": lambda parts, device: Packed(parts, 0.02)},
        "test_the_operation_on_a_gpu_multiplies_by_the_decoded_weights",
        ((4, 256), 3),
    ),
    (
        "another matrix on a GPU",
        {"gpu_linear": lambda parts, device: Shown(parts, 0.01)},
        "test_the_operation_on_a_gpu_gives_rows_of_the_decoded_weights",
        ((4, 256),),
    ),
]


@pytest.mark.parametrize(("changes", "check", "args"), [case[1:] for case in CAUGHT], ids=[case[0] for case in CAUGHT])
def test_a_wrong_format_is_caught(changes: dict[str, Any], check: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(AssertionError):
        getattr(contract(**changes), check)(*args)


def test_a_format_that_holds_any_shape_is_caught() -> None:
    with pytest.raises(pytest.fail.Exception):
        contract(encoded_bytes=lambda shape: 1).test_a_shape_it_cannot_hold_is_refused_in_one_line()


def open_raw(path: str) -> Source:
    data = Path(path).read_bytes()
    if not data or len(data) % 4:
        raise ArtifactError(f"{path}: {len(data)} bytes, a positive multiple of 4 is needed")

    def read() -> EncodedTensor:
        floats = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return EncodedTensor(format="fp32", layout="contiguous_le_v1", shape=(len(data) // 4,), data=floats)

    tensor = SourceTensor(name="x", format="fp32", shape=(len(data) // 4,), read=read)
    return Source(kind="raw", path=path, architecture="Raw", config={}, tensors={"x": tensor})


class RawContract(ImporterContract):
    importer = Importer(name="raw", summary="floats", claims=lambda path: path.endswith(".raw"), open=open_raw)

    def good(self, directory: Path) -> str:
        (directory / "x.raw").write_bytes(bytes(40))
        return str(directory / "x.raw")

    def bad(self, directory: Path) -> Mapping[str, str]:
        (directory / "odd.raw").write_bytes(bytes(3))
        return {"an odd size": str(directory / "odd.raw")}


class TestRaw(RawContract):
    pass


def broken(**changes: Any) -> RawContract:
    class Broken(RawContract):
        importer = replace(RawContract.importer, **changes)

    return Broken()


def no_check(path: str) -> Source:
    data = Path(path).read_bytes()
    assert len(data) % 4 == 0
    return Source(kind="raw", path=path, architecture="Raw", config={})


def test_an_importer_that_claims_everything_is_caught(tmp_path: Path) -> None:
    greedy = broken(claims=lambda path: True)
    with pytest.raises(AssertionError):
        greedy.test_it_leaves_foreign_paths_alone("no/such/file")
    with pytest.raises(AssertionError):
        greedy.test_it_leaves_other_files_and_folders_alone(tmp_path)


def test_an_importer_that_raises_something_else_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        broken(open=no_check).test_damage_is_one_line_that_names_the_file(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(AssertionError):
        broken(open=no_check).test_a_cut_file_is_refused_or_readable_but_nothing_else(other)


def test_an_importer_of_another_kind_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        broken(name="other").test_what_it_opens_is_complete(tmp_path)
