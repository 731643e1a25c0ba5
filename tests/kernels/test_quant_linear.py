import ctypes
import gc
import platform
import subprocess
import sys
import threading

import pytest
import torch

from ninfer_kernels import quant_linear
from ninfer_kernels.quant_linear import BLOCKS, Matrix, NativeLinear, TorchLinear, reference, routes, row_bytes

# where a block keeps its binary16 scales
SCALES = {"q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q4_k": [0, 2], "q6_k": [208]}
FORMATS = list(BLOCKS)
# columns; rows that are no whole tile, chunk or pair
SHAPES = [(1, 256), (2, 512), (3, 256), (63, 768), (130, 1536)]
SHAPE_IDS = [f"N{rows}-K{columns}" for rows, columns in SHAPES]

native = pytest.mark.skipif(quant_linear.why_not_native() is not None, reason="no native route on this machine")


def stored(format, rows, columns, seed=0):
    """Random codes under scales of ordinary size, a zero, a negative and a subnormal one among them."""
    generator = torch.Generator().manual_seed(seed)
    if format in ("bf16", "fp32"):
        dtype = torch.bfloat16 if format == "bf16" else torch.float32
        return torch.randn(rows * columns, generator=generator).to(dtype).view(torch.uint8)
    block = BLOCKS[format]
    blocks = torch.randint(0, 256, (rows * columns // block.values, block.bytes), generator=generator).byte()
    for offset in SCALES[format]:
        scale = torch.randn(len(blocks), generator=generator).mul_(0.01).half()
        for place, special in enumerate((0.0, -0.25, 2.0**-24)):
            scale[place :: max(7, len(blocks) // 5)] = special
        blocks[:, offset : offset + 2] = scale[:, None].view(torch.uint8)
    return blocks.flatten()


def activations(tokens, columns, seed=1):
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(seed))


def rounding_bound(x, weights):
    """What fp32 sums over K products may be off by, whatever their order."""
    return x.shape[1] * 2.0**-24 * (x.double().abs() @ weights.double().abs().T)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), SHAPES, ids=SHAPE_IDS)
def test_decode_is_the_reference_to_the_bit(format, rows, columns):
    data = stored(format, rows, columns)
    decoded = quant_linear.decode(format, data, rows, columns)
    expected = reference.decode(format, data, rows, columns)
    assert decoded.shape == (rows, columns)
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("format", FORMATS)
def test_decode_reads_bytes_at_any_address(format):
    data = stored(format, 5, 256)
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), data])[1:]
    assert torch.equal(quant_linear.decode(format, shifted, 5, 256), reference.decode(format, data, 5, 256))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), SHAPES, ids=SHAPE_IDS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 16, 33])
def test_the_product_is_the_decoded_product_to_rounding(format, rows, columns, tokens):
    data, x = stored(format, rows, columns), activations(tokens, columns)
    weights = reference.decode(format, data, rows, columns)
    out = quant_linear.linear(format, [Matrix(data, rows, columns)])(x)
    error = (out.double() - x.double() @ weights.double().T).abs()
    assert out.shape == (tokens, rows)
    assert (error <= rounding_bound(x, weights)).all()


@native
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_the_weights_multiplied_are_exactly_the_decoded_ones(format, tokens):
    rows, columns = 6, 256
    data = stored(format, rows, columns)
    weights = reference.decode(format, data, rows, columns)
    linear = quant_linear.linear(format, [Matrix(data, rows, columns)])
    for first in range(0, columns - tokens, 17):
        picks = torch.arange(first, first + tokens)
        x = torch.nn.functional.one_hot(picks, columns).float()
        assert torch.equal(linear(x), weights[:, picks].T)


@native
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(format, threads):
    rows, columns = 71, 768
    linear = quant_linear.linear(format, [Matrix(stored(format, rows, columns), rows, columns)])
    x, before = activations(37, columns), torch.get_num_threads()
    alone = torch.cat([linear(row[None]) for row in x])
    torch.set_num_threads(threads)
    try:
        for tokens in (2, 3, 4, 5, 6, 7, 8, 37):
            assert torch.equal(linear(x[:tokens]), alone[:tokens]), f"{tokens} rows together"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("format", ["q4_1", "q6_k"])
def test_stacked_matrices_are_their_outputs_side_by_side(format):
    parts = [Matrix(stored(format, rows, 512, seed=rows), rows, 512) for rows in (96, 5, 64)]
    together = quant_linear.linear(format, parts)
    x = activations(3, 512)
    assert together.rows == 165
    assert torch.equal(together(x), torch.cat([quant_linear.linear(format, [part])(x) for part in parts], dim=1))


def test_bf16_activations_give_bf16_of_the_fp32_result():
    linear = quant_linear.linear("q4_1", [Matrix(stored("q4_1", 40, 576), 40, 576)])
    x = activations(3, 576).bfloat16()
    out = linear(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, linear(x.float()).bfloat16())


def test_a_view_with_strides_is_read_as_it_looks():
    linear = quant_linear.linear("q8_0", [Matrix(stored("q8_0", 40, 576), 40, 576)])
    wide = activations(6, 2 * 576)
    assert torch.equal(linear(wide[::2, 576:]), linear(wide[::2, 576:].clone()))


def test_no_rows_give_no_rows():
    linear = quant_linear.linear("q8_0", [Matrix(stored("q8_0", 40, 64), 40, 64)])
    assert linear(torch.empty(0, 64)).shape == (0, 40)


def test_two_threads_may_call_one_matrix_at_once():
    linear = quant_linear.linear("q4_1", [Matrix(stored("q4_1", 200, 576), 200, 576)])
    inputs = [activations(tokens, 576, seed=tokens) for tokens in (1, 9)]
    expected = [linear(x) for x in inputs]
    wrong = []

    def call(x, y):
        wrong.extend(i for i in range(100) if not torch.equal(linear(x), y))

    threads = [threading.Thread(target=call, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_not_a_number_in_one_row_stays_there():
    linear = quant_linear.linear("q4_1", [Matrix(stored("q4_1", 40, 576), 40, 576)])
    x = activations(6, 576)
    clean = linear(x)
    x[2, 100] = float("nan")
    out = linear(x)
    assert out[2].isnan().all()
    keep = [0, 1, 3, 4, 5]
    assert torch.equal(out[keep], clean[keep])


@pytest.mark.parametrize("format", FORMATS)
def test_without_the_native_route_torch_gives_the_same_to_rounding(format, monkeypatch):
    data, x = stored(format, 63, 768), activations(5, 768)
    usual = quant_linear.linear(format, [Matrix(data, 63, 768)])(x)
    monkeypatch.setattr(routes, "why_not_native", lambda: "for this test")
    fallback = quant_linear.linear(format, [Matrix(data, 63, 768)])
    assert isinstance(fallback, TorchLinear)
    weights = reference.decode(format, data, 63, 768)
    assert ((fallback(x) - usual).abs() <= 2 * rounding_bound(x, weights)).all()
    assert torch.equal(quant_linear.decode(format, data, 63, 768), weights)


def test_an_absent_llvmlite_is_a_reason_and_not_a_failure():
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "from ninfer_kernels import quant_linear as q; import torch\n"
        "x = q.linear('q8_0', [q.Matrix(torch.zeros(34, dtype=torch.uint8), 1, 32)])\n"
        "print(type(x).__name__, '|', q.why_not_native())"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.startswith("TorchLinear | ")
    assert "llvmlite" in out


@native
def test_with_it_the_native_route_is_taken():
    assert isinstance(quant_linear.linear("q8_0", [Matrix(stored("q8_0", 4, 64), 4, 64)]), NativeLinear)


@pytest.mark.parametrize(("format", "columns"), [("q4_0", 33), ("q4_k", 128), ("q8_0", 0), ("q6_k", -256)])
def test_a_row_of_part_of_a_block_is_refused(format, columns):
    with pytest.raises(ValueError, match="whole number"):
        row_bytes(format, columns)


def test_bytes_that_are_not_the_matrix_are_refused():
    data = stored("q8_0", 4, 64)
    for bad in (data[:-1], data[:, None].expand(-1, 2)[:, 0].unflatten(0, (4, -1))[:2]):
        with pytest.raises(ValueError, match="bytes are not"):
            quant_linear.linear("q8_0", [Matrix(bad, 4, 64)])
        with pytest.raises(ValueError, match="bytes are not"):
            quant_linear.decode("q8_0", bad, 4, 64)
    with pytest.raises(ValueError, match="columns"):
        quant_linear.linear("q8_0", [Matrix(data, 4, 64), Matrix(data, 8, 32)])


def test_activations_of_another_width_are_refused():
    linear = quant_linear.linear("q8_0", [Matrix(stored("q8_0", 4, 64), 4, 64)])
    for x in (torch.zeros(2, 32), torch.zeros(64)):
        with pytest.raises(ValueError, match=r"\[T, 64\] is expected"):
            linear(x)


def test_functions_outlive_others_that_were_compiled_before_them():
    """A code generator belongs to what was compiled with it: another's end must not take it along."""
    from ninfer_kernels.native import Code

    module = "define i64 @seven() {{ ret i64 {} }}"
    for number in range(8):
        code = Code(module.format(number))
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("seven"))() == number
        del code
        gc.collect()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="distances of x86-64")
def test_code_reaches_its_constants_however_far_away_they_are():
    """The loader puts both where there is room; beside the reservations of a GPU that may be 2 GiB apart and more."""
    import llvmlite.binding as llvm

    from ninfer_kernels.native import machine

    module = "define double @half(double %a) { %r = fmul double %a, 0x3FE8000000000000\nret double %r }"
    assembly = machine().emit_assembly(llvm.parse_assembly(module))
    assert "movabs" in assembly and "(%rip)" not in assembly
