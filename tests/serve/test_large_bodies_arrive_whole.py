"""Bodies above and below the size from which they are kept in a file: whole, bounded, and gone afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from ninfer_core.errors import Overloaded, RequestTooLarge
from ninfer_core.serve import bodies
from ninfer_core.serve.bodies import BodyRoom, SpooledBody
from ninfer_core.serve.stream import ClientGone

MIB = 1 << 20


def sender(parts: list[bytes], *, leaves: bool = False):
    """An ASGI ``receive`` that gives these parts; ``leaves``: the client goes before the last."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    if leaves:
        messages[-1] = {"type": "http.disconnect"}
    sending = iter(messages)

    async def receive():
        return next(sending)

    return receive


def cut(whole: bytes, size: int = 65_536) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)] or [b""]


def content(body: bytes | SpooledBody) -> bytes:
    if isinstance(body, bytes):
        return body
    assert body._file is not None
    assert os.fstat(body._file.fileno()).st_size == body.size
    return os.pread(body._file.fileno(), body.size, 0)


def until_empty(room: BodyRoom, held: int = 0) -> None:
    deadline = time.monotonic() + 10
    while room.held > held:
        assert time.monotonic() < deadline, "a file is still held"
        time.sleep(0.001)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
@pytest.mark.parametrize("size", [0, 1, bodies.SPOOL_BYTES, bodies.SPOOL_BYTES + 1, bodies.SPOOL_BYTES + 3_000_001])
def test_a_body_is_what_was_sent_in_order(size, declared):
    whole = (bytes(range(251)) * (size // 251 + 1))[:size]
    room = BodyRoom(limit_mib=64)

    async def run():
        body = await room.receive(sender(cut(whole)), str(size) if declared else None)
        assert isinstance(body, bytes) == (size <= bodies.SPOOL_BYTES)
        found = content(body)
        if isinstance(body, SpooledBody):
            assert room.held == 1
            body.close()
            body.close()
        return found

    assert asyncio.run(run()) == whole
    until_empty(room)


@pytest.mark.parametrize("declared", ["999999999999", None], ids=["declared", "chunked"])
def test_a_body_beyond_the_limit_leaves_no_file(declared):
    room = BodyRoom(limit_mib=5)
    with pytest.raises(RequestTooLarge, match="5 MiB"):
        asyncio.run(room.receive(sender([b"x" * MIB] * 6), declared))
    until_empty(room)


def test_a_body_of_exactly_the_limit_is_taken():
    async def run():
        body = await BodyRoom(limit_mib=5).receive(sender([b"x" * MIB] * 5), None)
        assert isinstance(body, SpooledBody)
        body.close()
        return body.size

    assert asyncio.run(run()) == 5 * MIB


def test_a_client_that_leaves_in_the_middle_leaves_no_file():
    room = BodyRoom(limit_mib=64)
    with pytest.raises(ClientGone):
        asyncio.run(room.receive(sender([b"x" * MIB] * 7, leaves=True), str(7 * MIB)))
    until_empty(room)


def test_only_so_many_large_bodies_are_held_at_once():
    room = BodyRoom(limit_mib=64, at_once=2)
    big = [b"x" * MIB] * 5

    async def run():
        held = [await room.receive(sender(list(big)), None) for _ in range(2)]
        with pytest.raises(Overloaded):
            await room.receive(sender(list(big)), None)
        assert await room.receive(sender([b"{}"]), None) == b"{}"  # small ones need no place
        held[0].close()
        await asyncio.to_thread(until_empty, room, 1)
        third = await room.receive(sender(list(big)), None)
        for body in (held[1], third):
            body.close()

    asyncio.run(run())
    until_empty(room)


def test_files_are_written_and_given_back_beside_the_event_loop(monkeypatch):
    """Giving back hundreds of MiB takes the system longer than a stream may be silent."""
    threads = set()
    real = bodies._nameless_file

    class Watched:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            if name in ("write", "close"):
                threads.add((name, threading.current_thread() is threading.main_thread()))
            return getattr(self.file, name)

    monkeypatch.setattr(bodies, "_nameless_file", lambda label: Watched(real(label)))
    room = BodyRoom(limit_mib=64)

    async def run():
        (await room.receive(sender([b"x" * MIB] * 5), None)).close()

    asyncio.run(run())
    until_empty(room)
    assert ("write", True) not in threads
    assert ("write", False) in threads


def test_the_operators_options_set_the_bounds():
    class Values(dict):
        given = frozenset()

    room = BodyRoom.of(
        Values(max_request_mib=7, max_concurrency=2, max_pending_requests=3, pending_timeout_ms=1500), lambda: None
    )
    assert (room._limit_mib, room._at_once, room.wait_seconds) == (7, 5, 1.5)
