"""The KV contract passes a right storage and catches each kind of wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ninfer_core.api import KVCodec, KVDtype, Plane, Refusal
from ninfer_core.testing import KVDtypeContract
from ninfer_core.testing.cache import hadamard


class Half:
    def __init__(self, head_dim: int) -> None:
        self.head_dim = head_dim

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (rows.half(),)

    def decode(self, planes: tuple[Tensor, ...]) -> Tensor:
        return planes[0].float()


class Rotated(Half):
    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (hadamard(rows).half(),)


HALF = KVDtype(name="half", summary="fp16", key_planes=lambda dim: (Plane(dtype="float16", width=dim),), open=Half)


class TestHalf(KVDtypeContract):
    dtype = HALF
    tolerance = 2**-11 + 1e-6


def refuse_odd(dim: int) -> tuple[Plane, ...]:
    if dim & (dim - 1):
        raise Refusal(f"--kv-dtype rotated: head dimension {dim} is no power of two")
    return (Plane(dtype="float16", width=dim),)


class TestRotatedKeys(KVDtypeContract):
    dtype = replace(
        HALF,
        name="rotated",
        key_planes=refuse_odd,
        open=lambda dim: KVCodec(keys=Rotated(dim), values=Half(dim), rotates_keys=True),
    )
    tolerance = 2**-11 + 1e-5
    value_tolerance = 2**-11 + 1e-6


class Coarse(Half):
    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (torch.round(rows.float()).half(),)


class WideScale(Half):
    """One scale for all rows of a call."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        scale = rows.float().abs().amax() if rows.numel() else 1.0
        return ((rows.float() / scale).half() * scale.half() if rows.numel() else rows.half(),)


class ZeroDivides(Half):
    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        scale = rows.float().abs().amax(-1, keepdim=True) if rows.numel() else 1.0
        return ((rows.float() / scale * scale).half(),)


class Transposes(Half):
    def decode(self, planes: tuple[Tensor, ...]) -> Tensor:
        return planes[0].as_strided(planes[0].shape, (planes[0].shape[1], 1)).float()


class Noisy(Half):
    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return ((rows.float() * (1 + 1e-3 * torch.rand(rows.shape))).half(),)


class InPlace(Half):
    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        rows.mul_(2)
        return (rows.half(),)


def contract(codec: type[Half], **changes: object) -> KVDtypeContract:
    class Broken(KVDtypeContract):
        dtype = replace(HALF, open=codec, **changes)
        tolerance = 2**-11 + 1e-6

    return Broken()


CAUGHT = [
    (Coarse, "test_the_round_trip_stays_within_the_tolerance", (64, "keys", torch.float32, 0.02)),
    (WideScale, "test_a_row_does_not_depend_on_its_neighbours", (64, "keys")),
    (ZeroDivides, "test_a_zero_row_decodes_to_zero", (64, "keys")),
    (Transposes, "test_stored_planes_may_be_strided_views", (64, "values")),
    (Noisy, "test_encoding_is_deterministic_and_leaves_its_input_alone", (64, "keys")),
    (InPlace, "test_encoding_is_deterministic_and_leaves_its_input_alone", (64, "keys")),
]


@pytest.mark.parametrize(("codec", "test", "args"), CAUGHT, ids=[codec.__name__ for codec, *_ in CAUGHT])
def test_a_wrong_codec_is_caught(codec: type[Half], test: str, args: tuple[object, ...]) -> None:
    with pytest.raises(AssertionError):
        getattr(contract(codec), test)(*args)


@pytest.mark.parametrize("plane", [Plane(dtype="bfloat16", width=64), Plane(dtype="float16", width=63)], ids=str)
def test_planes_that_are_not_what_encode_gives_are_caught(plane: Plane) -> None:
    with pytest.raises(AssertionError):
        contract(Half, key_planes=lambda dim: (plane,)).test_encode_gives_the_declared_planes(64, "keys")


def test_a_refusal_that_does_not_say_what_it_refuses_is_caught() -> None:
    def refuse(dim: int) -> tuple[Plane, ...]:
        raise Refusal("no")

    with pytest.raises(AssertionError):
        contract(Half, key_planes=refuse).test_a_refused_head_dimension_is_named(96)
    with pytest.raises(AssertionError):
        contract(Half, key_planes=refuse).test_one_of_the_common_head_dimensions_works()
