"""The copy source: one index per request, over its prompt, its derived tool texts and its committed output."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ninfer_core.api import Draft, DraftRequest

from .index import BOUNDARY, NgramIndex

HISTORY = 64  # tokens of the ledger a match may have
SPARE = 2  # tokens of a source's end that are never copied: the bonus and one more, where framing usually changes


class History:
    """What has been indexed for one request."""

    def __init__(self, request: DraftRequest) -> None:
        self.request: DraftRequest | None = request
        self.index: NgramIndex | None = None  # made at the first proposal
        self.indexed = len(request.prompt_ids)  # ledger tokens that are in the index, or will be with the prompt


class NgramSource:
    """``api.CopySource``: proposes what followed the longest earlier occurrence of the ledger's last tokens.

    Only committed tokens are indexed, and no copy crosses a control token or the end of a source. Source of the rules:
    spec/speculation.md §9, with no neural drafter to hand over to.
    """

    def __init__(self, *, max_drafts: int, min_match: int, boundaries: Collection[int]) -> None:
        self.max_drafts = max_drafts
        self.min_match = min_match
        self._boundaries = frozenset(boundaries)

    def begin(self, request: DraftRequest) -> History:
        return History(request)

    def propose(self, handle: object, ledger: Sequence[int], maximum: int) -> Draft | None:
        """At most ``maximum`` tokens, at most ``max_drafts``; None without a match of ``min_match`` tokens."""
        assert isinstance(handle, History)
        maximum = min(maximum, self.max_drafts)
        if maximum < 1:
            return None
        index = self._up_to_date(handle, ledger)
        found = index.find(ledger[-HISTORY:], self.min_match, maximum + SPARE)
        if found is None:
            return None
        tokens = found.following[: min(maximum, len(found.following) - SPARE)]
        return Draft(tokens=tuple(tokens), matched=found.length) if len(found.following) > SPARE else None

    def observe(self, handle: object, draft: Draft, accepted: int) -> None:
        """Short or absent matches fall back by themselves; a rejected copy changes nothing."""

    def finish(self, handle: object) -> None:
        """Give the request's index back."""
        assert isinstance(handle, History)
        handle.index = handle.request = None

    def _up_to_date(self, handle: History, ledger: Sequence[int]) -> NgramIndex:
        if handle.index is None:
            assert handle.request is not None
            sources = [handle.request.prompt_ids, *handle.request.tool_texts]
            handle.index = NgramIndex()
            handle.index.append(np.concatenate([self._closed(tokens) for tokens in sources]))
        if len(ledger) > handle.indexed:
            output = ledger[handle.indexed :]
            handle.index.append([BOUNDARY if token in self._boundaries else token for token in output])
            handle.indexed = len(ledger)
        return handle.index

    def _closed(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """A whole source: control tokens become boundaries, and one ends it."""
        ids = np.array([*tokens, BOUNDARY], dtype=np.int32)
        ids[np.isin(ids, list(self._boundaries))] = BOUNDARY
        return ids
