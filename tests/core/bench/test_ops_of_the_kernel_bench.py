"""The registry of ``bench/ops.py``: every GPU kernel is in it, and gives what its definition gives."""

from __future__ import annotations

import functools
import importlib.util
import math
import re
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ninfer_core.cli.rows import Row
from ninfer_kernels import launching
from ninfer_kernels.tuning import Facts, Tunable
from ninfer_qwen35 import QWEN35
from ninfer_qwen35.config import read

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the bench itself checks every case there")

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "kernels" / "ninfer_kernels"
ON = torch.device("cpu")
H200 = Facts(name="NVIDIA H200", capability=(9, 0), multiprocessors=132, shared_bytes=227 << 10, cache_bytes=50 << 20)
SMALL = {
    "vocab_size": 4500,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
SPARSE = {
    "hidden_size": 48,
    "num_attention_heads": 2,
    "linear_num_value_heads": 3,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}


def loaded() -> ModuleType:
    """``bench/ops.py`` as it runs: its folder is the first place modules are looked for."""
    sys.path.insert(0, str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("ops_bench", ROOT / "bench" / "ops.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


OPS = loaded()
from kernel_ops import Sizes, case, cases, published  # noqa: E402


def small() -> Sizes:
    """Sizes for the interpreter, which takes milliseconds for a program; in fp32, since its products of bf16 are
    wrong."""
    import ninfer_kv_bf16
    import ninfer_kv_int8

    models = []
    for name, more in (("27b", {"intermediate_size": 96}), ("35b-a3b", SPARSE)):
        models.append(read({**QWEN35.geometries[name](4), **SMALL, **more}))
    storages = {one.name: one for plugin in (ninfer_kv_bf16, ninfer_kv_int8) for one in plugin.ninfer_kv_dtypes()}
    return Sizes(
        dense=models[0], sparse=models[1], storages={name: storages[name] for name in ("fp32", "int8")},
        dtype=torch.float32, rows=2, widths=(2, 3), chunk=20, long=30, contexts=(3, 70), mixed=(1, 2, 17, 18),
        table_rows=70, decoded=70,
    )  # fmt: skip


SIZES = small()
CASES = cases(SIZES)


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Kernels are launched, and what searches measure is small."""
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    monkeypatch.setattr("ninfer_kernels.paged_attention.blocks.SEARCHED_CONTEXT", 70)
    monkeypatch.setattr("ninfer_kernels.paged_attention.blocks.SEARCHED_CHUNK", 6)
    monkeypatch.setattr("ninfer_kernels.moe.many_blocks.SEARCHED_TOKENS", 20)
    monkeypatch.setattr("ninfer_kernels.moe.many_blocks.SEARCHED_EXPERTS", 4)
    monkeypatch.setattr("ninfer_kernels.moe.many_blocks.SEARCHED_CHOSEN", 2)
    monkeypatch.setattr("ninfer_kernels.moe.packed.SOME_TOKENS", 16)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for one in value for x in tensors(one)]
    if is_dataclass(value):
        return [x for one in fields(value) for x in tensors(getattr(value, one.name))]
    return []


def named(one):
    return f"{one.op} {one.shape}"


def test_names_are_unique():
    for registry in (CASES, cases(published())):
        names = [named(one) for one in registry]
        assert len(names) == len(set(names))


def test_every_case_has_its_tests():
    for one in CASES:
        assert (ROOT / "tests" / "kernels" / one.tests).is_file(), one.op


class Recording(TorchDispatchMode):
    """Refuses what a CUDA graph cannot record: numbers that are asked of the device, or brought there."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket._qualified_op_name
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::lift_fresh"), name
        return function(*args, **(kwargs or {}))


@functools.cache
def outcome(at: int) -> tuple[list[float], int, frozenset]:
    """Errors of a case and of what stands beside it, the bytes it moves, its kernels; each run could be recorded."""
    one, launches = CASES[at], set()
    wanted = one.reference(one.make(OPS.seeded(ON)))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (launching.Launches, launching.Plain):
            plain = kind.__call__
            patch.setattr(
                kind, "__call__", lambda self, *rest, plain=plain: launches.add(self.kernel.fn) or plain(self, *rest)
            )
        for run in (one.run, *one.beside.values()):

            def recorded(inputs, run=run):
                with Recording():
                    return run(inputs)

            found.append(OPS.checked(one, recorded, wanted, ON))
    return [error for error, _ in found], min(size for _, size in found), frozenset(launches)


@functools.cache
def kernels() -> dict:
    """Every Triton kernel there is, by the function it is made of."""
    found = {}
    for path in KERNELS.rglob("*kernel*.py"):
        if "import triton\n" not in path.read_text(encoding="utf-8"):
            continue  # numba's
        module = importlib.import_module(".".join(path.relative_to(KERNELS.parent).with_suffix("").parts))
        for name, kernel in vars(module).items():
            if name.endswith("_kernel") and kernel.fn.__module__ == module.__name__:
                found[kernel.fn] = kernel
    return found


@pytest.mark.parametrize("at", range(len(CASES)), ids=[named(one) for one in CASES])
def test_a_case_gives_what_its_definition_gives(at):
    errors, size, _ = outcome(at)
    assert max(errors) <= min(CASES[at].tolerance, 1e-3)
    assert size > 0


@pytest.mark.parametrize("one", CASES, ids=named)
def test_no_case_multiplies_zeros(one):
    for x in tensors(one.make(OPS.seeded(ON))):
        # numbers, not counters or places; a stack of scores ends in rows of padding
        if x.numel() and (x.dtype.is_floating_point or x.dtype in (torch.int8, torch.uint8)):
            assert x.count_nonzero() > x.numel() / 3, tuple(x.shape)


def test_every_kernel_is_measured():
    assert len(kernels()) > 25
    launched = frozenset().union(*(outcome(at)[2] for at in range(len(CASES))))
    missing = [f"{fn.__module__}.{fn.__name__}" for fn in kernels() if fn not in launched]
    assert not missing, f"no case of bench/kernel_ops launches {missing}"


def test_every_launch_that_chooses_its_blocks_takes_the_shapes_of_published_models():
    """Built-in blocks and the default name the same sizes."""
    found = {}
    for path in KERNELS.rglob("*.py"):
        if "Tunable(" in path.read_text(encoding="utf-8") and "tuning" not in path.parts:
            module = importlib.import_module(".".join(path.relative_to(KERNELS.parent).with_suffix("").parts))
            found |= {one.name: one for one in vars(module).values() if isinstance(one, Tunable)}
    shapes = {name: [] for name in found}
    for one in cases(published()):
        if one.op in shapes:
            pairs = (re.fullmatch(r"(\w*?[A-Za-z_])(\d+)", part) for part in one.shape.split("-"))
            shapes[one.op].append({pair[1]: int(pair[2]) for pair in pairs})
    for name, tunable in found.items():
        assert shapes[name], f"{name} is not measured"
        for shape in shapes[name]:
            chosen = tunable.built_in["NVIDIA H200"](shape, H200)
            assert list(chosen) == list(tunable.default(shape, H200))


class Stopwatch:
    """In place of graph replays: one run that takes a millisecond."""

    def __init__(self, device):
        pass

    def times(self, work):
        work()
        return [1e-3, 2e-3]


@pytest.fixture
def measure(monkeypatch, tmp_path, capsys):
    """Measure cases on this machine: whether all have rows, the rows, stderr."""
    monkeypatch.setattr(OPS, "GraphTimer", Stopwatch)
    monkeypatch.setattr(OPS, "MOST_COPIES", 2)
    monkeypatch.setattr(OPS, "HERE", tmp_path)

    def run(*wanted):
        complete = OPS.measure(wanted, ON, "python bench/ops.py --tested")
        file = tmp_path / "rows" / "ops.jsonl"
        lines = file.read_bytes().splitlines() if file.exists() else []
        return complete, [msgspec.json.decode(one, type=Row) for one in lines], capsys.readouterr().err

    return run


def of(op):
    return next(one for one in CASES if one.op == op)


def test_a_case_has_a_row_and_torch_has_one_beside_it(measure):
    one = of("norm.rms_norm")
    complete, rows, err = measure(one)
    assert complete
    assert [(item.op, item.shape, item.impl) for item in rows] == [
        (one.op, one.shape, impl) for impl in ("triton", "torch")
    ]
    N = SIZES.dense.hidden_size
    assert {item.bytes_moved for item in rows} == {3 * 4 * N}, "a row in, a row out, the weights"
    assert rows[0].median_ms == pytest.approx(0.75), "of one of two copies"
    assert rows[0].command == "python bench/ops.py --tested norm.rms_norm"
    assert rows[0].note.startswith("error ")
    assert "s norm.rms_norm" in err


def test_a_result_that_differs_has_no_row_and_the_others_are_measured(measure):
    one = of("activation.swiglu")
    wrong = replace(one, run=lambda inputs: 1.1 * one.run(inputs))
    fails = replace(one, op="fails", run=lambda inputs: 1 / 0)
    complete, rows, err = measure(wrong, fails, of("hadamard.rotate"))
    assert not complete
    assert [item.op for item in rows] == ["hadamard.rotate"]
    assert "activation.swiglu 27b-T1: no row, Wrong: its error is 1.0e-01" in err
    assert "fails 27b-T1: no row, ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("got", "wanted", "expected"),
    [
        (torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.0]), 0.0),
        (torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]), 0.1),
        (torch.tensor([3.0, float("nan")]), torch.tensor([3.0, 4.0]), math.inf),
        (torch.tensor([3.0]), torch.tensor([3.0, 4.0]), math.inf),
        (torch.tensor([3, 5]), torch.tensor([3, 5]), 0.0),
        (torch.tensor([3, 5]), torch.tensor([3, 4]), math.inf),
        ((torch.ones(2), torch.tensor([1])), (torch.ones(2), torch.tensor([2])), math.inf),
    ],
    ids=["equal", "close", "nan", "shape", "whole", "whole-differs", "second"],
)
def test_the_error_of_a_result(got, wanted, expected):
    assert case.error(got, wanted) == pytest.approx(expected)


@pytest.mark.parametrize("spread", [True, False], ids=["xdist", "plain"])
def test_a_table_of_tests_is_spread_over_half_of_the_cores_where_pytest_can(spread, monkeypatch):
    asked = []
    monkeypatch.setattr(OPS.importlib.util, "find_spec", lambda name: object() if spread else None)
    monkeypatch.setattr(OPS.os, "cpu_count", lambda: 16)

    def run(command, **rest):
        asked.append(command)
        return SimpleNamespace(returncode=len(asked) - 1)

    monkeypatch.setattr(OPS.subprocess, "run", run)
    assert OPS.passes("test_norm.py")
    assert not OPS.passes("test_norm.py")
    assert asked[0][-1] == "tests/kernels/test_norm.py"
    assert ("-n" in asked[0]) == spread
    assert not spread or asked[0][asked[0].index("-n") + 1] == "8"


@pytest.fixture
def gated(monkeypatch):
    """``main`` on a machine that has a GPU, and all it would time; tables of norms are red."""
    timed = []
    monkeypatch.setattr(OPS.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(OPS, "cases", lambda sizes: CASES)
    monkeypatch.setattr(OPS, "passes", lambda tests: tests != of("norm.rms_norm").tests)
    monkeypatch.setattr(OPS, "measure", lambda wanted, device, command: timed.append((command, wanted)) or True)
    return timed


def test_a_red_table_has_no_row(gated, capsys):
    assert OPS.main(["norm.rms", "hadamard"]) == 1
    ((command, wanted),) = gated
    assert command == "python bench/ops.py"
    assert {one.op for one in wanted} == {"hadamard.rotate"}
    assert "norm.rms_norm 27b-T1: no row, test_small_ops_gpu.py fails" in capsys.readouterr().err


def test_tables_that_were_green_are_not_run_again_and_the_row_says_so(gated):
    assert OPS.main(["--tested", "norm.rms"]) == 0
    ((command, wanted),) = gated
    assert command == "python bench/ops.py --tested"
    assert {one.op for one in wanted} == {"norm.rms_norm"}


def test_an_op_that_is_not_there_is_named_with_those_that_are(gated):
    with pytest.raises(SystemExit, match=r"'norn'; known: activation.sigmoid_gate, .*norm.rms_norm"):
        OPS.main(["hadamard", "norn"])


def test_it_needs_a_gpu():
    with pytest.raises(SystemExit, match="CUDA device"):
        OPS.main([])
