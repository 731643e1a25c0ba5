"""Bodies of llama.cpp's routes as they arrive. Fields without effect are not listed: unknown members are skipped."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from ninfer_core.api.fields import Ignored, Only, Used, empty, equal, left_out
from ninfer_core.api.raw import RawBody

MODEL = "the public model id; left out, null or empty: the loaded model"
MOST_DOCUMENTS = 1000


class CompletionBody(RawBody, kw_only=True):
    """A raw prompt and llama.cpp's own fields."""

    n_predict: Annotated[int | None, Used("0 and up; a negative one is no limit")] = None
    max_tokens: Annotated[int | None, Used("the same, where `n_predict` is absent")] = None
    return_progress: Annotated[bool | None, Used("true: progress chunks while a streamed request's prompt is read")] = (
        None
    )
    return_tokens: Annotated[bool | None, Used("true: the ids of the generated tokens")] = None
    response_fields: Annotated[
        list[str] | None, Used("the members to keep; `a/b` is member b of a; an empty list keeps all")
    ] = None
    image_data: Annotated[Any, Only(empty, "[]", "A raw prompt has no images")] = None
    json_schema: Annotated[Any, Only(left_out, "", "Output is not constrained", "response_format_not_supported")] = None


class TokenizeBody(Struct, kw_only=True):
    content: Annotated[str, Used("the text")]
    model: Annotated[str | None, Used(MODEL)] = None
    parse_special: Annotated[
        bool | None, Used("false: a special token's spelling is text; left out, it is that token")
    ] = None
    add_special: Annotated[bool | None, Used("true: the model's own first token before them, where it has one")] = None
    with_pieces: Annotated[bool | None, Used("true: each token with what it spells")] = None


class DetokenizeBody(Struct, kw_only=True):
    tokens: Annotated[list[int], Used("token ids")]
    model: Annotated[str | None, Used(MODEL)] = None


class DocumentIn(Struct):
    text: Annotated[str, Used("what is judged; other members are skipped")]


class RerankBody(Struct, kw_only=True):
    """Jina's request with ``documents``, TEI's with ``texts``."""

    ignored: ClassVar[tuple[Ignored, ...]] = (
        Ignored(
            "truncate",
            "truncation_direction",
            "max_tokens_per_doc",
            "max_chunks_per_doc",
            why="a document is judged whole; one that does not fit the context is `context_length_exceeded`",
        ),
    )

    query: Annotated[str, Used("what is looked for")]
    documents: Annotated[
        Annotated[list[str | DocumentIn], Meta(min_length=1, max_length=MOST_DOCUMENTS)] | None,
        Used(f"1 to {MOST_DOCUMENTS} texts, or objects with a `text`"),
    ] = None
    texts: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=MOST_DOCUMENTS)] | None,
        Used("the same in TEI's form, instead of `documents`; the answer then has TEI's form too"),
    ] = None
    model: Annotated[str | None, Used(MODEL)] = None
    top_n: Annotated[Annotated[int, Meta(ge=1)] | None, Used("1 and up: the best of them alone")] = None
    return_documents: Annotated[bool | None, Used("false: `documents` come back as indices alone")] = None
    return_text: Annotated[bool | None, Used("true: `texts` come back beside their scores")] = None
    instruction: Annotated[str | None, Used("what relevance means; null or empty: an answer to a web search")] = None
    raw_scores: Annotated[bool | None, Only(equal(False), "false", "Scores are probabilities")] = None


class ModelBody(Struct):
    """Which model of the catalog."""

    model: Annotated[str, Used("its id")]
