"""Request bodies on their way in: small ones in memory, large ones in a file that a process of its own reads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import msgspec
import structlog

from ninfer_core.api import ApiError, ContextLengthExceeded, ModelInfo, OptionValues, Overloaded, QueueTimeout
from ninfer_core.api.bodies import decode_unchecked
from ninfer_core.errors import InternalError, InvariantError, RequestTooLarge

from .body_worker import Report
from .stream import ClientGone, Message

log = structlog.get_logger()

T = TypeVar("T")
MIB = 1 << 20
SPOOL_BYTES = 4 * MIB  # a body above this size goes into a file
WRITE_BYTES = 1 * MIB
WORKERS = 1 if (os.cpu_count() or 1) <= 2 else 2  # bodies read at once; the others wait
WAIT_SECONDS = 60.0  # where no option says how long a request may wait
AT_ONCE = 64  # where no option says how many requests may be in the house
VALUES = 300_000  # JSON values that are read, and one more for each token of the context
TEXT_BYTES = 8 * MIB  # of text that is read beside
TOKEN_BYTES = 8  # for each token of the context; a token of real text has four or five


class BodyRoom:
    """Receives the bodies of one listener. Used from the event loop.

    ``at_once``: the most bodies in files, so that clients who send slowly cannot fill the memory; Overloaded beyond.
    ``wait_seconds``: until a large body is read, from when it is whole; QueueTimeout beyond. ``model``: the served one.
    """

    def __init__(
        self,
        *,
        limit_mib: int,
        at_once: int = AT_ONCE,
        wait_seconds: float = WAIT_SECONDS,
        model: Callable[[], ModelInfo | None] = lambda: None,
    ) -> None:
        self.held = 0  # bodies in files
        self.wait_seconds = wait_seconds
        self.model = model
        self.workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="ninfer-body")
        self.writers = ThreadPoolExecutor(1, thread_name_prefix="ninfer-body-file")
        self._lock = threading.Lock()
        self._limit_mib, self._at_once = limit_mib, at_once

    @classmethod
    def of(cls, values: OptionValues, model: Callable[[], ModelInfo | None]) -> BodyRoom:
        """As the operator's options say."""
        lanes, pending = values.get("max_concurrency"), values.get("max_pending_requests")
        timeout_ms = values.get("pending_timeout_ms")
        return cls(
            limit_mib=values["max_request_mib"],
            at_once=AT_ONCE if lanes is None or pending is None else lanes + pending,
            wait_seconds=WAIT_SECONDS if timeout_ms is None else timeout_ms / 1e3,
            model=model,
        )

    async def receive(self, receive: Callable[[], Awaitable[Message]], declared: str | None) -> bytes | SpooledBody:
        """The whole body; RequestTooLarge as soon as its declared or received length exceeds the limit."""
        limit = self._limit_mib * MIB
        expected = int(declared) if declared is not None and declared.isascii() and declared.isdigit() else 0
        pieces: list[bytes] = []
        received = waiting = 0  # bytes, and those of ``pieces``
        spool: SpooledBody | None = None
        try:
            more = True
            while more:
                if expected > limit:
                    raise RequestTooLarge(self._limit_mib)
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                pieces.append(message.get("body", b""))
                more = message.get("more_body", False)
                received, waiting = received + len(pieces[-1]), waiting + len(pieces[-1])
                if received > limit:
                    raise RequestTooLarge(self._limit_mib)
                if spool is None and max(expected, received) > SPOOL_BYTES:
                    spool = SpooledBody(self)
                if spool is not None and (waiting >= WRITE_BYTES or not more):
                    await spool.add(pieces)
                    pieces, waiting = [], 0
        except BaseException:
            if spool is not None:
                spool.close()
            raise
        return b"".join(pieces) if spool is None else spool

    def take_place(self) -> None:
        """For one body in a file; Overloaded."""
        with self._lock:
            if self.held >= self._at_once:
                raise Overloaded
            self.held += 1

    def closed(self) -> None:
        """The memory of one body is back. Called on any thread."""
        with self._lock:
            self.held -= 1


class SpooledBody:
    """An ``api.http.LargeBody``: bytes in a file without a name, until ``close``.

    The file is written and given back on a thread: the system takes its time over hundreds of MiB.
    """

    def __init__(self, room: BodyRoom) -> None:
        room.take_place()
        self.size = 0
        self._room = room
        self._file: BinaryIO | None = _nameless_file("ninfer-body")

    async def add(self, pieces: list[bytes]) -> None:
        assert self._file is not None
        await asyncio.get_running_loop().run_in_executor(self._room.writers, _write, self._file, pieces)
        self.size += sum(map(len, pieces))

    def close(self) -> None:
        """Give the memory back, after what is being written. No process may be reading any more."""
        if self._file is not None:
            file, self._file = self._file, None
            self._room.writers.submit(file.close).add_done_callback(lambda _: self._room.closed())

    async def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """As ``api.http.decode``. Ends the process that reads when the client goes away, or when it is too late."""
        if self._file is None:
            raise InvariantError("a body is decoded after its exchange")
        model = self._room.model()
        context = 0 if model is None else model.max_context
        # a prompt may be a list of token ids
        bounds = (VALUES + context, TEXT_BYTES + TOKEN_BYTES * context)
        reading = _Reading(self._file.fileno(), (_name_of(decoder.type), *map(str, (int(decoder.strict), *bounds))))
        done = asyncio.get_running_loop().run_in_executor(self._room.workers, reading.run)
        try:
            report, result = await asyncio.wait_for(done, self._room.wait_seconds)
        except TimeoutError:
            raise QueueTimeout from None
        finally:
            reading.end()
        if report.refusal is not None:
            raise ApiError(report.refusal.code, report.refusal.message, param=report.refusal.param)
        if report.text_bytes is not None:
            raise self._too_long(report.text_bytes)
        return await asyncio.to_thread(decode_unchecked, result, decoder)

    def _too_long(self, text_bytes: int) -> ApiError:
        model = self._room.model()
        if model is None:
            raise InvariantError("a body is decoded while no model is served")
        if model.longest_token is not None and text_bytes > model.longest_token * model.max_context:
            return ContextLengthExceeded(-(-text_bytes // model.longest_token), model.max_context, at_least=True)
        limit = TEXT_BYTES + TOKEN_BYTES * model.max_context
        text = (
            f"The request body holds more than {limit} bytes of text, which is what this server reads for its context "
            f"of {model.max_context} tokens."
        )
        return ApiError("context_length_exceeded", text, fields={"n_ctx": model.max_context})


class _Reading:
    """One process that reads a body. ``run`` is called on a thread, ``end`` on the event loop."""

    def __init__(self, body_fd: int, arguments: tuple[str, ...]) -> None:
        self._body_fd, self._arguments = body_fd, arguments
        self._lock = threading.Lock()  # between starting the process and giving its file away
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> tuple[Report, bytes]:
        """The worker's report and its result; InternalError when it died."""
        with _nameless_file("ninfer-body-result") as out:
            process = self._start(out.fileno())
            said, _ = process.communicate()
            if process.returncode == 0:
                report = msgspec.json.decode(said, type=Report)
                return report, os.pread(out.fileno(), report.result_bytes, 0)
        if not self._ended:
            log.error("body_worker_died", status=process.returncode)
        raise InternalError

    def end(self) -> None:
        """No process reads the body after this."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _start(self, result_fd: int) -> subprocess.Popen[bytes]:
        # -P: a file of the working directory must not stand in for a module
        command = [sys.executable, "-P", "-m", "ninfer_core.serve.body_worker"]
        with self._lock:
            if self._ended:
                raise InternalError
            self._process = subprocess.Popen(
                [*command, str(self._body_fd), str(result_fd), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(self._body_fd, result_fd),
                start_new_session=True,  # Ctrl+C is for the server to understand
            )
        return self._process


def _write(file: BinaryIO, pieces: list[bytes]) -> None:
    for piece in pieces:
        while piece:
            piece = piece[file.write(piece) :]


def _name_of(kind: Any) -> str:
    if not isinstance(kind, type) or "<locals>" in kind.__qualname__ or kind.__module__ in ("builtins", "__main__"):
        raise InvariantError(f"a body's type must be a class of a module, to be read apart; it is {kind!r}")
    return f"{kind.__module__}:{kind.__qualname__}"


def _nameless_file(label: str) -> BinaryIO:
    """Memory that another process can read; on the disk where the system has no such file."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create(label), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
