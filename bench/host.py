"""What the host costs beside the model. Appends to ``rows/host.jsonl``.

rounds: the engine thread's time per decode round without the model, at 1, 8 and 32 rows (scripted model in this
process). prompts: template and tokenizer at 8K tokens, and a whole HTTP request that generates nothing (demo model, a
server of its own). streams: time between the chunks of 8 streams while another client sends 380 MiB.
``python bench/host.py [rounds] [prompts] [streams]``; all of them when none is named.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import msgspec
from served import HOST, Served, write_script

from ninfer_core.api import ChatJob, Message, Part, PromptFormat, RawJob, SamplingRequest
from ninfer_core.cli.bench.boundaries import full_rounds, host_rows, snapshots_of
from ninfer_core.cli.rows import Row, append, row
from ninfer_core.demo import demo_model
from ninfer_core.engine.engine import SWITCH_SECONDS, LocalEngine
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.progress import Silent
from ninfer_core.engine.stats import Snapshot
from ninfer_core.logs import configure
from ninfer_core.options import parse
from ninfer_core.plugins import load
from ninfer_core.text.prompt import PromptBuilder
from ninfer_core.weights.checkpoint import open_checkpoint

ROWS = (1, 8, 32)
ROUNDS = 300  # measured, after
WARM_ROUNDS = 50
PROMPT_TOKENS = 8000  # of the 8192 the demo model takes
TURNS = 41
PROMPTS = 20  # measured of each kind
STREAMS = 8
DELAY_MS = 10.0
QUIET_SECONDS = 3.0
BODY_BYTES = 380 << 20  # just under what a server takes by default
ENDLESS = {"text": "la", "finish": "never"}  # a last token that is never withheld
CONTENT_TYPE = {"content-type": "application/json"}


def main() -> None:
    parts: dict[str, Callable[[], Iterator[Row]]] = {"rounds": rounds, "prompts": prompts, "streams": streams}
    chosen = sys.argv[1:] or list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        sys.exit(f"{unknown[0]!r} is not a part; parts are {', '.join(parts)}")
    configure("error")
    for name in chosen:
        for item in parts[name]():
            append(Path(__file__).parent / "rows" / "host.jsonl", [item])
            print(line(item), flush=True)


def line(item: Row) -> str:
    spread = f"p50 {item.median_ms:8.3f} ms  p90 {item.p90_ms:8.3f}  max {item.max_ms:8.3f}"
    return f"{item.op:<18} {item.shape:<22} {item.impl:<10} {spread}  {item.note}"


# ------------------------------------------------------------------ decode rounds


def rounds() -> Iterator[Row]:
    """Once on the wall's clock, as users have it, and once on the thread's own, which a busy machine does not stretch
    by other programs' turns."""
    sys.setswitchinterval(SWITCH_SECONDS)
    for count in ROWS:
        for impl, clock in (("wall", time.perf_counter), ("cpu", time.thread_time)):
            found = full_rounds(asyncio.run(decoded(count, clock)), count)[-ROUNDS:]
            yield from host_rows(found, count, impl, "the scripted model and the sampler")


async def decoded(count: int, clock: Callable[[], float]) -> list[Snapshot]:
    """A snapshot of each boundary of ``count`` requests that generate at once, their clients on this loop."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(write_script(folder, {"default": ENDLESS}), "--max-concurrency", str(count))
        engine.worker.program.clock._clock = clock  # set before its thread starts
        loop, enough = asyncio.get_running_loop(), asyncio.Event()
        full = itertools.count(1)

        def heard(snapshot: Snapshot) -> None:
            if snapshot.gauges.decode_ready == count and next(full) == WARM_ROUNDS + ROUNDS:
                loop.call_soon_threadsafe(enough.set)

        snapshots = snapshots_of(engine.worker, heard)
        engine.start(loop)
        jobs = [RawJob(prompt=("go on",), sampling=SamplingRequest(seed=i), max_tokens=4000) for i in range(count)]
        clients = [asyncio.create_task(read_to_the_end(engine, job)) for job in jobs]
        await enough.wait()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        engine.stop()
        await asyncio.to_thread(engine.join)
        return snapshots


async def read_to_the_end(engine: LocalEngine, job: RawJob) -> None:
    async with await engine.complete(job) as generation:
        async for _ in generation:
            pass


def open_engine(model: str, *flags: str) -> LocalEngine:
    plugins = load()
    _, values = parse([model, *flags, "--kv-capacity", str(32 * 8192)], plugins, "serve")
    return load_engine(model, values, plugins, Silent())


# ------------------------------------------------------------------ prompts


def prompts() -> Iterator[Row]:
    plugins = load()
    family, checkpoint = open_checkpoint(demo_model(), plugins)
    format = family.prompt(checkpoint)
    writer = Writer(format)
    yield from prepared(format, writer)
    with Served(demo_model(), "--max-context", "8192") as server:
        yield from requested(Client(server.port), writer)


class Writer:
    """Conversations of real text; the same number gives the same one."""

    def __init__(self, format: PromptFormat) -> None:
        self._tokenizer = format.tokenizer
        self._ids = self._tokenizer.encode("\n".join(topics[name] for name in sorted(topics)))

    def conversation(self, number: int, turns: int, tokens: int = PROMPT_TOKENS) -> list[dict[str, str]]:
        """About ``tokens`` in all."""
        each = tokens // turns - 6  # what the template puts around a turn
        roles = ("user", "assistant")
        return [{"role": roles[i % 2], "content": self.text(f"{number} {turns} {i}", each)} for i in range(turns)]

    def text(self, seed: str, tokens: int) -> str:
        at = random.Random(seed).randrange(len(self._ids) - tokens)
        return b"".join(map(self._tokenizer.token_bytes, self._ids[at : at + tokens])).decode("utf-8", "replace")


def prepared(format: PromptFormat, writer: Writer) -> Iterator[Row]:
    """In this process, a call at a time: rendering; encoding of new prompts, and of known ones with a turn more."""
    encode = format.tokenizer.encode_with_control
    for turns in (1, TURNS):
        jobs = [job_of(writer.conversation(i, turns)) for i in range(PROMPTS)]
        warm = builder(format)
        for job in jobs:
            if turns > 1:
                warm.chat(ChatJob(messages=job.messages[:-2]))
        texts = [warm.render(job) for job in jobs]
        tokens = sum(len(encode(text)) for text in texts) // len(texts)
        shape = f"T{tokens}-M{turns}"
        yield row("template_render", shape, "ninfer", times_ms(warm.render, jobs), tokens=tokens)
        yield row("prompt_encode", shape, "tokenizers", times_ms(encode, texts), tokens=tokens, note="no cache")
        yield row("prompt_prepare", shape + "-cold", "ninfer", times_ms(builder(format).chat, jobs), tokens=tokens)
        if turns > 1:
            yield row("prompt_prepare", shape + "-turn", "ninfer", times_ms(warm.chat, jobs), tokens=tokens)


def requested(client: Client, writer: Writer) -> Iterator[Row]:
    """Over HTTP, for no output: what is left is transport, template and tokenizer."""
    client.ask(writer.conversation(-1, 1))
    cold: list[float] = []
    turn: list[float] = []
    for i in range(PROMPTS):
        conversation = writer.conversation(i, TURNS)
        cold.append(client.ask(conversation[:-2]))
        turn.append(client.ask(conversation))
    alone = [client.ask(writer.conversation(i, 1)) for i in range(PROMPTS)]
    tiny = [client.ask(writer.conversation(i, 1, 20)) for i in range(PROMPTS)]
    tokens = client.prompt_tokens
    yield row("http_no_output", "T20-M1", "ninfer", tiny)
    yield row("http_no_output", f"T{PROMPT_TOKENS}-M1-cold", "ninfer", alone, tokens=tokens)
    yield row("http_no_output", f"T{PROMPT_TOKENS}-M{TURNS - 2}-cold", "ninfer", cold, tokens=tokens)
    yield row("http_no_output", f"T{PROMPT_TOKENS}-M{TURNS}-turn", "ninfer", turn, tokens=tokens)


class Client:
    """One kept connection; a body is encoded before its time begins."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port)
        self.prompt_tokens = 0  # of the longest answered prompt

    def ask(self, messages: list[dict[str, str]]) -> float:
        """Milliseconds to the whole answer. RuntimeError when the server refuses."""
        body = msgspec.json.encode({"messages": messages, "max_tokens": 0})
        began = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body, CONTENT_TYPE)
        answer = self._connection.getresponse()
        data = answer.read()
        spent = 1e3 * (time.perf_counter() - began)
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {data[:200]!r}")
        self.prompt_tokens = max(self.prompt_tokens, msgspec.json.decode(data)["usage"]["prompt_tokens"])
        return spent


def job_of(messages: Sequence[dict[str, str]]) -> ChatJob:
    turns = [Message(role=m["role"], content=(Part(text=m["content"]),)) for m in messages]  # type: ignore[arg-type]
    return ChatJob(messages=tuple(turns))


def builder(format: PromptFormat) -> PromptBuilder:
    return PromptBuilder(
        format, default_thinking=None, default_effort=None, default_preserve_thinking=None, template_override=None
    )


def times_ms(call: Callable[[Any], object], arguments: Sequence[Any]) -> list[float]:
    found = []
    for argument in arguments:
        began = time.perf_counter()
        call(argument)
        found.append(1e3 * (time.perf_counter() - began))
    return found


# ------------------------------------------------------------------ streams


def streams() -> Iterator[Row]:
    script = {"default": {**ENDLESS, "delay_ms": DELAY_MS}}
    with tempfile.TemporaryDirectory() as folder:
        model = write_script(folder, script)
        flags = ("--max-concurrency", str(STREAMS), "--max-context", "65536")
        with Served(model, *flags) as server:
            for kind in (None, "one string", "small messages"):
                gaps, note = asyncio.run(gaps_beside(server.port, kind))
                impl = "quiet" if kind is None else f"{BODY_BYTES >> 20}MiB"
                yield row("sse_gap", f"S{STREAMS}-D{DELAY_MS:g}", impl, gaps, note=note)


async def gaps_beside(port: int, kind: str | None) -> tuple[list[float], str]:
    """Milliseconds between chunks, of all streams, while a body of that kind is sent, parsed and answered."""
    arrivals: list[list[float]] = [[] for _ in range(STREAMS)]
    running = [asyncio.Event() for _ in arrivals]
    readers = [
        asyncio.create_task(read_stream(port, times, event)) for times, event in zip(arrivals, running, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in running))
    began, note = time.perf_counter(), "nothing else runs"
    if kind is None:
        await asyncio.sleep(QUIET_SECONDS)
    else:
        note = f"{kind}: {await asyncio.to_thread(send_elsewhere, port, kind)}"
    ended = time.perf_counter()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return [1e3 * (b - a) for times in arrivals for a, b in pairwise(times) if began <= b and a <= ended], note


async def read_stream(port: int, times: list[float], running: asyncio.Event) -> None:
    """Note when each chunk arrives; ``running`` from the fiftieth on."""
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "go on"}], "stream": True})
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        while await reader.readuntil(b"\n\n"):
            times.append(time.perf_counter())
            if len(times) == WARM_ROUNDS:
                running.set()
    finally:
        writer.close()


def send_elsewhere(port: int, kind: str) -> str:
    """Send the body from a process of its own; what became of it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=send_body, args=(port, kind, theirs))
    process.start()
    said: str = ours.recv()
    process.join()
    return said


def send_body(port: int, kind: str, out: Any) -> None:
    text = "x" * (BODY_BYTES if kind == "one string" else 1000)
    messages = [{"role": "user", "content": text}] * (1 if kind == "one string" else BODY_BYTES // 1030)
    body = msgspec.json.encode({"messages": messages})
    connection = http.client.HTTPConnection(HOST, port)
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, CONTENT_TYPE)
    answer = connection.getresponse()
    answer.read()
    out.send(f"status {answer.status} after {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
