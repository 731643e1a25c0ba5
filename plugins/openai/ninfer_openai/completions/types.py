"""A Completions body as it arrives, and what becomes of each field."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from ninfer_core.api.fields import Ignored, Only, Used, empty, equal, left_out
from ninfer_core.api.raw import RawBody

from ..values import CONSTRAINED, Limit, StreamOptions


class CompletionBody(RawBody, kw_only=True):
    """OpenAI's legacy completion of one raw prompt, with the sampler fields of ``/completion``."""

    ignored: ClassVar[tuple[Ignored, ...]] = (
        Ignored("user", "metadata", why="labels of the client's own"),
        Ignored("any other name", why="unknown fields are skipped"),
    )

    max_tokens: Annotated[
        Limit | None, Used("0 and up; -1: no limit; left out: the default output limit; 0 generates nothing")
    ] = None
    echo: Annotated[bool | None, Used("true: the prompt's text precedes the completion")] = None
    stream_options: Annotated[StreamOptions | None, Used("an object")] = None

    suffix: Annotated[str | None, Only(empty, "empty", "Nothing is filled in between two texts")] = None
    n: Annotated[int | None, Only(equal(1), "1", "One request gives one completion")] = None
    best_of: Annotated[int | None, Only(equal(1), "1", "One request gives one completion")] = None
    logprobs: Annotated[int | None, Only(equal(0), "0", "Raw completions report no log probabilities")] = None
    repetition_penalty: Annotated[float | None, Only(equal(1), "1", "No repetition penalty is applied")] = None

    # constrained decoding of other servers
    structured_outputs: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_json: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_regex: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_choice: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_grammar: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    json_schema: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
