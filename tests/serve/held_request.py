"""A request of a whole server that is stopped in a phase of its life, until a test lets it go on."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest
from live_server import Hold, Live, eventually, read_all

SCRIPT: dict[str, Any] = {
    "replies": [
        {"match": "long", "pieces": [f"{n}:" + "x" * 2000 for n in range(100)]},
        {"match": "next", "text": "the next answer"},
    ],
    "default": {"text": "abc"},
}
FLAGS = ("--max-context", "1024", "--prefill-chunk", "64", "--no-thinking", "--greedy", "--max-pending-requests", "4")
VICTIM = {"prompt": "long " + "p" * 200, "stream": True, "n_predict": 100}
NEXT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "next"}], "stream": True})
PHASES = ["queued", "preparing", "prefilling", "decoding", "finishing"]


class Held:
    """A server whose victim has reached ``phase`` and goes no further until ``release``."""

    def __init__(self, live: Live, phase: str, patch: pytest.MonkeyPatch) -> None:
        self.live, self.hold = live, Hold()
        self.requests: list[Any] = []
        engine, worker = live.engine, live.engine.worker
        self.before: socket.socket | None = None
        self._spy(patch, worker.queue, "submit", self.requests.append)
        if phase == "queued":
            # the only lane is taken, and its request stands still
            self._stop_at(patch, worker.program, "decode", 1)
            self.before = live.connect("/completion", {"prompt": "hi"})
            self.hold.wait_until_reached()
            self.victim = self._ask()
            eventually(lambda: len(worker.queue) == 1, "queued")
            return
        place, name, call = {
            "preparing": (engine._prompts, "raw", 1),
            "prefilling": (worker.program, "prefill", 2),
            "decoding": (worker.program, "decode", 3),
            "finishing": (worker._publisher, "finished", 1),
        }[phase]
        self._stop_at(patch, place, name, call)
        self.victim = self._ask()
        self.hold.wait_until_reached()

    def _ask(self) -> socket.socket:
        return self.live.connect("/completion", VICTIM, receive_bytes=2048)

    def _stop_at(self, patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
        calls = iter(range(1, 1 << 30))
        self._spy(patch, place, name, lambda *_: self.hold() if next(calls) == call else None)

    def _spy(self, patch: pytest.MonkeyPatch, place: Any, name: str, see: Any) -> None:
        real = getattr(place, name)

        def seen(*args: Any, **named: Any) -> Any:
            see(*args)
            return real(*args, **named)

        patch.setattr(place, name, seen)

    def release(self) -> None:
        self.hold.go.set()
        if self.before is not None:
            with self.before:
                assert b'"content":"abc"' in read_all(self.before), "the request before it is not harmed"

    @property
    def victim_is_cancelled(self) -> bool:
        """The server knows: the request is marked, or it was given up before it became one."""
        generation = self.requests[-1].generation if len(self.requests) > (self.before is not None) else None
        return generation.cancelled if generation is not None else self.live.engine.capacity.held == 0


def cut(sock: socket.socket) -> None:
    """End a connection as a client that died does: by a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
