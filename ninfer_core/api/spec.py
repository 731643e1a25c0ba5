"""Speculative backends: what ``--spec`` chooses. The core owns rounds, verification and acceptance
(``spec/speculation.md`` §2, §14); a backend only proposes, so it can change the speed and never the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .options import Option, OptionValues


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecContext:
    """What a backend may know when it is planned."""

    architecture: str
    max_concurrency: int
    max_context: int  # tokens
    control_token_ids: frozenset[int]  # copies never cross one
    options: OptionValues


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftRequest:
    """One request as a copy source sees it."""

    request_id: int
    prompt_ids: Sequence[int]
    tool_texts: Sequence[Sequence[int]] = ()  # derived tool sources, tokenized (speculation.md §9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Tokens a source proposes to follow the ledger; ``matched`` is the length of the match they come from."""

    tokens: tuple[int, ...]
    matched: int = 0


class CopySource(Protocol):
    """A proposer on the host; a pure function of committed data (speculation.md §14.3). Called by the engine thread."""

    max_drafts: int

    def begin(self, request: DraftRequest) -> object:
        """A handle for one request."""

    def propose(self, handle: object, ledger: Sequence[int], maximum: int) -> Draft | None:
        """At most ``maximum`` tokens to follow ``ledger`` (prompt and committed output), or None."""

    def observe(self, handle: object, draft: Draft, accepted: int) -> None:
        """What became of a proposal."""

    def finish(self, handle: object) -> None:
        """The request is over; the handle is not used again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculativeBackend:
    """``role="copy"`` backends return a CopySource from ``open``. ``open`` raises Refusal when the combination cannot
    work. ``options`` are declared with the backend and offered beside the core's."""

    name: str
    summary: str
    role: str  # "copy"
    open: Callable[[SpecContext], CopySource]
    options: tuple[Option, ...] = ()
