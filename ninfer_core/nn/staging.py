"""Weights on their way to a device, through one bounded buffer of page-locked memory in two halves.

While one half is copied to the device, the other is filled: from a mapped file, or with what a weight format decodes.
Nothing waits for the device but a half that is still being read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ninfer_core.errors import InvariantError

HALF_BYTES = 64 << 20
HALVES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadFacts:
    """What went to the device; zeros where nothing had to."""

    host_to_device_bytes: int = 0
    peak_staging_bytes: int = 0
    upload_seconds: float = 0.0  # the device's own time for the copies


class Transport(Protocol):
    """Copies from host memory to a device, some of them still running."""

    def buffer(self, size: int) -> Tensor:
        """[size] uint8 of memory that the device can read by itself."""

    def send(self, target: Tensor, source: Tensor, half: int) -> None:
        """Begin to copy a part of the buffer. Work queued on the device later finds it there."""

    def wait(self, half: int) -> float:
        """Return when no copy reads this half any more; the seconds its last one took, once."""

    def release(self) -> None:
        """The buffer is no longer needed; nothing reads it."""


class Staging:
    """Fills device tensors from host tensors. Called by one thread."""

    def __init__(self, transport: Transport, half_bytes: int = HALF_BYTES) -> None:
        self._transport = transport
        self._half_bytes = half_bytes
        self._halves: list[Tensor] = []  # the buffer, made when the first tensor comes
        self._next = 0
        self._sent_bytes = 0
        self._staged_bytes = 0
        self._seconds = 0.0

    @property
    def facts(self) -> UploadFacts:
        """So far; complete after ``finish``."""
        return UploadFacts(
            host_to_device_bytes=self._sent_bytes,
            peak_staging_bytes=self._staged_bytes,
            upload_seconds=self._seconds,
        )

    def copy(self, target: Tensor, source: Tensor) -> None:
        """``target.copy_(source)``: the device tensor is contiguous, the host's may have another dtype, in which case
        each element is rounded once, here. The host's is read from front to back and not needed afterwards."""
        if target.shape != source.shape or not target.is_contiguous():
            raise InvariantError(f"{tuple(source.shape)} does not go into {tuple(target.shape)}")
        into, out_of = target.view(-1), source.reshape(-1)
        step = self._half_bytes // target.element_size()
        for start in range(0, into.numel(), step):
            self._send(into[start : start + step], out_of[start : start + step])

    def finish(self) -> UploadFacts:
        """Wait for every copy and give the buffer back; also what is to be done after a failure."""
        for half in range(len(self._halves)):
            self._seconds += self._transport.wait(half)
        if self._halves:
            self._halves = []
            self._transport.release()
        return self.facts

    def _send(self, target: Tensor, source: Tensor) -> None:
        if not self._halves:
            self._halves = list(self._transport.buffer(HALVES * self._half_bytes).chunk(HALVES))
            self._staged_bytes = max(self._staged_bytes, HALVES * self._half_bytes)
        half, size = self._next, target.numel() * target.element_size()
        self._next = (half + 1) % HALVES
        self._seconds += self._transport.wait(half)
        staged = self._halves[half][:size].view(target.dtype)
        staged.copy_(source)
        self._transport.send(target, staged, half)
        self._sent_bytes += size


class CudaTransport:
    """Copies on the current stream of a CUDA device, so that what uses the weights comes after them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event] | None] = [None] * HALVES

    def buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def send(self, target: Tensor, source: Tensor, half: int) -> None:
        with torch.cuda.device(self._device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")  # type: ignore[no-untyped-call]
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
        self._marks[half] = (begin, end)

    def wait(self, half: int) -> float:
        marks, self._marks[half] = self._marks[half], None
        if marks is None:
            return 0.0
        begin, end = marks
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def release(self) -> None:
        # torch keeps page-locked memory for the next one who asks; nobody will
        empty = getattr(torch._C, "_host_emptyCache", None)
        if empty is not None:
            empty()


def staging_for(device: torch.device) -> Staging | None:
    """The way to a CUDA device; None where weights are used where they are read."""
    return Staging(CudaTransport(device)) if device.type == "cuda" else None
