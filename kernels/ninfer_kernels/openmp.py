"""The OpenMP team that torch already owns, for compiled functions of our own.

A second pool of threads would fight the first for the cores; the team's threads spin between torch's operations and
take up a function within a microsecond or two.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

Team = Callable[[int, int, int, int], None]


def run_together(function: int, argument: int, threads: int) -> bool:
    """Run ``void function(void *argument)`` once on each of ``threads`` threads and wait; False: there is no team."""
    parallel = _parallel()
    if parallel is None:
        return False
    parallel(function, argument, threads, 0)
    return True


@functools.cache
def _parallel() -> Team | None:
    """``GOMP_parallel`` of the libgomp inside torch; None where torch was built on another OpenMP."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            parallel = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel
    return None
