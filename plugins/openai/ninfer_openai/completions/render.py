"""A raw completion on the wire: the aggregate object and the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ninfer_core.api import Delta, Done, Engine, Generation, RawJob, Result, Started

from ..answers import FINISH, Head

KIND = "text_completion"


async def prompt_text(engine: Engine, job: RawJob) -> str:
    """What ``echo`` puts first: the client's own strings, and its token ids as text."""
    texts = [piece if isinstance(piece, str) else await engine.detokenize(piece) for piece in job.prompt]
    return "".join(texts)


def completion(result: Result, head: Head, echo: str) -> dict[str, Any]:
    """The aggregate ``text_completion`` object."""
    return head.whole(KIND, _choice(echo + _text(result), FINISH[result.finish]), result)


async def chunks(generation: Generation, head: Head, echo: str) -> AsyncIterator[bytes]:
    """The event stream: the echoed prompt, texts, finish, usage when asked for, ``[DONE]``."""
    async with generation:
        async for event in generation:
            match event:
                case Started():
                    if echo:
                        yield head.chunk(KIND, _choice(echo))
                case Delta(text=text):
                    yield head.chunk(KIND, _choice(text), **head.live(event.timings))
                case Done(result=result):
                    for chunk in head.ending(KIND, _choice("", FINISH[result.finish]), _choice(""), result):
                        yield chunk


def _text(result: Result) -> str:
    return result.reasoning + result.content


def _choice(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
