"""The descriptor: layout ``block_scale_k16_m128x4_v1`` (``spec/artifact.md`` §11.3, §12.3).

After codes and scales come the divisors, one for each equal share of the rows. Rows taken out of a matrix may be any
number; in memory their last tile of scales is filled up, which a file never has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ninfer_core.api import EncodedTensor, Rows, WeightFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.api.nn import Linear

LAYOUT = "block_scale_k16_m128x4_v1"
KIND = "nvfp4"
METHOD = "nvfp4_maxabs"
SHARE_ROWS = 128
DIVISOR_BYTES = 4


def encoded_bytes(shape: tuple[int, ...]) -> int:
    """With one divisor. ValueError for a shape that scale tiles do not cover exactly."""
    from ninfer_kernels.quant_linear.planes import layout

    if len(shape) != 2 or min(shape) <= 0 or shape[0] % SHARE_ROWS or shape[1] % 64:
        raise ValueError(f"nvfp4 holds matrices of a multiple of 128 rows and of 64 columns, not {list(shape)}")
    return layout(KIND, *shape)[1] + DIVISOR_BYTES


def split(tensor: EncodedTensor) -> tuple[Tensor, Tensor]:
    """Codes and scales as stored, and the divisor of every row [N] fp32."""
    import torch

    rows = tensor.shape[0]
    end = tensor.data.numel() - DIVISOR_BYTES * tensor.divisors
    divisors = tensor.data[end:].clone().view(torch.float32)
    return tensor.data[:end], divisors.repeat_interleave(rows // tensor.divisors)


def decode(tensor: EncodedTensor) -> Tensor:
    """e2m1(code) * e4m3(scale) / divisor."""
    from ninfer_kernels import quant_linear

    data, divisors = split(tensor)
    return quant_linear.decode(KIND, data, *tensor.shape).div_(divisors[:, None])


def take_rows(tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    """The encoded rows in that order, each with the divisor it had. IndexError for a row that is missing."""
    import torch

    from ninfer_kernels.quant_linear import stored_rows

    data, divisors = split(tensor)
    taken = stored_rows.take(KIND, data, *tensor.shape, rows)
    kept = divisors[torch.as_tensor(rows, dtype=torch.int64)]
    if bool((kept == kept[0]).all()):
        kept = kept[:1]
    return joined(taken, kept, (len(rows), tensor.shape[1]))


def joined(data: Tensor, divisors: Tensor, shape: tuple[int, int]) -> EncodedTensor:
    """A tensor of stored codes and scales, and of as many divisors as there are shares."""
    import torch

    whole = torch.cat([data, divisors.contiguous().view(torch.uint8)])
    return EncodedTensor(format=KIND, layout=LAYOUT, shape=shape, data=whole, divisors=len(divisors))


def check(tensor: EncodedTensor) -> None:
    """ValueError for a divisor that is not finite and above zero."""
    import torch

    words = tensor.data[tensor.data.numel() - DIVISOR_BYTES * tensor.divisors :].clone().view(torch.float32)
    for i, divisor in enumerate(words.tolist()):
        if not (math.isfinite(divisor) and divisor > 0):
            raise ValueError(f"weight divisor {i} is not finite and positive")


def encode(shape: tuple[int, ...], rows: Rows) -> EncodedTensor:
    """The matrix of these rows with one divisor; they are walked twice."""
    from ninfer_kernels.quant_linear import stored_rows

    from . import encoder

    encoded_bytes(shape)
    divisor = encoder.divisor_of(rows())
    data = stored_rows.fill(KIND, *shape, (encoder.encode_rows(x, divisor) for x in rows()))
    return joined(data, divisor.view(1), (shape[0], shape[1]))


def quantize(x: Tensor) -> EncodedTensor:
    return encode(tuple(x.shape), lambda: [x])


def cpu_linear(tensors: Sequence[EncodedTensor]) -> Linear:
    """The stacked rows as one operation on the stored codes; the divisors are applied to its sums."""
    from .linear import DividedLinear

    return DividedLinear(tensors)


def gpu_linear(tensors: Sequence[EncodedTensor], device: torch.device) -> Linear | None:
    """The stacked rows as one operation on the stored codes; None where nothing can run it."""
    from ninfer_kernels import tiled_linear
    from ninfer_kernels.quant_linear import stored_rows

    stored = []
    for tensor in tensors:
        data, divisors = split(tensor)
        codes, scales = stored_rows.split(KIND, data, *tensor.shape)
        # the kernels' numbers are 2 ** -8 of what codes and scales mean
        stored.append([codes, scales, (2**8 / divisors)[:, None]])
    return tiled_linear.linear(KIND, stored, tensors[0].shape[1], device)


FORMATS = (
    WeightFormat(
        name=KIND,
        layout=LAYOUT,
        encoded_bytes=encoded_bytes,
        decode=decode,
        take_rows=take_rows,
        quantize=quantize,
        encoders={METHOD: encode},
        cpu_linear=cpu_linear,
        gpu_linear=gpu_linear,
        check=check,
        divisor_rows=SHARE_ROWS,
        divisor_bytes=DIVISOR_BYTES,
        activations="AllowA8",
    ),
)
