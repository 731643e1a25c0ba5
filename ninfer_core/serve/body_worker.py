"""A process that reads one large JSON body, so that the server's own interpreter is never held by it.

    python -m ninfer_core.serve.body_worker BODY_FD RESULT_FD MODULE:CLASS STRICT VALUES TEXT_BYTES

The body is read where it lies. Its long strings are left out of what is decoded: in their place stand names that nobody
could have sent, and only the strings a field of the class asked for are put back into the result. So a member nobody
reads costs nothing but the look at it, and the report can say how much text there is before any of it is copied.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import re
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from ninfer_core import json_scan
from ninfer_core.api.bodies import decode_unchecked
from ninfer_core.errors import ApiError

SPAN_BYTES = 128  # strings of this length are long
NICE = 10
CPU_SECONDS = 60
MEMORY_BYTES = 2 << 30  # beside twice the body


class Refusal(msgspec.Struct, kw_only=True):
    """An ApiError on its way to the server."""

    code: str | None
    message: str
    param: str | None = None


class Report(msgspec.Struct, kw_only=True):
    """What became of the body: a result, too long a text for one, or a refusal."""

    result_bytes: int = 0
    text_bytes: int | None = None  # of a text that is too long, at least
    refusal: Refusal | None = None


def main(arguments: list[str]) -> int:
    body_fd, result_fd, kind, strict = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3] == "1"
    bounds = json_scan.Bounds(values=int(arguments[4]), containers=json_scan.MAX_CONTAINERS)
    size = os.fstat(body_fd).st_size
    _be_modest(size)
    try:
        decoder = msgspec.json.Decoder(named_class(kind), strict=strict)
        body = mmap.mmap(body_fd, size, access=mmap.ACCESS_READ)
        report, pieces = read(body, decoder, bounds, text_bytes=int(arguments[5]))
        with open(result_fd, "wb", closefd=False) as out:
            out.writelines(pieces)
    except MemoryError:
        text = "The request body holds more than this server has memory to read."
        report = Report(refusal=Refusal(code="request_too_complex", message=text))
    sys.stdout.buffer.write(msgspec.json.encode(report))
    return 0


def named_class(kind: str) -> Any:
    """``module:Outer.Inner``."""
    module, _, name = kind.partition(":")
    found: Any = importlib.import_module(module)
    for step in name.split("."):
        found = getattr(found, step)
    return found


def read(
    body: Any, decoder: msgspec.json.Decoder[Any], bounds: json_scan.Bounds, *, text_bytes: int
) -> tuple[Report, list[bytes]]:
    """The report, and the pieces of the result: the body again, without what the decoder's type does not hold.

    A result has up to ``text_bytes``.
    """
    try:
        found = json_scan.scan(body, span_bytes=SPAN_BYTES, bounds=bounds)
        cut = _Cut(body, found.spans)
        rest = msgspec.json.encode(decode_unchecked(cut.rest, decoder, quote=False))
    except ApiError as error:
        return Report(refusal=Refusal(code=error.code, message=error.message, param=error.param)), []
    kept = cut.kept(rest)
    # the encoder spells out members that the body left to their defaults
    if min(len(rest), len(cut.rest)) + sum(end - begin for begin, end in kept) > text_bytes:
        return Report(text_bytes=sum(cut.least_text(begin, end) for begin, end in kept)), []
    pieces = list(cut.whole(rest))
    return Report(result_bytes=sum(map(len, pieces))), pieces


class _Cut:
    """A body without its long strings."""

    def __init__(self, body: Any, spans: list[tuple[int, int]]) -> None:
        self._body, self._spans = body, spans
        nonce = secrets.token_hex(12)
        self._name = re.compile(rb'"%s:(\d+)"' % nonce.encode())
        if not spans:
            self.rest: Any = body
            return
        pieces: list[Any] = []
        at = 0
        with memoryview(body) as view:
            for number, (begin, end) in enumerate(spans):
                pieces += (view[at:begin], f'"{nonce}:{number}"'.encode())
                at = end
            pieces.append(view[at:])
            self.rest = b"".join(pieces)
            for piece in pieces[::2]:
                piece.release()

    def kept(self, rest: bytes) -> list[tuple[int, int]]:
        """The long strings whose names are in ``rest``."""
        return [self._spans[int(found[1])] for found in self._name.finditer(rest)]

    def whole(self, rest: bytes) -> Iterator[bytes]:
        """``rest`` with its long strings, as the body spells them."""
        at = 0
        for found in self._name.finditer(rest):
            begin, end = self._spans[int(found[1])]
            yield rest[at : found.start()]
            yield self._body[begin:end]
            at = found.end()
        yield rest[at:]

    def least_text(self, begin: int, end: int) -> int:
        r"""Bytes the string stands for, at least: an escape is one byte or more, ``\u`` with its digits six of them."""
        spelled: bytes = self._body[begin:end]
        return end - begin - 2 - spelled.count(b"\\") - 4 * spelled.count(b"\\u")


def _be_modest(size: int) -> None:
    """Streams come first, and a body that explodes ends this process alone."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2 * size + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
