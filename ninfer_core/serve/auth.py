"""The API key: who may use the server when the operator has set one.

Decided from header bytes alone, so nothing a client sends can make the check fail in another way than refusing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]
"""As ASGI has them: lower-case names, every occurrence."""

OPEN_PATHS = ("/health",)
"""Answered to GET and HEAD without the key. Preflights are open too; nothing else is."""


class ApiKey:
    """One key, kept as its digest only.

    Accepted as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. A header that stands twice is refused whatever it
    says: a proxy in front may have read the other one.
    """

    def __init__(self, key: str) -> None:
        self._digest = _digest(key.encode("utf-8", "surrogateescape"))

    def admits(self, headers: Headers) -> bool:
        """True when the key was sent."""
        sent = [(name, value.strip()) for name, value in headers if name in (b"authorization", b"x-api-key")]
        if len({name for name, _ in sent}) != len(sent):
            return False
        return any(self._matches(_bare(name, value)) for name, value in sent)

    def _matches(self, key: bytes) -> bool:
        return hmac.compare_digest(_digest(key), self._digest)


def is_open(method: str, path: str, headers: Headers) -> bool:
    """What a server with a key still answers to anybody. ``path`` is the one that routing uses."""
    if method in ("GET", "HEAD"):
        return path in OPEN_PATHS
    return is_preflight(method, headers)


def is_preflight(method: str, headers: Headers) -> bool:
    """A browser asking beforehand what a page of another origin may send; such a request cannot carry a key."""
    names = {name for name, _ in headers}
    return method == "OPTIONS" and b"origin" in names and b"access-control-request-method" in names


def _bare(name: bytes, value: bytes) -> bytes:
    """The key of one header; no key for a scheme that is not Bearer."""
    if name == b"x-api-key":
        return value
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
