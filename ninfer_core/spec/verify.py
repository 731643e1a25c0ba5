"""Coupled acceptance: the token at a position depends on the seed, the position and the target alone, so drafts change
how many tokens a round commits and never which (speculation.md §3.3)."""

from __future__ import annotations

from collections.abc import Sequence


def licensed(drawn: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The tokens a round may commit. ``drawn[i]`` is the target's own token for column ``i``, for ``len(drafts) + 1``
    columns: drafts are kept while they equal it, then comes the first correction, or the bonus."""
    kept: list[int] = []
    for i, token in enumerate(drawn):
        kept.append(token)
        if i == len(drafts) or drafts[i] != token:
            return kept
    return kept
