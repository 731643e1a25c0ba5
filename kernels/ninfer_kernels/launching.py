"""Launches that take less than half of Triton's own host time.

Triton binds and specialises the arguments of every launch anew in Python, for longer than a small kernel runs; where a
prompt is short, that is what its time to the first token is made of. What comes of it depends on little: types, how a
pointer is aligned, whether a number is 1 or divisible by 16 or needs more than 32 bits, and the constants.
``launch_kernel`` asks arguments for that and goes straight to what Triton compiled for the like of them before. It asks
for no less than Triton does, and what it cannot ask (a tensor descriptor, a function) goes Triton's way.

What it goes to is the launcher inside a ``CompiledKernel``, called as ``CompiledKernel.__getitem__`` calls it: through
that method half of what is gained would be lost. The call is known for the versions in KNOWN; others take the method.
Launch hooks (a profiler's) that are set before a kernel's first launch send it Triton's way; those set later miss it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime import driver

Grid = tuple[int, ...]
Arguments = tuple[Any, ...]
Constants = dict[str, Any]
Traits = Callable[[Arguments], tuple[Any, ...]]
Start = Callable[[Grid, int, Arguments], None]

KNOWN = ((3, 6), (3, 9))  # the first and the last
ALIGNED = 16 - 1
NARROW, WIDE = (-(1 << 31), (1 << 31) - 1), (1 << 63) - 1  # of 32 and of 64 bits with a sign
ASKED_WHOLE = (bool, str, type(None))  # few values each, and where Triton compiles them in they are constants


def launch_kernel(kernel: Any, grid: Grid, *arguments: Any, **constants: Any) -> None:
    """``kernel[grid](*arguments, **constants)``. Of what a kernel is launched with, ``constants`` are what it declares
    as such, and options of Triton (``num_warps``)."""
    own = _LAUNCHES.get(id(kernel))
    if own is None:
        known = isinstance(kernel, triton.JITFunction) and torch.version.hip is None  # HIP asks for more
        kind = Launches if known else Plain
        own = _LAUNCHES[id(kernel)] = kind(kernel)
    own(grid, arguments, constants)


class Plain:
    """Launches of a kernel as Triton has them, interpreted or compiled."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __call__(self, grid: Grid, arguments: Arguments, constants: Constants) -> None:
        self.kernel[grid](*arguments, **constants)


class Launches:
    """Launches of one kernel, by what it was compiled for."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._names = [param.name for param in kernel.params]
        self._is_constant = [param.is_constexpr for param in kernel.params]
        self._traits: dict[tuple[type, ...], Traits | None] = {}
        self._compiled: dict[tuple[Any, ...], tuple[Start, Arguments]] = {}  # and the constants, in the kernel's order

    def __call__(self, grid: Grid, arguments: Arguments, constants: Constants) -> None:
        types = tuple(map(type, arguments))
        try:
            traits = self._traits[types]
        except KeyError:
            traits = self._traits[types] = self._traits_of(arguments)
        if traits is None:
            self.kernel[grid](*arguments, **constants)
            return
        values, device = tuple(constants.values()), torch.cuda.current_device()
        # 1, 1.0 and True are equal but not compiled to the same, hence the types
        key = (types, traits(arguments), *constants, values, *map(type, values), device)
        found = self._compiled.get(key)
        if found is None:
            compiled = self.kernel[grid](*arguments, **constants)
            rest = self._rest(arguments, constants)
            if compiled is not None and rest is not None and not is_hooked():
                self._compiled[key] = starter(compiled), rest
        else:
            start, rest = found
            start(grid, device, (*arguments, *rest))

    def _rest(self, arguments: Arguments, constants: Constants) -> Arguments | None:
        """What follows ``arguments`` in the kernel's own order; None where that is not constants alone."""
        names = self._names[len(arguments) :]
        if not all(self._is_constant[len(arguments) :]) or not constants.keys() >= set(names):
            return None
        return tuple(constants[name] for name in names)

    def _traits_of(self, arguments: Arguments) -> Traits | None:
        """How to ask arguments of these types."""
        values, tensors, numbers = [], [], []
        for i, argument in enumerate(arguments):
            if self._is_constant[i] or isinstance(argument, ASKED_WHOLE):
                values.append(i)
            elif isinstance(argument, torch.Tensor):
                tensors.append(i)
            elif isinstance(argument, int):
                numbers.append(i)
            elif not isinstance(argument, float):
                return None

        def asked(arguments: Arguments) -> tuple[Any, ...]:
            found = [arguments[i] for i in values]
            for i in tensors:
                tensor = arguments[i]
                found += tensor.dtype, tensor.data_ptr() & ALIGNED == 0
            for i in numbers:
                number = arguments[i]
                found += number == 1, number & ALIGNED == 0, NARROW[0] <= number <= NARROW[1], number <= WIDE
            return tuple(found)

        return asked


def is_hooked() -> bool:
    """Whether somebody wants to hear of launches."""
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return any(getattr(hook, "calls", hook) for hook in hooks)  # a chain of them, or one, or none


def starter(compiled: Any) -> Start:
    """How to start what Triton compiled."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not KNOWN[0] <= version <= KNOWN[1]:
        return lambda grid, device, arguments: compiled[(*grid, 1, 1)](*arguments)
    run = compiled.run  # loads it, so that its function is there
    metadata = compiled.packed_metadata

    def start(grid: Grid, device: int, arguments: Arguments) -> None:
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(device)
        # asked of what was compiled, which is unloaded once nobody holds it
        run(x, y, z, stream, compiled.function, metadata, None, None, None, *arguments)

    return start


_LAUNCHES: dict[int, Launches | Plain] = {}  # by the kernel's id, which stays taken: they hold it
