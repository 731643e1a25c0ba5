"""Bodies above and below the size from which they are put together on a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ninfer_core.serve import stream


@pytest.mark.parametrize("size", [0, 1, stream.LARGE_BYTES - 1, stream.LARGE_BYTES, stream.LARGE_BYTES + 70_001])
def test_a_body_is_what_was_sent_in_order(size):
    whole = (bytes(range(251)) * (size // 251 + 1))[:size]
    parts = [whole[at : at + 65_536] for at in range(0, size, 65_536)] or [b""]

    async def run():
        sending = iter(parts)
        left = len(parts)

        async def receive():
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": next(sending), "more_body": left > 0}

        return await stream.read_body(receive, None, 64)

    assert asyncio.run(run()) == whole


def test_a_large_body_is_put_together_beside_the_event_loop(monkeypatch):
    threads = []
    real = asyncio.to_thread

    async def seen(work, *args):
        return await real(lambda: (threads.append(threading.current_thread()), work(*args))[1])

    monkeypatch.setattr(asyncio, "to_thread", seen)

    async def run(size):
        async def receive():
            return {"type": "http.request", "body": b"x" * size}

        await stream.read_body(receive, None, 64)

    asyncio.run(run(stream.LARGE_BYTES - 1))
    assert threads == []
    asyncio.run(run(stream.LARGE_BYTES))
    assert threads != []
    assert threading.main_thread() not in threads
