"""The contract of copy sources on a small one, and on broken versions of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ninfer_core.api import CopySource, Draft, DraftRequest, Option, SpeculativeBackend, integer
from ninfer_core.testing import SpeculativeBackendContract


class Repeats:
    """Proposes what followed the last token the last time."""

    max_drafts = 8

    def begin(self, request: DraftRequest) -> Any:
        return {"prompt": request.prompt_ids}

    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        for at in range(len(ledger) - 2, -1, -1):
            if ledger[at] == ledger[-1] and maximum > 0:
                return Draft(tokens=tuple(ledger[at + 1 : at + 1 + min(maximum, self.max_drafts)]), matched=1)
        return None

    def observe(self, handle: Any, draft: Draft, accepted: int) -> None: ...

    def finish(self, handle: Any) -> None: ...


class TooMany(Repeats):
    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        return super().propose(handle, ledger, self.max_drafts)


class Empty(Repeats):
    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        return Draft(tokens=())


class Random(Repeats):
    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        return Draft(tokens=(random.randrange(1 << 30),)) if maximum else None


class SharesAHistory(Repeats):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        self.seen.append(ledger[-1])
        return super().propose(handle, self.seen, maximum)


class KeepsEverything(Repeats):
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def begin(self, request: DraftRequest) -> Any:
        self.kept.append([request.request_id, {}])
        return super().begin(request)

    def observe(self, handle: Any, draft: Draft, accepted: int) -> None:
        self.kept.append([draft])


class AppendsToTheLedger(Repeats):
    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        assert isinstance(ledger, list)
        ledger.append(0)
        return None


def contract(source: type[Repeats]) -> SpeculativeBackendContract:
    class Broken(SpeculativeBackendContract):
        backend = SpeculativeBackend(name="x", summary="x", role="copy", open=lambda context: source())

    return Broken()


def open_repeats(context: Any) -> CopySource:
    assert context.options["repeat_tokens"] == 8
    return Repeats()


class TestRepeats(SpeculativeBackendContract):
    backend = SpeculativeBackend(
        name="repeat",
        summary="what followed the last time",
        role="copy",
        open=open_repeats,
        options=(Option(flag="--repeat-tokens", help="how many", parse=integer(1, 9), default=8),),
    )


CAUGHT = [
    (TooMany, "test_a_proposal_keeps_to_the_maximum_asked_for", (0,)),
    (Empty, "test_a_ledger_may_grow_by_any_number_of_tokens_between_proposals", ()),
    (Random, "test_the_same_request_gets_the_same_proposals", ()),
    (SharesAHistory, "test_requests_do_not_influence_each_other", ()),
    (KeepsEverything, "test_finish_lets_go_of_the_request", ()),
    (AppendsToTheLedger, "test_what_it_is_given_stays_as_it_was", ()),
]


@pytest.mark.parametrize(("source", "check", "args"), CAUGHT, ids=[source.__name__ for source, *_ in CAUGHT])
def test_a_wrong_source_is_caught(source: type[Repeats], check: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(AssertionError):
        getattr(contract(source), check)(*args)
