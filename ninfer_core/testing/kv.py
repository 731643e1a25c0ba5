"""What every KV storage must do."""

from __future__ import annotations

import math
import re
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from ninfer_core.api import KVDtype, Plane, Refusal, RowCodec

from .cache import hadamard, open_codec

PARTS = ("keys", "values")


class KVDtypeContract:
    """Subclass with ``dtype`` and ``tolerance``.

    ``tolerance``: the largest error of a decoded element as a share of the largest element of its row, in the domain
    ``decode`` gives (rotated, where the storage rotates). ``value_tolerance`` where values are coarser than keys.
    ``head_dims``: the dimensions to try; each either works or is refused with a message that names storage and
    dimension.
    """

    dtype: ClassVar[KVDtype]
    tolerance: ClassVar[float]
    value_tolerance: ClassVar[float | None] = None
    head_dims: ClassVar[tuple[int, ...]] = (64, 96, 128, 256)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "head_dim" in metafunc.fixturenames:
            metafunc.parametrize("head_dim", self.head_dims, ids=[f"D{dim}" for dim in self.head_dims])
        if "part" in metafunc.fixturenames:
            metafunc.parametrize("part", PARTS)

    def test_the_descriptor_is_usable_on_the_command_line(self) -> None:
        assert re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", self.dtype.name), "--kv-dtype names are lower case, without spaces"
        assert self.dtype.summary
        assert "\n" not in self.dtype.summary

    def test_one_of_the_common_head_dimensions_works(self) -> None:
        assert any(self._accepts(dim) for dim in self.head_dims), f"none of {self.head_dims} is accepted"

    def test_a_refused_head_dimension_is_named(self, head_dim: int) -> None:
        if self._accepts(head_dim):
            self._side("keys", head_dim)
            return
        with pytest.raises(Refusal) as refusal:
            self._planes("keys", head_dim)
            self._planes("values", head_dim)
        assert self.dtype.name in str(refusal.value)
        assert str(head_dim) in str(refusal.value)
        assert "\n" not in str(refusal.value)

    def test_encode_gives_the_declared_planes(self, head_dim: int, part: str) -> None:
        planes, codec = self._open(part, head_dim)
        stored = codec.encode(rows(7, head_dim))
        assert len(stored) == len(planes)
        for tensor, plane in zip(stored, planes, strict=True):
            assert tensor.dtype == getattr(torch, plane.dtype), f"declared {plane}, got {tensor.dtype}"
            assert tuple(tensor.shape) == (7, plane.width), f"declared {plane}, got {tuple(tensor.shape)}"
        declared = sum(plane.width * getattr(torch, plane.dtype).itemsize for plane in planes)
        assert sum(tensor.nbytes for tensor in stored) == 7 * declared
        assert 0 < declared <= 4 * head_dim, "a row takes more bytes than fp32 would"

    def test_no_rows_encode_and_decode_to_no_rows(self, head_dim: int, part: str) -> None:
        planes, codec = self._open(part, head_dim)
        stored = codec.encode(rows(0, head_dim))
        assert [tuple(tensor.shape) for tensor in stored] == [(0, plane.width) for plane in planes]
        assert tuple(codec.decode(stored).shape) == (0, head_dim)

    @pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    @pytest.mark.parametrize("scale", [0.02, 1.0, 300.0])
    def test_the_round_trip_stays_within_the_tolerance(
        self, head_dim: int, part: str, source: torch.dtype, scale: float
    ) -> None:
        _, codec = self._open(part, head_dim)
        x = (rows(65, head_dim) * scale).to(source)
        decoded = codec.decode(codec.encode(x))
        assert decoded.dtype == torch.float32
        assert tuple(decoded.shape) == tuple(x.shape)
        expected = self._stored_domain(part, head_dim, x)
        error = (decoded - expected).abs().amax(-1) / expected.abs().amax(-1)
        assert error.max().item() <= self._tolerance(part)

    def test_a_zero_row_decodes_to_zero(self, head_dim: int, part: str) -> None:
        _, codec = self._open(part, head_dim)
        x = rows(3, head_dim)
        x[1] = 0
        decoded = codec.decode(codec.encode(x))
        assert torch.isfinite(decoded).all()
        assert not decoded[1].any()

    def test_encoding_is_deterministic_and_leaves_its_input_alone(self, head_dim: int, part: str) -> None:
        _, codec = self._open(part, head_dim)
        x = rows(9, head_dim)
        before = x.clone()
        assert_same(codec.encode(x), codec.encode(x))
        assert torch.equal(x, before)

    def test_a_row_does_not_depend_on_its_neighbours(self, head_dim: int, part: str) -> None:
        _, codec = self._open(part, head_dim)
        x = rows(9, head_dim)
        x[4] *= 1000
        together = codec.encode(x)
        for i in range(9):
            assert_same(tuple(plane[i : i + 1] for plane in together), codec.encode(x[i : i + 1]))
        order = torch.tensor([3, 8, 0, 4, 4, 1])
        assert_same(tuple(plane[order] for plane in together), codec.encode(x[order]))

    def test_rows_may_be_strided_views(self, head_dim: int, part: str) -> None:
        _, codec = self._open(part, head_dim)
        x_RGD = rows(10, head_dim).reshape(5, 2, head_dim)
        assert_same(codec.encode(x_RGD[:, 1]), codec.encode(x_RGD[:, 1].contiguous()))

    def test_stored_planes_may_be_strided_views(self, head_dim: int, part: str) -> None:
        _, codec = self._open(part, head_dim)
        stored = codec.encode(rows(6, head_dim))
        strided = []
        for plane in stored:
            wide = plane.new_empty(6, 3, plane.shape[1])
            wide[:, 1] = plane
            strided.append(wide[:, 1])
        assert torch.equal(codec.decode(tuple(strided)), codec.decode(stored))

    def _accepts(self, head_dim: int) -> bool:
        try:
            self._planes("keys", head_dim)
            self._planes("values", head_dim)
        except Refusal:
            return False
        return True

    def _planes(self, part: str, head_dim: int) -> tuple[Plane, ...]:
        planes = self.dtype.value_planes if part == "values" and self.dtype.value_planes else self.dtype.key_planes
        return planes(head_dim)

    def _side(self, part: str, head_dim: int) -> RowCodec:
        codec = open_codec(self.dtype, head_dim)
        return codec.keys if part == "keys" else codec.values

    def _open(self, part: str, head_dim: int) -> tuple[tuple[Plane, ...], RowCodec]:
        if not self._accepts(head_dim):
            pytest.skip(f"{self.dtype.name} refuses head dimension {head_dim}")
        return self._planes(part, head_dim), self._side(part, head_dim)

    def _tolerance(self, part: str) -> float:
        return self.value_tolerance if part == "values" and self.value_tolerance is not None else self.tolerance

    def _stored_domain(self, part: str, head_dim: int, x: Tensor) -> Tensor:
        codec = open_codec(self.dtype, head_dim)
        rotated = codec.rotates_keys if part == "keys" else codec.rotates_values
        return hadamard(x.float()) if rotated else x.float()


def rows(count: int, head_dim: int) -> Tensor:
    """Rows such as keys are: mostly normal, one flat, one with a single large element, sizes a decade apart."""
    x = torch.randn(count, head_dim, generator=torch.Generator().manual_seed(count * 1000 + head_dim))
    x *= torch.logspace(-0.5, 0.5, max(count, 1))[:count, None]
    if count > 2:
        x[0] = math.pi / 4
        x[2, head_dim // 3] = 20.0
    return x


def assert_same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        # bytes, so that fp8 planes compare too
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
