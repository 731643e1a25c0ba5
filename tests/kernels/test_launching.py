"""What a launch goes straight to is what Triton would have compiled for its arguments."""

import gc
import inspect
import weakref
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import CompiledKernel
from triton.runtime import jit

from ninfer_kernels import launching
from ninfer_kernels.launching import Launches, launch_kernel


def add(x, y, n, eps, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    pass


class Compiled:
    """What Triton made for the like of some arguments."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, kernel, made_for):
        self.kernel, self.made_for = kernel, made_for

    def run(self, x, y, z, stream, function, metadata, *rest):
        assert (stream, function, metadata) == ("stream 0", self.function, self.packed_metadata)
        launch_metadata, enter, leave, *arguments = rest
        assert (launch_metadata, enter, leave) == (None, None, None)
        self.kernel.ran.append((self.made_for, (x, y, z), tuple(arguments)))

    def __getitem__(self, grid):
        assert len(grid) >= 3
        return lambda *arguments: self.kernel.ran.append((self.made_for, grid[:3], arguments))


class Kernel(jit.JITFunction):
    """Compiles nothing: says what Triton would compile for."""

    def __init__(self, function=add, **options):
        super().__init__(function, **options)
        self.binder = jit.create_function_from_signature(
            self.signature, self.params, CUDABackend(GPUTarget("cuda", 90, 32))
        )
        self.compiled, self.ran = 0, []

    def made_for(self, arguments, constants):
        _, specialization, options = self.binder(*arguments, debug=False, **constants)
        return repr((specialization, options))

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.compiled += 1
            made = Compiled(self, self.made_for(arguments, constants))
            names = [param.name for param in self.params[len(arguments) :]]
            made[(*grid, 1, 1)](*arguments, *(constants[name] for name in names))
            return made

        return run


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=SimpleNamespace(get_current_stream=stream)))


def stream(device):
    return f"stream {device}"


EDGES = (1 << 31, -(1 << 31), 1 << 63)
NUMBERS = st.sampled_from([0, 1, 2, 15, 16, 17, 32, -1, -16, *EDGES, *(edge - 1 for edge in EDGES)])
TENSORS = st.builds(
    lambda dtype, first: torch.zeros(64, dtype=dtype)[first:],
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.int64]),
    st.sampled_from([0, 1, 2, 4, 8, 16]),
)
ARGUMENTS = st.tuples(
    st.one_of(TENSORS, st.none(), st.booleans()),
    TENSORS,
    st.one_of(NUMBERS, st.booleans(), st.none(), st.floats(allow_nan=False)),
    st.one_of(st.floats(allow_nan=False), NUMBERS),
)
CONSTANTS = st.fixed_dictionaries(
    {
        "WIDE": st.sampled_from([0, 1, True, False, 1.0, None, "x"]),
        "BLOCK": st.sampled_from([16, 32]),
        "num_warps": st.sampled_from([1, 4]),
    }
)


@given(st.lists(st.tuples(ARGUMENTS, CONSTANTS), min_size=1, max_size=12))
def test_every_launch_runs_what_triton_would_compile_for_it(launches):
    kernel = Kernel()
    own = Launches(kernel)
    for arguments, constants in launches:
        own((3, 2), arguments, constants)
        made_for, grid, ran = kernel.ran.pop()
        assert made_for == kernel.made_for(arguments, constants)
        assert grid == (3, 2, 1)
        assert all(a is b for a, b in zip(ran, (*arguments, constants["WIDE"], constants["BLOCK"]), strict=True))


def test_triton_is_asked_once_for_the_like_of_an_argument():
    kernel = Kernel()
    x, y = torch.zeros(64), torch.zeros(64)
    for n in (2, 3, 5, 7, 30, 31):
        launch_kernel(kernel, (n,), x, y, n, float(n), BLOCK=32, WIDE=True, num_warps=4)
    assert kernel.compiled == 1
    assert [arguments[2:] for _, _, arguments in kernel.ran] == [(n, float(n), True, 32) for n in (2, 3, 5, 7, 30, 31)]
    launch_kernel(kernel, (1,), x, y, 32, 1.0, BLOCK=32, WIDE=True, num_warps=4)
    assert kernel.compiled == 2


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0+git"])
def test_a_version_whose_launcher_is_not_known_is_launched_as_it_says(monkeypatch, version):
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(Compiled, "run", None)
    kernel = Kernel()
    for n in (5, 7):
        launch_kernel(kernel, (n,), torch.zeros(64), torch.zeros(64), n, 1.0, BLOCK=32, WIDE=True)
    assert kernel.compiled == 1
    assert [grid for _, grid, _ in kernel.ran] == [(5, 1, 1), (7, 1, 1)]


def test_triton_in_use_is_a_known_one():
    assert launching.KNOWN[0] <= tuple(map(int, triton.__version__.split(".")[:2])) <= launching.KNOWN[1]
    source = inspect.getsource(CompiledKernel.__getitem__)
    call = " ".join(source[source.index("self.run(") :].split())
    assert call.startswith(
        "self.run(grid[0], grid[1], grid[2], stream, self.function, self.packed_metadata, launch_metadata, "
        "knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *args)"
    )


@pytest.mark.parametrize("which", ["launch_enter_hook", "launch_exit_hook"])
def test_a_launch_that_is_hooked_goes_tritons_way(which):
    kernel = Kernel()

    def launches(n):
        for _ in range(n):
            launch_kernel(kernel, (1,), torch.zeros(64), torch.zeros(64), 5, 1.0, BLOCK=32, WIDE=True)

    def heard(metadata):
        pass

    getattr(knobs.runtime, which).add(heard)
    try:
        launches(2)
        assert kernel.compiled == 2
    finally:
        getattr(knobs.runtime, which).remove(heard)
    launches(3)
    assert kernel.compiled == 3


def test_what_was_compiled_is_held(monkeypatch):
    """Triton unloads a kernel that its own cache has lost: two threads that compile the same one leave it one."""
    kernel, made = Kernel(), []
    monkeypatch.setattr(Kernel, "made_for", lambda self, *_: "it")
    monkeypatch.setattr(Compiled, "__init__", lambda self, kernel, made_for: made.append(weakref.ref(self)))
    monkeypatch.setattr(Compiled, "run", lambda *_: None)
    monkeypatch.setattr(Compiled, "__getitem__", lambda self, grid: lambda *arguments: None)
    launch_kernel(kernel, (1,), torch.zeros(64), torch.zeros(64), 5, 1.0, BLOCK=32, WIDE=True)
    gc.collect()
    assert [one() is not None for one in made] == [True]


def test_what_triton_did_not_compile_is_asked_for_again(monkeypatch):
    kernel, asked = Kernel(), []
    monkeypatch.setattr(Kernel, "__getitem__", lambda self, grid: lambda *_, **__: asked.append(grid))
    for _ in range(2):
        launch_kernel(kernel, (1,), torch.zeros(64), torch.zeros(64), 5, 1.0, BLOCK=32, WIDE=True)
    assert len(asked) == 2


def test_where_triton_asks_for_more_it_is_left_to_it(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    kernel = Kernel()
    for _ in range(2):
        launch_kernel(kernel, (1,), torch.zeros(64), torch.zeros(64), 5, 1.0, BLOCK=32, WIDE=True)
    assert kernel.compiled == 2


def test_each_device_has_its_own(monkeypatch):
    kernel, streams = Kernel(), []
    monkeypatch.setattr(Compiled, "run", lambda self, x, y, z, stream, *rest: streams.append(stream))
    for device in (0, 1, 0, 1, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        launch_kernel(kernel, (1,), torch.zeros(64), torch.zeros(64), 5, 1.0, BLOCK=32, WIDE=True)
    assert kernel.compiled == 2
    assert streams == ["stream 0", "stream 1", "stream 1"]


@pytest.mark.parametrize(
    ("arguments", "constants"),
    [
        ((torch.zeros(64), inspect, 5, 1.0), {"WIDE": True, "BLOCK": 32}),  # of a kind it knows nothing about
        ((torch.zeros(64), torch.zeros(64), 5), {"eps": 1.0, "WIDE": True, "BLOCK": 32}),  # a number by its name
    ],
)
def test_what_cannot_be_asked_goes_tritons_way(arguments, constants):
    class Asked(Kernel):
        def made_for(self, arguments, constants):
            return "asked"

    kernel = Asked()
    for _ in range(3):
        launch_kernel(kernel, (4,), *arguments, **constants)
    assert kernel.compiled == 3
    assert len(kernel.ran) == 3


def test_an_interpreted_kernel_is_interpreted():
    @triton.jit
    def double(x, y, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    if isinstance(double, triton.JITFunction):
        pytest.skip("kernels are compiled here")
    x, y = torch.arange(5.0), torch.zeros(5)
    launch_kernel(double, (1,), x, y, 5, BLOCK=8)
    assert torch.equal(y, 2 * x)
