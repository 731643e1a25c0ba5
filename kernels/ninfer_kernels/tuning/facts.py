"""What a device is, as far as block sizes depend on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

KIB = 1 << 10
LEAST_SHARED = 99 * KIB  # what every GPU since sm_80 lets one program have


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """One GPU."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int  # shared memory one program can have
    cache_bytes: int  # second-level cache


INTERPRETER = Facts(
    name="interpreter", capability=(0, 0), multiprocessors=4, shared_bytes=227 * KIB, cache_bytes=50 << 20
)
"""Where kernels run under Triton's interpreter: no memory is short, and a program costs milliseconds."""


def device_facts(device: torch.device) -> Facts:
    """Of a CUDA device; INTERPRETER elsewhere."""
    if device.type != "cuda":
        return INTERPRETER
    found = torch.cuda.get_device_properties(device)
    return Facts(
        name=found.name,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        shared_bytes=getattr(found, "shared_memory_per_block_optin", LEAST_SHARED),
        cache_bytes=getattr(found, "L2_cache_size", 0) or 50 << 20,
    )


def stages_that_fit(wanted: int, stage_bytes: int, fixed_bytes: int, facts: Facts) -> int:
    """``wanted`` loads in flight of ``stage_bytes`` each, or as many as shared memory holds beside ``fixed_bytes``."""
    return max(1, min(wanted, (facts.shared_bytes - fixed_bytes) // stage_bytes))
