"""Which routes run on a GPU: one place that decides for all operations."""

from __future__ import annotations

import functools
import importlib
import logging
from types import ModuleType

from torch import Tensor


def gpu_route(x: Tensor, package: str, module: str = "gpu") -> ModuleType | None:
    """The Triton route of an operation, ``<package>.<module>``, where ``x`` lies on a GPU; None elsewhere and without
    Triton."""
    return _route(package, module) if launches(x) else None


def launches(x: Tensor) -> bool:
    """Whether kernels can be launched where ``x`` lies."""
    return x.is_cuda


@functools.cache
def _route(package: str, module: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{package}.{module}")
    except Exception as error:
        log = logging.getLogger(__name__)
        log.warning("%s: torch route, no Triton kernel (%s)", package.rpartition(".")[2], type(error).__name__)
        return None
