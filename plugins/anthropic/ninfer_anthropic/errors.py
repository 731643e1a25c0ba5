"""Refusals in Anthropic's envelope and its categories."""

from __future__ import annotations

from typing import Any

from ninfer_core.api import ApiError, HttpResponse
from ninfer_core.api.http import json_response, sse_event

CATEGORIES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
STATUSES = {"server_overloaded": 529, "request_queue_timeout": 504}
PLACES = {"stop": "stop_sequences"}  # what the engine names in its own words


def status(error: ApiError) -> int:
    """The HTTP status: 529 when the server is full, 504 when a queue or a fetch took too long."""
    if error.status >= 500 and (error.code or "").endswith("_timeout"):
        return 504
    return STATUSES.get(error.code or "", error.status)


def envelope(error: ApiError, request_id: str) -> HttpResponse:
    """A refusal as a whole response."""
    return json_response(error_body(error, request_id), status=status(error), headers=error.headers)


def error_event(error: ApiError, request_id: str) -> bytes:
    """The same as the last event of a stream that has begun."""
    return sse_event(error_body(error, request_id), event="error")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The envelope. ``details`` names the cause and its place where the client can act on them."""
    code = status(error)
    kind = CATEGORIES.get(code, "invalid_request_error" if code < 500 else "api_error")
    inside: dict[str, Any] = {"type": kind, "message": _message(error)}
    if code < 500 and error.code is not None:
        place = {} if error.param is None else {"param": PLACES.get(error.param, error.param)}
        inside["details"] = {"error_code": error.code, **place, **error.fields}
    return {"type": "error", "error": inside, "request_id": request_id}


def _message(error: ApiError) -> str:
    """Agents recognise a conversation that has outgrown the model by these words, and shorten it."""
    if error.code != "context_length_exceeded":
        return error.message
    tokens, limit = error.fields.get("n_prompt_tokens"), error.fields.get("n_ctx")
    # a prompt far beyond the limit is not counted
    counts = "" if tokens is None or limit is None else f": {tokens} tokens > {limit} maximum"
    return f"prompt is too long{counts}. {error.message}"
