"""Rerank: the served chat model judges each document, and its first word is read as a probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import ApiError, ChatJob, Engine, Message, Part, Score
from ninfer_core.api.fields import refuse_unsupported

from .types import RerankBody

# the wording Qwen3-Reranker was trained on
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
YES, NO = ("yes", "Yes"), ("no", "No")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A request as it was understood."""

    query: str
    instruction: str
    documents: tuple[str, ...]
    field: str  # what they are called in the body
    best: int  # how many are returned
    with_text: bool

    @property
    def is_tei(self) -> bool:
        return self.field == "texts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The tokens that an answer begins with, each once."""

    yes: tuple[int, ...]
    no: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.yes + self.no


def question(body: RerankBody) -> Question:
    """ApiError 400 for a body without documents, or with two kinds of them."""
    refuse_unsupported(body)
    if body.documents is None and body.texts is None:
        text = "'documents' is required, or 'texts' in its place."
        raise ApiError("missing_required_parameter", text, param="documents")
    if body.documents is not None and body.texts is not None:
        raise ApiError("invalid_value", "'texts' stands in the place of 'documents'; send one of them.", param="texts")
    given: Sequence[Any] = body.documents if body.documents is not None else body.texts or ()
    shown = body.return_text is True if body.documents is None else body.return_documents is not False
    return Question(
        query=body.query,
        instruction=body.instruction or INSTRUCTION,
        documents=tuple(one if isinstance(one, str) else one.text for one in given),
        field="texts" if body.documents is None else "documents",
        best=min(body.top_n or len(given), len(given)),
        with_text=shown,
    )


def answers(engine: Engine) -> Answers:
    """What this model's yes and no begin with; ApiError where the two cannot be told apart, or it has no chats."""
    if not engine.info.has_chat:
        raise ApiError("rerank_not_supported", "This model has no chat template to be asked with.")
    yes, no = (tuple(dict.fromkeys(map(engine.first_token, words))) for words in (YES, NO))
    if set(yes) & set(no):
        raise ApiError("rerank_not_supported", "This model's yes and no begin with the same token.")
    return Answers(yes=yes, no=no)


def judgements(asked: Question, request_id: str) -> list[ChatJob]:
    """One prompt for each document. All of it but the document is the same, and marked as such."""
    system = Message(role="system", content=(Part(text=JUDGE),), place="instruction")
    shared = f"<Instruct>: {asked.instruction}\n<Query>: {asked.query}\n<Document>: "
    jobs = []
    for at, text in enumerate(asked.documents):
        content = (Part(text=shared, cache_boundary=True), Part(text=text))
        turn = Message(role="user", content=content, place=f"{asked.field}[{at}]")
        jobs.append(ChatJob(messages=(system, turn), thinking=False, request_id=request_id, protocol="llamacpp-rerank"))
    return jobs


def relevance(logprobs: Sequence[float], among: Answers) -> float:
    """``P(yes) / (P(yes) + P(no))``; 0 where the model would say neither."""
    best = max(logprobs)
    if not math.isfinite(best):
        return 0.0
    weights = [math.exp(value - best) for value in logprobs]
    return math.fsum(weights[: len(among.yes)]) / math.fsum(weights)


def ranking(asked: Question, scores: Sequence[Score], among: Answers) -> list[tuple[int, float]]:
    """Index and relevance of the best documents, best first; equals stay in their order."""
    rated = [(at, relevance(score.logprobs, among)) for at, score in enumerate(scores)]
    return sorted(rated, key=lambda one: -one[1])[: asked.best]


def answer(asked: Question, ranked: Sequence[tuple[int, float]], scores: Sequence[Score], model: str) -> Any:
    """Jina's object, or TEI's bare list."""
    if asked.is_tei:
        return [_tei(asked, at, value) for at, value in ranked]
    prompt_tokens = sum(score.prompt_tokens for score in scores)
    return {
        "model": model,
        "object": "list",
        "results": [_jina(asked, at, value) for at, value in ranked],
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def _jina(asked: Question, at: int, value: float) -> dict[str, Any]:
    document = {"document": {"text": asked.documents[at]}} if asked.with_text else {}
    return {"index": at, "relevance_score": value, **document}


def _tei(asked: Question, at: int, value: float) -> dict[str, Any]:
    return {"index": at, "score": value, **({"text": asked.documents[at]} if asked.with_text else {})}
