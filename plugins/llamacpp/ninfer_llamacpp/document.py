"""What ``docs/protocols/llamacpp.md`` is made from."""

from __future__ import annotations

from ninfer_core.api.fields import Endpoint, ProtocolDocument
from ninfer_core.api.raw import ResponseFormat

from .types import CompletionBody, DetokenizeBody, DocumentIn, ModelBody, RerankBody, TokenizeBody

STREAM = (
    "A stream's events carry the next `content` and the running `tokens_predicted`; the last one is the full object"
    " with an empty `content`, and with the ids of the generated tokens where `return_tokens` asks for them. There is"
    " no `[DONE]`."
)
SCORES = (
    "The model is asked about each document in turn, thinking off, and a score is the share of yes in what its first"
    " token would be, yes or no. Scores of one query can be compared; those of two queries cannot."
)
CATALOG = (
    "The catalog of this server is its one model. It is loaded, so loading it again changes nothing; `POST"
    " /models/unload` is `model_unload_not_supported` and `POST /models/sleep` is `model_suspend_disabled`, both 501,"
    " and take the same body."
)

DOCUMENT = ProtocolDocument(
    title="llama.cpp: fields of the bodies",
    intro=(
        "A value that cannot be used is a 400 whose `param` names its place: `invalid_type`, `invalid_value`,"
        " `missing_required_parameter`, or the code below. Null is as good as left out. A body of more than 50,000"
        " objects and arrays is `request_too_complex`, one with a `content-encoding` `content_encoding_not_supported`."
    ),
    endpoints=(
        Endpoint(
            route="POST /completion",
            summary="A raw prompt, also at `/completions`: no template, no reasoning channel, no tools.",
            body=CompletionBody,
            parts=(("`response_format`", ResponseFormat),),
            notes=(STREAM,),
        ),
        Endpoint(route="POST /tokenize", summary="A text as token ids.", body=TokenizeBody),
        Endpoint(route="POST /detokenize", summary="Token ids as text.", body=DetokenizeBody),
        Endpoint(
            route="POST /v1/rerank",
            summary="Documents by their relevance to a query, also at `/rerank`, `/v1/reranking` and `/reranking`.",
            body=RerankBody,
            parts=(("`documents[]`", DocumentIn),),
            notes=(SCORES,),
        ),
        Endpoint(
            route="POST /models/load", summary="A model of the catalog is loaded.", body=ModelBody, notes=(CATALOG,)
        ),
    ),
)
