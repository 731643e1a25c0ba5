"""The registry of ``bench/ops.py``: every launch that chooses its blocks, at shapes that it takes."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from ninfer_kernels.tuning import Facts, input_bytes

ROOT = Path(__file__).resolve().parents[3]
H200 = Facts(name="NVIDIA H200", capability=(9, 0), multiprocessors=132, shared_bytes=227 << 10, cache_bytes=50 << 20)


@pytest.fixture(scope="module")
def ops():
    spec = importlib.util.spec_from_file_location("ops_bench", ROOT / "bench" / "ops.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_op_is_found_takes_its_shapes_and_has_its_tests(ops):
    for op in ops.OPS:
        tunable = op.tunable()
        assert (ROOT / "tests" / "kernels" / op.tests).is_file()
        for shape in op.shapes:
            chosen = tunable.built_in["NVIDIA H200"](shape, H200)
            assert list(chosen) == list(tunable.default(shape, H200))


def test_a_row_counts_the_bytes_of_packed_matrices_too(ops):
    op = next(op for op in ops.OPS if op.name == "tiled_linear.q4_g64")
    x, tiles = op.tunable().inputs({"N": 128, "K": 512}, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert tiles.nbytes >= 128 * 512 // 2
    assert input_bytes((x, tiles)) == x.nbytes + tiles.nbytes


def test_it_needs_a_gpu(ops):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit, match="CUDA device"):
        ops.main([])
