"""The longest silence of a stream while another client's large body is received and parsed, in milliseconds.

    python bench/body_stall.py [MIB]

A scripted model streams a token every few milliseconds; meanwhile a body of MIB mebibytes (default 100) is posted, each
kind on its own: one long string, many shorter ones, escapes throughout, many small messages, not JSON at all. The first
row is the stream alone. Appends to ``bench/rows/body_stall.jsonl``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from served import HOST, Served, write_script

from ninfer_core.cli.rows import append, row

MIB = 1 << 20
PART = 10 * MIB  # of the kind that is made of parts, as media are
SCRIPT = {"replies": [{"match": "stream", "text": "x", "finish": "never", "delay_ms": 2}]}
STREAM = {"prompt": "stream", "n_predict": 100_000, "stream": True}
RUNS = 3


def message(content: bytes) -> bytes:
    return b'{"role":"user","content":' + content + b"}"


def chat(*messages: bytes) -> bytes:
    """Parsed whole, then refused for its model: what a prompt costs afterwards is not measured here."""
    return b'{"model":"another","messages":[' + b",".join(messages) + b"]}"


KINDS: dict[str, Callable[[int], bytes]] = {
    "one-string": lambda size: chat(message(b'"' + b"x" * size + b'"')),
    "strings-of-10-mib": lambda size: chat(*[message(b'"' + b"x" * PART + b'"')] * max(size // PART, 1)),
    "escapes": lambda size: chat(message(b'"' + rb"a line\n" * (size // 8) + b'"')),
    "small-messages": lambda size: chat(*[message(b'"hello"')] * (size // 34)),
    "not-json": lambda size: b'{"messages":"' + b"x" * size,
}


async def longest_silence(base: str, body: bytes | None) -> float:
    """Seconds between two chunks of the stream, at most, from before the body is sent until after it is answered."""
    gap, last, reading = 0.0, time.perf_counter(), asyncio.Event()

    async def read() -> None:
        nonlocal gap, last
        async with (
            httpx.AsyncClient(base_url=base, timeout=60) as client,
            client.stream("POST", "/completion", json=STREAM) as r,
        ):
            async for _ in r.aiter_raw():
                now = time.perf_counter()
                if reading.is_set():
                    gap = max(gap, now - last)
                last = now
                reading.set()

    stream = asyncio.ensure_future(read())
    await reading.wait()
    if body is None:
        await asyncio.sleep(1)
    else:
        await post(base, body)
    await asyncio.sleep(0.2)
    stream.cancel()
    return gap


async def post(base: str, body: bytes) -> None:
    """In a process of its own: writing the body must not delay the reader measured here."""
    with tempfile.NamedTemporaryFile() as file:
        await asyncio.to_thread(file.write, body)
        file.flush()
        code = "import sys, httpx; httpx.post(sys.argv[1], content=open(sys.argv[2], 'rb').read(), timeout=300)"
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, base + "/v1/chat/completions", file.name
        )
        await client.wait()


def main() -> None:
    size = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else 100 * MIB
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(folder, SCRIPT)
        with Served(script, "--max-context", "4096", "--max-concurrency", "2", "--no-thinking") as server:
            base = f"http://{HOST}:{server.port}"
            for kind, build in [("stream-alone", None), *KINDS.items()]:
                body = None if build is None else build(size)
                silences = [1e3 * asyncio.run(longest_silence(base, body)) for _ in range(RUNS)]
                rows.append(row("body_stall", f"{kind}-{size // MIB}mib", "ninfer", silences))
                print(f"{kind:<20} {rows[-1].median_ms:8.1f} ms  ({rows[-1].p20_ms:.1f} to {rows[-1].p80_ms:.1f})")
    append(Path(__file__).parent / "rows" / "body_stall.jsonl", rows)


if __name__ == "__main__":
    main()
