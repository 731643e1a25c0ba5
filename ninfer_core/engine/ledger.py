"""What memory an engine holds and what was planned: the ledger of a start.

Its names are those of the ``memory`` object of a ``server_start`` record (engine.md §23), and a field is null where it
cannot be known. Weights, pools and recorded rounds lie on the engine's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ninfer_core.kv.memory import free_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena:
    """One kind of memory: what is set aside for it, and what of that is in use."""

    capacity_bytes: int
    used_bytes: int
    peak_used_bytes: int


def full(size: int) -> Arena:
    """Memory all of which is in use from the start."""
    return Arena(capacity_bytes=size, used_bytes=size, peak_used_bytes=size)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLedger:
    """All of it, when the engine is ready."""

    weights: Arena | None
    sequence: Arena  # the KV pool and the state slots
    workspace: Arena | None  # passing values of a step
    minimum_runtime_reservation_bytes: int  # with the least pages that work
    kv_capacity_increment_bytes: int  # of one page
    runtime_reservation_bytes: int  # pools, workspace and the allowance for recorded rounds
    available_after_weights_bytes: int
    available_after_startup_bytes: int
    kv_capacity_headroom_bytes: int  # 0 where memory does not decide the capacity
    planned_slack_bytes: int  # what neither the reservation nor the headroom counts on
    cuda_graph_allowance_bytes: int
    cuda_graph_measured_bytes: int | None
    kv_payload_bytes: int
    host_state_image_bytes: int
    host_state_capacity_slots: int = 0
    host_state_occupied_slots: int = 0
    host_kv_page_group_bytes: int = 0
    host_cache_budget_bytes: int = 0
    host_kv_capacity_bytes: int = 0
    host_kv_occupied_bytes: int = 0

    def record(self) -> dict[str, Any]:
        """The object as it is written."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """For the log: who holds what, and what is free."""
        return {
            "weights_bytes": "unknown" if self.weights is None else self.weights.used_bytes,
            "kv_pool_bytes": self.kv_payload_bytes,
            "state_pool_bytes": self.sequence.capacity_bytes - self.kv_payload_bytes,
            "workspace_bytes": "unknown" if self.workspace is None else self.workspace.capacity_bytes,
            "graphs_bytes": self.cuda_graph_measured_bytes,
            "graphs_allowance_bytes": self.cuda_graph_allowance_bytes,
            "headroom_bytes": self.kv_capacity_headroom_bytes,
            "free_after_weights_bytes": self.available_after_weights_bytes,
            "free_bytes": self.available_after_startup_bytes,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFacts:
    """How the weights came to where they are; names of the ``artifact`` object of the same record."""

    bytes_read: int
    host_to_device_bytes: int
    peak_staging_bytes: int
    load_seconds: float
    upload_seconds: float  # the device's own time for the copies

    def fields(self) -> dict[str, Any]:
        """For the log."""
        return asdict(self)


class MemoryReadings:
    """Readings of one device at the boundaries of a start."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.weights: Arena | None = None
        self.available_after_weights = 0
        self.workspace = 0
        if self.on_gpu:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # the allocator knows no device before
        self._before = self._allocated()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(device)

    def weights_are_loaded(self) -> None:
        """Nothing but weights has been allocated since the first reading."""
        if self.on_gpu:
            taken = self._allocated() - self._before
            peak = torch.cuda.max_memory_allocated(self.device) - self._before
            self.weights = Arena(capacity_bytes=taken, used_bytes=taken, peak_used_bytes=peak)
        self.available_after_weights = free_bytes(self.device)

    @contextmanager
    def passing_values(self) -> Iterator[None]:
        """Around steps that leave nothing behind: what they take meanwhile is the workspace."""
        if not self.on_gpu:
            yield
            return
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_reserved(self.device)
        yield
        torch.cuda.synchronize(self.device)
        # as torch took it from the device, whole blocks: that is what is missing elsewhere
        self.workspace = max(torch.cuda.max_memory_reserved(self.device) - before, 0)

    def ledger(
        self,
        *,
        page_bytes: int,
        pages: int,
        least_pages: int,
        state_bytes: int,
        image_bytes: int,
        headroom: int,
        allowance: int,
        graphs: int | None,
    ) -> MemoryLedger:
        """The ledger of a start that is done; ``graphs``: what the recorded rounds took."""
        beside = state_bytes + self.workspace + allowance
        reservation = pages * page_bytes + beside
        return MemoryLedger(
            weights=self.weights,
            sequence=full(pages * page_bytes + state_bytes),
            workspace=self._workspace(),
            minimum_runtime_reservation_bytes=least_pages * page_bytes + beside,
            kv_capacity_increment_bytes=page_bytes,
            runtime_reservation_bytes=reservation,
            available_after_weights_bytes=self.available_after_weights,
            available_after_startup_bytes=free_bytes(self.device),
            kv_capacity_headroom_bytes=headroom,
            planned_slack_bytes=self.available_after_weights - reservation - headroom,
            cuda_graph_allowance_bytes=allowance,
            cuda_graph_measured_bytes=graphs,
            kv_payload_bytes=pages * page_bytes,
            host_state_image_bytes=image_bytes,
        )

    def _workspace(self) -> Arena | None:
        if not self.on_gpu:
            return None
        return Arena(capacity_bytes=self.workspace, used_bytes=0, peak_used_bytes=self.workspace)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else 0
