"""The clients of a soak: each does one thing after another, chosen by its own seed, until the time is up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from served import HOST

PATIENCE_SECONDS = 60.0  # for one answer; a server that takes longer is stuck
SLOW_SECONDS = 10.0  # a slow reader's; it takes the rest as fast as it comes, so that its patience measures the server
KEYWORDS = ("count", "think", "split", "nan", "slow", "nothing that is known")
MALFORMED = (
    b"",
    b"{",
    b"[" * 200_000,
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": 3}]}',
    b'{"messages": [], "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -7}',
    b"\xff\xfe\x00",
)
CHAT = "/v1/chat/completions"


class Client:
    """One client; ``outcomes`` counts what became of its requests."""

    def __init__(self, port: int, number: int, limit_bytes: int, outcomes: Counter[str]) -> None:
        self._port = port
        self._random = random.Random(number)
        self._limit_bytes = limit_bytes
        self._outcomes = outcomes
        self._acts: list[tuple[int, Callable[[], Awaitable[str]]]] = [
            (8, self.streams),
            (8, self.leaves_early),
            (5, self.asks),
            (3, self.completes),
            (2, self.reads_slowly),
            (2, self.leaves_at_once),
            (3, self.sends_half),
            (4, self.sends_malformed),
            (2, self.sends_too_much),
            (2, self.looks_around),
        ]

    async def run(self, until: float) -> None:
        """Act until the monotonic time ``until``; an act that is under way is finished."""
        weights, acts = zip(*self._acts, strict=True)
        while time.monotonic() < until:
            act = self._random.choices(acts, weights)[0]
            try:
                outcome = await asyncio.wait_for(act(), PATIENCE_SECONDS)
            except TimeoutError:
                outcome = "no answer"
            except (OSError, asyncio.IncompleteReadError):
                outcome = "cut by the server"
            self._outcomes[f"{act.__name__}: {outcome}"] += 1  # type: ignore[attr-defined]
            # a client that is turned away comes back later, or there would be little but refusals
            await asyncio.sleep(self._random.uniform(0.2, 0.8) if "429" in outcome else self._random.uniform(0, 0.05))

    async def streams(self) -> str:
        async with self._sent(CHAT, self._chat(stream=True)) as (reader, _):
            status = await read_status(reader)
            data = await reader.read()
        return (
            f"{status} whole"
            if b"[DONE]" in data
            else f"{status} ended with an error"
            if status == 200
            else str(status)
        )

    async def leaves_early(self) -> str:
        async with self._sent(CHAT, self._chat(stream=True)) as (reader, _):
            status = await read_status(reader)
            for _ in range(self._random.randrange(1, 12)):
                if not await reader.readline():
                    break
        return f"{status} left"

    async def asks(self) -> str:
        async with self._sent(CHAT, self._chat()) as (reader, _):
            status = await read_status(reader)
            await reader.read()
        return str(status)

    async def completes(self) -> str:
        body = {
            "prompt": self._text(),
            "n_predict": self._random.choice([0, 1, 20]),
            "stream": self._random.random() < 0.5,
        }
        async with self._sent("/completion", msgspec.json.encode(body)) as (reader, _):
            status = await read_status(reader)
            await reader.read()
        return str(status)

    async def reads_slowly(self) -> str:
        async with self._sent(CHAT, self._chat(stream=True)) as (reader, _):
            status = await read_status(reader)
            slow_until = time.monotonic() + SLOW_SECONDS
            while await reader.read(40 if time.monotonic() < slow_until else -1):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return str(status)

    async def leaves_at_once(self) -> str:
        async with self._sent(CHAT, self._chat()):
            await asyncio.sleep(self._random.uniform(0, 0.05))
        return "left"

    async def sends_half(self) -> str:
        body = self._chat()
        async with self._connected() as (_, writer):
            writer.write(head("POST", CHAT, len(body)) + body[: len(body) // 2])
            await writer.drain()
            await asyncio.sleep(self._random.uniform(0, 0.05))
        return "left"

    async def sends_malformed(self) -> str:
        async with self._sent(CHAT, self._random.choice(MALFORMED)) as (reader, _):
            return str(await read_status(reader))

    async def sends_too_much(self) -> str:
        """Once by its declared length, once by what arrives."""
        chunk = b"x" * 65536
        count = self._limit_bytes // len(chunk) + 2
        async with self._connected() as (reader, writer):
            declared = self._random.random() < 0.5
            writer.write(head("POST", CHAT, count * len(chunk) if declared else None))
            try:
                for _ in range(count):
                    writer.write(chunk if declared else b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
            except ConnectionError:
                return "cut by the server"
            return str(await read_status(reader))

    async def looks_around(self) -> str:
        path = self._random.choice(["/health", "/v1/models", "/v1/load", "/metrics", "/nowhere"])
        async with self._connected() as (reader, writer):
            writer.write(head("GET", path, None))
            status = await read_status(reader)
            await reader.read()
        return f"{path} {status}"

    def _text(self) -> str:
        filler = "word " * self._random.choice([0, 10, 200, 1500])
        return filler + self._random.choice(KEYWORDS)

    def _chat(self, **members: Any) -> bytes:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": self._text()}], **members}
        if self._random.random() < 0.5:
            body["max_tokens"] = self._random.choice([1, 7, 60, 400])
        if self._random.random() < 0.2:
            body["enable_thinking"] = False
        if self._random.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 3}
        if self._random.random() < 0.2:
            body["stop"] = ["7", "wo"]
        return msgspec.json.encode(body)

    @asynccontextmanager
    async def _sent(self, path: str, body: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with self._connected() as (reader, writer):
            writer.write(head("POST", path, len(body)) + body)
            await writer.drain()
            yield reader, writer

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort() if self._random.random() < 0.5 else writer.close()


def head(method: str, path: str, length: int | None) -> bytes:
    """A request's head; a body without a length comes in chunks."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}", "connection: close", "content-type: application/json"]
    if length is not None:
        lines.append(f"content-length: {length}")
    elif method == "POST":
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def read_status(reader: asyncio.StreamReader) -> int:
    """The status; the headers are read past."""
    first = await reader.readuntil(b"\r\n\r\n")
    return int(first.split(b" ", 2)[1])
