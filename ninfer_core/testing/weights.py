"""What every stored weight format must do."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from ninfer_core.api import EncodedTensor, WeightFormat
from ninfer_core.api.weights import Shape


class WeightFormatContract:
    """Subclass with ``format``, the ``shapes`` it can hold and, where it has no encoder, ``sample``.

    ``refused_shapes``: shapes ``encoded_bytes`` must refuse. ``tolerance``: for a format with an encoder, the largest
    error of a decoded element as a share of the tensor's largest. ``cpu_tolerance``: the largest error of the packed
    CPU route, as a share of the largest output (only the order of summation may differ). ``gpu_tolerance``: that of the
    operation on a GPU, whose result, and for many rows whose weights, are rounded to bf16. ``gpu``: the device it is
    tried on; None: the CUDA device, where there is one.
    """

    format: ClassVar[WeightFormat]
    shapes: ClassVar[tuple[Shape, ...]] = ((4, 256), (7, 512), (1, 256))
    refused_shapes: ClassVar[tuple[Shape, ...]] = ()
    tolerance: ClassVar[float] = 0.0
    cpu_tolerance: ClassVar[float] = 1e-5
    gpu_tolerance: ClassVar[float] = 2**-7
    gpu: ClassVar[torch.device | None] = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "shape" in metafunc.fixturenames:
            metafunc.parametrize("shape", self.shapes, ids=["x".join(map(str, shape)) for shape in self.shapes])

    def sample(self, shape: Shape, seed: int) -> EncodedTensor:
        """Some tensor of this format."""
        assert self.format.quantize is not None, "a format without an encoder needs `sample`"
        return self.format.quantize(random_tensor(shape, seed))

    def test_the_size_is_what_the_format_says(self, shape: Shape) -> None:
        tensor = self.sample(shape, 1)
        assert tensor.format == self.format.name
        assert tensor.layout == self.format.layout
        assert tuple(tensor.shape) == shape
        assert tensor.data.dtype == torch.uint8
        assert tensor.data.dim() == 1
        assert tensor.data.numel() == self.format.encoded_bytes(shape)

    def test_a_shape_it_cannot_hold_is_refused_in_one_line(self) -> None:
        for shape in self.refused_shapes:
            with pytest.raises(ValueError) as refusal:
                self.format.encoded_bytes(shape)
            assert "\n" not in str(refusal.value)
            assert str(refusal.value)

    def test_decode_gives_fp32_of_the_logical_shape(self, shape: Shape) -> None:
        tensor = self.sample(shape, 2)
        before = tensor.data.clone()
        decoded = self.format.decode(tensor)
        assert decoded.dtype == torch.float32
        assert tuple(decoded.shape) == shape
        assert torch.isfinite(decoded).all()
        assert torch.equal(decoded, self.format.decode(tensor))
        assert torch.equal(tensor.data, before), "decode wrote into the stored bytes"

    def test_taking_rows_equals_decoding_and_picking_them(self, shape: Shape) -> None:
        tensor = self.sample(shape, 3)
        decoded, last = self.format.decode(tensor), shape[0] - 1
        for rows in ([0], [last], [last, 0], [0, 0, last], list(reversed(range(shape[0])))):
            taken = self.format.take_rows(tensor, rows)
            assert tuple(taken.shape) == (len(rows), *shape[1:])
            assert taken.format == tensor.format
            assert torch.equal(self.format.decode(taken), decoded[rows]), f"rows {rows}"

    def test_the_encoder_stays_within_its_tolerance(self, shape: Shape) -> None:
        if self.format.quantize is None:
            pytest.skip(f"{self.format.name} has no encoder")
        x = random_tensor(shape, 4)
        decoded = self.format.decode(self.format.quantize(x))
        assert (decoded - x).abs().max() <= self.tolerance * x.abs().max()
        zero = self.format.decode(self.format.quantize(torch.zeros(shape)))
        assert not zero.any(), "zeros do not stay zero"

    @pytest.mark.parametrize("tokens", [1, 2, 3, 17, 64], ids=lambda tokens: f"T{tokens}")
    def test_the_packed_route_multiplies_by_the_decoded_weights(self, shape: Shape, tokens: int) -> None:
        if self.format.cpu_linear is None or len(shape) != 2:
            pytest.skip(f"{self.format.name} has no packed route for {shape}")
        parts = [self.sample(shape, 5), self.sample(shape, 6)]
        linear = self.format.cpu_linear(parts)
        if linear is None:
            pytest.skip(f"{self.format.name} has no packed route for {shape}")
        assert linear.rows == 2 * shape[0]
        x = random_tensor((tokens, shape[1]), 7)
        dense = torch.cat([self.format.decode(part) for part in parts]).double()
        for activations in (x, x.bfloat16()):
            out = linear(activations)
            assert out.dtype == activations.dtype
            assert tuple(out.shape) == (tokens, linear.rows)
            expected = activations.double() @ dense.T
            rounding = 2**-8 if activations.dtype == torch.bfloat16 else 0.0
            assert (out.double() - expected).abs().max() <= (self.cpu_tolerance + rounding) * expected.abs().max()

    @pytest.mark.parametrize("tokens", [1, 3, 17], ids=lambda tokens: f"T{tokens}")
    def test_the_operation_on_a_gpu_multiplies_by_the_decoded_weights(self, shape: Shape, tokens: int) -> None:
        linear, dense = self.gpu_operation(shape)
        assert linear.rows == len(dense)
        x = random_tensor((tokens, shape[1]), 7)
        dtypes = (torch.bfloat16, torch.float32) if self.gpu is None else (torch.float32,)
        for dtype in dtypes:
            out = linear(x.to(self._gpu(), dtype))
            assert out.dtype == dtype
            assert tuple(out.shape) == (tokens, linear.rows)
            expected = x.to(dtype).double() @ dense.double().T
            assert (out.cpu().double() - expected).abs().max() <= self.gpu_tolerance * expected.abs().max()
            if hasattr(linear, "into"):
                wide = torch.zeros(tokens, linear.rows + 2, dtype=dtype, device=self._gpu())
                linear.into(x.to(self._gpu(), dtype), wide[:, 1:-1])
                assert torch.equal(wide[:, 1:-1], out)
                assert not wide[:, [0, -1]].any(), "written beside its place"

    def test_the_operation_on_a_gpu_gives_rows_of_the_decoded_weights(self, shape: Shape) -> None:
        linear, dense = self.gpu_operation(shape)
        if not hasattr(linear, "take_rows"):
            pytest.skip(f"{self.format.name} is no table on a GPU")
        ids = torch.tensor([linear.rows - 1, 0, linear.rows - 1])
        taken = linear.take_rows(ids.to(self._gpu()), torch.float32).cpu()
        assert taken.dtype == torch.float32
        assert ((taken - dense[ids]).abs() <= 2**-8 * dense[ids].abs()).all()

    def gpu_operation(self, shape: Shape) -> tuple[Any, Tensor]:
        """Two matrices as one operation, and what they decode to."""
        if self.format.gpu_linear is None or len(shape) != 2:
            pytest.skip(f"{self.format.name} becomes dense on a GPU")
        if self.gpu is None and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        parts = [self.sample(shape, 5), self.sample(shape, 6)]
        linear = self.format.gpu_linear(parts, self._gpu())
        if linear is None:
            pytest.skip(f"{self.format.name} has no operation for {shape} on {self._gpu()}")
        return linear, torch.cat([self.format.decode(part) for part in parts])

    def _gpu(self) -> torch.device:
        return torch.device("cuda") if self.gpu is None else self.gpu


def random_tensor(shape: Shape, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
