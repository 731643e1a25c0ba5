"""A Completions body as the core's ``RawJob``."""

from __future__ import annotations

from ninfer_core.api import RawJob
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.raw import NO_LIMIT, raw_prompt, raw_sampling, raw_stops

from .types import CompletionBody


def to_job(body: CompletionBody, *, vocab_tokens: int, request_id: str) -> RawJob:
    """The job. ApiError 400 for everything this server cannot do as asked."""
    refuse_unsupported(body)
    return RawJob(
        prompt=raw_prompt(body.prompt, vocab_tokens),
        sampling=raw_sampling(body),
        max_tokens=NO_LIMIT if body.max_tokens == -1 else body.max_tokens,
        stops=raw_stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
        request_id=request_id,
        protocol="openai-completions",
    )
