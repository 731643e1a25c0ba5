"""The Triton route of paged attention against the reference: on a GPU, else under the interpreter."""

import pytest
import torch

from ninfer_kernels import kv_int8
from ninfer_kernels.paged_attention import Rows, Stored, reference

G, R = 2, 3
PAGES = 40
# fp32: other orders of the same sums. bf16: operands and weights rounded to 8 bits, values reach 4
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

# (frontiers, tokens of each row in this step)
STEPS = [
    ([0], [1]),
    ([62, 63, 64, 65], [1, 1, 1, 1]),
    ([499, 0, 17], [1, 1, 1]),
    ([125, 3, 60], [4, 2, 7]),
    ([63], [64]),
    ([130], [70]),
    ([10, 200], [1, 80]),
]
IDS = [f"F{'-'.join(map(str, f))}-W{'-'.join(map(str, w))}" for f, w in STEPS]


def cast(dtype, D, seed, device):
    plane = torch.randn(PAGES, G, 64, D, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)
    return Stored((plane,), lambda planes: planes[0].float(), is_cast=True)


def int8(D, seed, device):
    from ninfer_kernels.kv_int8 import kernel

    rows = torch.randn(PAGES * G * 64, D, generator=torch.Generator().manual_seed(seed))
    planes = tuple(plane.view(PAGES, G, 64, -1).to(device) for plane in kv_int8.encode(rows))
    return Stored(planes, lambda planes: kv_int8.decode(*planes), device_decode=lambda: kernel.decode)


STORAGES = {
    "bf16": lambda D, seed, device: cast(torch.bfloat16, D, seed, device),
    "fp32": lambda D, seed, device: cast(torch.float32, D, seed, device),
    "int8": int8,
}


def rows_of(frontiers, widths, device):
    starts = [0]
    for width in widths:
        starts.append(starts[-1] + width)
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(sum(frontiers) + 1))
    table = order[: len(frontiers) * 8].view(len(frontiers), 8).contiguous().to(device)
    return Rows(tuple(starts), tuple(frontiers), table)


def queries(count, D, dtype, device):
    return torch.randn(count, G * R, D, generator=torch.Generator().manual_seed(3)).to(dtype).to(device)


def expected(q, keys, values, rows, scale):
    """The reference, on the CPU: a device's torch is no oracle."""
    sides = [Stored(tuple(plane.cpu() for plane in side.planes), side.decode) for side in (keys, values)]
    return reference.attend(q.cpu(), *sides, Rows(rows.starts, rows.frontiers, rows.page_table.cpu()), scale)


def dtypes():
    # a product of bf16 operands is wrong under the interpreter
    return [torch.float32, torch.bfloat16] if torch.cuda.is_available() else [torch.float32]


@pytest.mark.parametrize(("frontiers", "widths"), STEPS, ids=IDS)
@pytest.mark.parametrize("D", [64, 256], ids=lambda D: f"D{D}")
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_the_kernel_equals_the_reference(dtype, storage, D, frontiers, widths, device):
    from ninfer_kernels.paged_attention import gpu

    keys, values = STORAGES[storage](D, 1, device), STORAGES[storage](D, 2, device)
    rows, q, scale = rows_of(frontiers, widths, device), queries(sum(widths), D, dtype, device), D**-0.5
    assert gpu.serves(q, keys, values)
    result = gpu.attend(q, keys, values, rows, scale)
    torch.testing.assert_close(result.cpu(), expected(q, keys, values, rows, scale), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("shares", [1, 2, 5, 8])
def test_sharing_out_the_pages_changes_rounding_only(shares, device, monkeypatch):
    from ninfer_kernels.paged_attention import gpu

    keys, values = STORAGES["fp32"](64, 1, device), STORAGES["fp32"](64, 2, device)
    rows, q = rows_of([499, 0, 17], [1, 3, 1], device), queries(5, 64, torch.float32, device)
    monkeypatch.setattr(gpu, "share_count", lambda *_: shares)
    result = gpu.attend(q, keys, values, rows, 0.125)
    torch.testing.assert_close(result.cpu(), expected(q, keys, values, rows, 0.125), rtol=0, atol=1e-5)


def test_what_lies_outside_a_row_is_never_seen(device):
    from ninfer_kernels.paged_attention import gpu

    keys, values = STORAGES["fp32"](64, 1, device), STORAGES["fp32"](64, 2, device)
    rows, q = rows_of([62, 130], [1, 4], device), queries(5, 64, torch.float32, device)
    clean = gpu.attend(q, keys, values, rows, 0.125)
    seen = torch.zeros(PAGES, 64, dtype=torch.bool, device=device)
    for row in range(2):
        for position in range(rows.length(row)):
            seen[rows.page_table[row, position // 64], position % 64] = True
    for side in (keys, values):
        side.planes[0].masked_fill_(~seen[:, None, :, None], float("nan"))
    assert torch.equal(gpu.attend(q, keys, values, rows, 0.125), clean)


def test_a_nan_in_the_history_or_the_query_shows(device):
    from ninfer_kernels.paged_attention import gpu

    keys, values = STORAGES["fp32"](64, 1, device), STORAGES["fp32"](64, 2, device)
    rows, q = rows_of([100, 100], [1, 1], device), queries(2, 64, torch.float32, device)
    q[0, 4, 7] = float("nan")
    keys.planes[0][rows.page_table[1, 0], 1, 9, 0] = float("nan")
    nan = gpu.attend(q, keys, values, rows, 0.125).isnan().any(-1)
    assert nan[0].tolist() == [head == 4 for head in range(G * R)]
    assert nan[1].tolist() == [head >= R for head in range(G * R)]


def test_a_view_of_a_stacked_projection_is_read_in_place(device):
    from ninfer_kernels.paged_attention import gpu

    keys, values = STORAGES["fp32"](64, 1, device), STORAGES["fp32"](64, 2, device)
    rows = rows_of([70], [3], device)
    stacked = queries(3, 128, torch.float32, device).view(3, -1, 64)
    view = stacked[:, : G * R]
    assert torch.equal(
        gpu.attend(view, keys, values, rows, 0.125), gpu.attend(view.contiguous(), keys, values, rows, 0.125)
    )


def test_other_head_dimensions_and_unknown_codecs_are_left_to_torch(device):
    from ninfer_kernels.paged_attention import gpu

    known = STORAGES["fp32"](64, 1, device)
    unknown = Stored(known.planes, known.decode)
    assert gpu.serves(queries(1, 64, torch.float32, device), known, known)
    assert not gpu.serves(queries(1, 96, torch.float32, device), known, known)
    assert not gpu.serves(queries(1, 64, torch.float32, device), known, unknown)
