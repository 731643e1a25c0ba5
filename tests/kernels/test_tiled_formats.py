"""The kit's contract of an operation on a GPU, for the formats that have one; interpreted where there is no GPU."""

import pytest
import torch

import ninfer_groupwise_int
import ninfer_nvfp4
import ninfer_row_fp8
from ninfer_core.testing import WeightFormatContract

FORMATS = {
    form.name: form
    for plugin in (ninfer_groupwise_int, ninfer_row_fp8, ninfer_nvfp4)
    for form in plugin.ninfer_weight_formats()
    if form.gpu_linear is not None
}
GPU_TESTS = [name for name in vars(WeightFormatContract) if name.startswith("test_the_operation_on_a_gpu")]
INTERPRETED = None if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels(device, monkeypatch):
    if INTERPRETED is not None:
        monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)


def tried(name, shapes, base=WeightFormatContract):
    """The contract's tests of the operation on a GPU alone; the plugin's own suite has the others."""
    left_out = {test: None for test in dir(base) if test.startswith("test_") and test not in GPU_TESTS}
    members = {"format": FORMATS[name], "shapes": shapes, "gpu": INTERPRETED, "gpu_tolerance": TOLERANCE, **left_out}
    return type(f"Test_{name}", (base,), members)


TOLERANCE = 2**-7 if INTERPRETED is None else 1e-5
ANY = ((1, 256), (33, 130))


class TestQ4(tried("q4_g64_fp16", ANY)):
    pass


class TestQ5(tried("q5_g64_fp16", ANY)):
    pass


class TestQ6(tried("q6_g64_fp16", ANY)):
    pass


class TestQ8(tried("q8_g32_fp16", ANY)):
    pass


class TestRowFP8(tried("fp8_e4m3fn_row_bf16", ANY)):
    pass


class TestRowFP8Half(tried("fp8_e4m3fn_row_fp16", ANY)):
    pass


class TestNVFP4(tried("nvfp4", ((128, 64), (128, 192)))):
    pass


def test_every_format_is_tried_here():
    assert len(FORMATS) == 7
    assert len(GPU_TESTS) == 2


def test_divisors_of_stacked_matrices_stay_with_their_rows():
    from ninfer_nvfp4.formats import joined, split

    form = FORMATS["nvfp4"]
    one = form.quantize(torch.randn(256, 64, generator=torch.Generator().manual_seed(1)))
    stacked = joined(split(one)[0], torch.tensor([3.0, 700.0]), (256, 64))
    linear = form.gpu_linear([stacked, one], INTERPRETED or torch.device("cuda"))
    dense = torch.cat([form.decode(stacked), form.decode(one)])
    ids = torch.arange(0, 512, 37)
    rows = linear.take_rows(ids.to(linear.tiles.codes.device), torch.float32)
    torch.testing.assert_close(rows.cpu(), dense[ids], rtol=1e-6, atol=0)
