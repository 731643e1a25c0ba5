"""CORS, off unless the operator asks: headers that let a page of any origin use the server and read its answers."""

from __future__ import annotations

import re

from ninfer_core.api import HttpResponse

from .auth import Headers

METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
REQUEST_HEADERS = ("authorization", "content-type", "x-api-key", "anthropic-version", "anthropic-beta")
EXPOSED = "x-request-id, request-id, x-ninfer-version, retry-after"
MAX_AGE_SECONDS = 600  # for which a browser need not ask again

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

ON_EVERY_ANSWER = (
    (b"access-control-allow-origin", b"*"),  # no cookie is used here, so no origin needs to be named
    (b"access-control-expose-headers", EXPOSED.encode()),
)


def preflight(headers: Headers) -> HttpResponse:
    """204: every method, the fixed headers, and on top of them whichever the browser asks for."""
    asked = b",".join(value for name, value in headers if name == b"access-control-request-headers")
    names = [name.strip().lower() for name in asked.decode("latin-1").split(",")]
    allowed = dict.fromkeys((*REQUEST_HEADERS, *(name for name in names if TOKEN.fullmatch(name))))
    return HttpResponse(
        status=204,
        headers={
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": ", ".join(allowed),
            "access-control-max-age": str(MAX_AGE_SECONDS),
        },
    )
