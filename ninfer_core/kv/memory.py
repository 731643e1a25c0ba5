"""How much memory is left for the KV pool, and what an error says when it was not enough."""

from __future__ import annotations

import os
from pathlib import Path

import torch

CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
NO_LIMIT = 1 << 60  # version 1 says "none" with a number near the top
CPU_SHORTAGE = ("DefaultCPUAllocator", "alloc_cpu")


def is_shortage(error: BaseException) -> bool:
    """Whether memory did not suffice. torch has a class for that on a GPU; on a CPU only the text says it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in CPU_SHORTAGE)


def free_bytes(device: torch.device) -> int:
    """Free memory of a CUDA device; on a CPU what the machine, or the process's cgroup, can still give."""
    if device.type == "cuda":
        # what torch holds for the next one who asks is free too
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_machine_bytes(), *_cgroup_bytes()])


def _machine_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_bytes() -> list[int]:
    found = []
    for limit, used in CGROUP_LIMITS:
        try:
            most, now = int(limit.read_text(encoding="ascii")), int(used.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if most < NO_LIMIT:
            found.append(max(most - now, 0))
    return found
