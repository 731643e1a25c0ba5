"""The longest silence of a stream while another client's large body is received and read, in milliseconds.

    python bench/body_stall.py [MIB] [KIND ...]

A scripted model streams a token every few milliseconds; meanwhile a body of MIB mebibytes (default 384) is sent at full
speed, each kind on its own. The first row is the stream alone. The note says how the body was answered, after how long,
and what the server's own memory grew by. Appends to ``bench/rows/body_stall.jsonl``.
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


def prompt(content: bytes) -> bytes:
    """Goes all the way to the engine's refusal, when it is read at all."""
    return b'{"messages":[' + message(content) + b"]}"


TOOL = b"""{"type":"function","function":{"name":"t%d","description":"Does it.","parameters":{"type":"object",
"properties":{"a":{"type":"string","description":"the first"},"b":{"type":"integer"}},"required":["a"]}}}"""


def many(one: bytes, size: int) -> bytes:
    """``one`` with a number in it, as often as ``size`` has room for."""
    return b",".join(one % at for at in range(size // len(one)))


KINDS: dict[str, Callable[[int], bytes]] = {
    "one-string": lambda size: chat(message(b'"' + b"x" * size + b'"')),
    "one-prompt": lambda size: prompt(b'"' + b"word " * (size // 5) + b'"'),
    "one-prompt-cjk": lambda size: prompt(b'"' + "語".encode() * (size // 3) + b'"'),
    "strings-of-10-mib": lambda size: chat(*[message(b'"' + b"x" * PART + b'"')] * max(size // PART, 1)),
    "escapes": lambda size: chat(message(b'"' + rb"a line\n" * (size // 8) + b'"')),
    "small-messages": lambda size: chat(*[message(b'"hello"')] * (size // 34)),
    "many-tools": lambda size: prompt(b'"hi"')[:-1] + b',"tools":[' + many(TOOL, size) + b"]}",
    "token-ids": lambda size: b'{"model":"another","messages":[],"x":[' + b"12345," * (size // 6) + b"1]}",
    "deep": lambda size: b'{"messages":' + b"[" * size,
    "unknown-string": lambda size: chat(message(b'"hi"'))[:-1] + b',"unknown":"' + b"x" * size + b'"}',
    "unknown-objects": lambda size: chat(message(b'"hi"'))[:-1] + b',"unknown":[' + b"{}," * (size // 3) + b"{}]}",
    "bad-end": lambda size: chat(message(b'"' + b"x" * size + b'"'))[:-1] + b",}",
    "not-json": lambda size: b'{"messages":"' + b"x" * size,
}


async def longest_silence(port: int, body: bytes | None) -> tuple[float, str]:
    """Seconds between two chunks of the stream, at most, from before the body is sent until after it is answered."""
    gap, last, reading, said = 0.0, time.perf_counter(), asyncio.Event(), "nothing else runs"

    async def read() -> None:
        nonlocal gap, last
        async with (
            httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=60) as client,
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
        said = await post(port, body)
    await asyncio.sleep(0.2)
    stream.cancel()
    return gap, said


SENDER = """
import http.client, sys, time
body, began = open(sys.argv[2], "rb").read(), time.perf_counter()
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=300)
connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
answer = connection.getresponse()
print(f"status {answer.status} after {time.perf_counter() - began:.2f} s: {answer.read(160)!r}")
"""


async def post(port: int, body: bytes) -> str:
    """In a process of its own: writing the body must not delay the reader measured here."""
    with tempfile.NamedTemporaryFile() as file:
        await asyncio.to_thread(file.write, body)
        file.flush()
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, str(port), file.name, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await client.communicate()
        return said.decode().strip()


def peak_mib(pid: int) -> int:
    """The most memory the process has had since ``forget_peak``."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def forget_peak(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_mib(pid)


def main() -> None:
    size = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else 384 * MIB
    chosen = sys.argv[2:] or list(KINDS)
    if unknown := [kind for kind in chosen if kind not in KINDS]:
        sys.exit(f"{unknown[0]!r} is not a kind; kinds are {', '.join(KINDS)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(folder, SCRIPT)
        # one MiB more than the content: what is around it counts too
        flags = ("--max-context", "4096", "--max-concurrency", "2", "--no-thinking")
        with Served(script, *flags, "--max-request-mib", str(size // MIB + 1)) as server:
            for kind in (None, *chosen):
                body = None if kind is None else KINDS[kind](size)
                before = forget_peak(server.pid)
                found = [asyncio.run(longest_silence(server.port, body)) for _ in range(RUNS)]
                note = f"{found[-1][1]}; {peak_mib(server.pid) - before:+d} MiB"
                silences = [1e3 * gap for gap, _ in found]
                shape = f"{kind or 'stream-alone'}-{size // MIB}mib"
                rows.append(row("body_stall", shape, "ninfer", silences, note=note))
                print(f"{shape:<26} {rows[-1].median_ms:7.1f} ms  max {rows[-1].max_ms:7.1f}  {note}", flush=True)
    append(Path(__file__).parent / "rows" / "body_stall.jsonl", rows)


if __name__ == "__main__":
    main()
