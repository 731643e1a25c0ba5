"""Bodies of llama.cpp's routes as they arrive. Fields without effect are not listed: unknown members are skipped."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from ninfer_core.api.fields import Only, Used, left_out
from ninfer_core.api.raw import RawBody


class CompletionBody(RawBody, kw_only=True):
    """A raw prompt and llama.cpp's own fields."""

    n_predict: Annotated[int | None, Used("0 and up; a negative one is no limit")] = None
    max_tokens: Annotated[int | None, Used("the same, where `n_predict` is absent")] = None
    return_progress: Annotated[bool | None, Used("true: progress chunks while a streamed request's prompt is read")] = (
        None
    )
    return_tokens: Annotated[bool | None, Used("true: the ids of the generated tokens")] = None
    response_fields: Annotated[list[str] | None, Used("the members to keep; `a/b` is member b of a")] = None
    json_schema: Annotated[Any, Only(left_out, "", "Output is not constrained", "response_format_not_supported")] = None


class TokenizeBody(Struct):
    content: str
    model: str | None = None
    parse_special: bool = True
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(Struct):
    tokens: list[int]
    model: str | None = None
