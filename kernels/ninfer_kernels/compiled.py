"""numba's compiler with our settings. Importing this module needs numba, which is optional: callers fall back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def njit(**flags: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``numba.njit`` without the GIL, its machine code kept on disk where a folder for it is writable."""
    return _cached(numba.njit, nogil=True, error_model="numpy", **flags)


def cfunc(signature: Any, **flags: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.cfunc``: a C function whose ``address`` native code may call; kept on disk likewise."""
    return _cached(numba.cfunc, signature, error_model="numpy", **flags)


def _cached(compiler: Callable[..., Any], *args: Any, **flags: Any) -> Callable[[Callable[..., Any]], Any]:
    def wrap(function: Callable[..., Any]) -> Any:
        try:
            return compiler(*args, cache=True, **flags)(function)
        except RuntimeError as error:
            # a read-only installation without a home directory has no place for a cache
            if "cannot cache" not in str(error):
                raise
            return compiler(*args, **flags)(function)

    return wrap
