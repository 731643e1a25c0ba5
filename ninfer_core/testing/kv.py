"""What every KV storage must do."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch
from torch import Tensor

from ninfer_core.api import KVDtype, Plane, Refusal, RowCodec

from .cache import hadamard, open_codec

if TYPE_CHECKING:
    from ninfer_kernels.paged_attention import Stored

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

    def test_device_functions_do_what_encode_and_decode_do(self, head_dim: int) -> None:
        """On a GPU, else under Triton's interpreter (``TRITON_INTERPRET=1``)."""
        if not self._accepts(head_dim):
            pytest.skip(f"{self.dtype.name} refuses head dimension {head_dim}")
        where = kernels_run_on()
        from ninfer_kernels.paged_attention import Rows, gpu, gpu_store, reference, store

        host, device = self._stored(head_dim, "cpu"), self._stored(head_dim, where)
        k, v = (rows(140, head_dim).bfloat16().float().view(70, 2, head_dim) * scale for scale in (1.0, -0.5))
        at = torch.randperm(128, generator=torch.Generator().manual_seed(head_dim))[:70]
        store.reference(k, v, *host, store.Slots(at))
        if gpu_store.serves(k, v, *device):
            gpu_store.store(k.to(where), v.to(where), *device, at.to(where))
            for mine, theirs in zip(device, host, strict=True):
                assert_same(tuple(plane.cpu() for plane in mine.planes), theirs.planes)
        for mine, theirs in zip(device, host, strict=True):
            for plane, stored in zip(mine.planes, theirs.planes, strict=True):
                plane.copy_(stored)
        q = rows(4, head_dim).view(1, 4, head_dim)
        if gpu.serves(q, *device):
            seen = [Rows((0, 1), (99,), torch.tensor([[1, 0]], device=at)) for at in (where, "cpu")]
            got = gpu.attend(q.to(where), *device, seen[0], head_dim**-0.5).cpu()
            torch.testing.assert_close(got, reference.attend(q, *host, seen[1], head_dim**-0.5), rtol=0, atol=1e-4)

    def _stored(self, head_dim: int, device: str) -> tuple[Stored, Stored]:
        """Two pages of two KV heads: keys and values."""
        from ninfer_kernels.paged_attention import Stored

        sides = []
        for part in PARTS:
            codec = self._side(part, head_dim)
            planes = tuple(
                torch.zeros(2, 2, 64, plane.width, dtype=getattr(torch, plane.dtype), device=device)
                for plane in self._planes(part, head_dim)
            )
            fused = {name: getattr(codec, name, None) for name in ("device_decode", "device_encode")}
            is_cast = getattr(codec, "is_cast", False)
            sides.append(Stored(planes, codec.decode, is_cast=is_cast, encode=codec.encode, **fused))
        return sides[0], sides[1]

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


def kernels_run_on() -> str:
    """Where Triton kernels run here; without such a place the test is skipped."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no GPU, and TRITON_INTERPRET is not 1")
    return "cpu"


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
