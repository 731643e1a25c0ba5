"""What goes wrong in the engine while a request is still being prepared beside it: a request that is not there yet
loses nothing by it, and afterwards everything is as it was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from held_request import FLAGS, NEXT, SCRIPT, Held
from live_server import Live, eventually, read_all

NEIGHBOURS = {
    **SCRIPT,
    "replies": [
        *SCRIPT["replies"],
        {"match": "poisoned", "text": "abcdef", "nan_at": 3},
        {"match": "forever", "text": "f", "finish": "never", "delay_ms": 2},
    ],
}
FOREVER = {"prompt": "forever", "stream": True, "n_predict": 900}


@pytest.fixture
def live(tmp_path: Path) -> Any:
    return Live(NEIGHBOURS, tmp_path, *FLAGS, "--max-concurrency", "2", "--kv-capacity", "2048")


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    other = Live(NEIGHBOURS, tmp_path_factory.mktemp("fresh"), *FLAGS)
    answer = other.answer(*NEXT)
    assert other.stop() == 0
    return answer


def let_go(live: Live, held: Held, fresh: bytes, status: bytes = b"200") -> bytes:
    """What the victim gets; nothing is held afterwards and the next answer is a fresh server's."""
    held.release()
    answer = read_all(held.victim)
    assert answer.startswith(b"HTTP/1.1 " + status)
    live.assert_at_rest()
    assert live.answer(*NEXT) == fresh
    assert live.stop() == 0
    return answer


def fail_once(live: Live, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    real = live.engine.worker.program.decode

    def broken(*arguments: Any, **named: Any) -> Any:
        patch.setattr(live.engine.worker.program, "decode", real)
        raise error

    patch.setattr(live.engine.worker.program, "decode", broken)


@pytest.mark.contract("ready.counted")
def test_out_of_memory(live, fresh, monkeypatch):
    held = Held(live, "preparing", monkeypatch)
    fail_once(live, monkeypatch, MemoryError())
    assert b"internal_error" in live.answer("/completion", FOREVER)
    assert live.engine.worker.counters.engine_recoveries == 1
    assert b"99:" in let_go(live, held, fresh)


def test_a_row_of_nan(live, fresh, monkeypatch):
    held = Held(live, "preparing", monkeypatch)
    poisoned = live.answer("/completion", {"prompt": "poisoned", "stream": True})
    assert b'"content":"c"' in poisoned
    assert b"internal_error" in poisoned
    assert b"99:" in let_go(live, held, fresh)


@pytest.mark.parametrize("seconds", [-500.0, 100.0, 5000.0])
def test_a_clock_that_jumps(live, fresh, monkeypatch, seconds):
    held = Held(live, "preparing", monkeypatch)
    live.engine.worker._clock = lambda: time.monotonic() + seconds
    if seconds < live.engine.limits.pending_timeout_seconds:
        assert b"99:" in let_go(live, held, fresh)
        return
    held.release()
    answer = read_all(held.victim)
    assert b"request_queue_timeout" in answer
    # deadlines are set on the clock as it was
    live.engine.worker._clock = time.monotonic
    live.assert_at_rest()
    assert live.answer(*NEXT) == fresh
    assert live.stop() == 0


def test_a_plugin_that_raises(live, monkeypatch):
    """The engine's end: what ran is told of a fault of ours, what was still being prepared that there is no engine."""
    held = Held(live, "preparing", monkeypatch)
    fail_once(live, monkeypatch, KeyError("a bug of the model's"))
    assert b"internal_error" in live.answer("/completion", FOREVER)
    eventually(lambda: live.engine.failed == "KeyError", "an engine that failed")
    held.release()
    answer = read_all(held.victim)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"service_unavailable" in answer
    eventually(lambda: live.engine.capacity.held == 0, "all capacity returned")
    eventually(lambda: live.status is not None, "an end")
    assert live.status == 2
