"""Dense products: the routes against the reference."""

import pytest
import torch

from ninfer_kernels.linear import linear, reference

SHAPES = [(1, 1, 16), (1, 70, 300), (1, 4097, 1024), (2, 64, 128), (5, 70, 300), (16, 129, 1000)]
IDS = [f"T{T}-N{N}-K{K}" for T, N, K in SHAPES]
# half floats: one rounding of the result, which is about 1
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def operands(T, N, K, dtype):
    generator = torch.Generator().manual_seed(N + K)
    x = torch.randn(T, K, generator=generator).to(dtype)
    return x, (torch.randn(N, K, generator=generator) * K**-0.5).to(dtype)


def dtypes():
    # a product of bf16 operands is wrong under the interpreter
    return [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


@pytest.mark.parametrize(("T", "N", "K"), SHAPES, ids=IDS)
@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_the_kernel_equals_the_reference(dtype, T, N, K, device):
    from ninfer_kernels.linear import gpu

    x, weight = operands(T, N, K, dtype)
    result = gpu.linear(x.to(device), weight.to(device))
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu().float(), reference.linear(x.float(), weight), rtol=0, atol=TOLERANCE[dtype])


ORDERS = [(1, 64, 128, 4, 3), (4, 16, 64, 4, 3), (8, 32, 64, 8, 2)]


@pytest.mark.parametrize(("GROUPS", "BN", "BK", "warps", "stages"), ORDERS, ids=str)
@pytest.mark.parametrize(("T", "N", "K"), [(1, 70, 300), (8, 129, 1000), (9, 33, 512), (16, 16, 24)], ids=str)
def test_every_kind_of_blocks_equals_the_reference_and_keeps_a_rows_bits(
    T, N, K, GROUPS, BN, BK, warps, stages, device
):
    from ninfer_kernels.linear import gpu

    blocks = {"GROUPS": GROUPS, "BN": BN, "BK": BK, "num_warps": warps, "num_stages": stages}
    for dtype in dtypes():
        x, weight = operands(T, N, K, dtype)
        result = gpu.launch(x.to(device), weight.to(device), blocks)
        alone = gpu.launch(x[T - 1 :].to(device), weight.to(device), blocks)
        assert torch.equal(result[T - 1 :], alone)
        exact = reference.linear(x.float(), weight)
        torch.testing.assert_close(result.cpu().float(), exact, rtol=0, atol=TOLERANCE[dtype])


def test_rows_of_a_wider_tensor_are_read_in_place(device):
    from ninfer_kernels.linear import gpu

    x, weight = operands(4, 70, 300, torch.float16)
    wide = torch.cat([x, x], dim=1).to(device)
    assert torch.equal(gpu.linear(wide[:, 300:], weight.to(device)), gpu.linear(x.to(device), weight.to(device)))


@pytest.mark.parametrize("T", [0, 1, 3, 40])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_route_keeps_the_dtype_of_the_activations(x_dtype, w_dtype, T):
    x, weight = operands(T, 33, 48, x_dtype)[0], operands(T, 33, 48, w_dtype)[1]
    result = linear(x, weight)
    assert result.dtype == x_dtype
    assert result.shape == (T, 33)
    torch.testing.assert_close(
        result.float(), reference.linear(x.float(), weight), rtol=0, atol=2 * TOLERANCE[torch.bfloat16]
    )
