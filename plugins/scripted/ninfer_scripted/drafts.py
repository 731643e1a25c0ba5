"""The drafter that knows the script: it is right as often as the script tells it to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_core.api import Draft, DraftRequest

from .playback import Cursor, start
from .script import Script


@dataclass(kw_only=True, slots=True)
class Running:
    cursor: Cursor
    read: int  # tokens of the ledger the cursor has followed
    rounds: int = 0


class ScriptedDrafts:
    """Proposes ``draft[i]`` right tokens and a wrong one after them in round ``i`` of a request, in a cycle.

    A maximum below that cuts the proposal; a maximum of 0 uses no round up.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.max_drafts = most_drafts(script)

    def begin(self, request: DraftRequest) -> Running:
        return Running(cursor=start(self.script, request.prompt_ids), read=len(request.prompt_ids))

    def propose(self, handle: object, ledger: Sequence[int], maximum: int) -> Draft | None:
        assert isinstance(handle, Running)
        for i in range(handle.read, len(ledger)):
            handle.cursor = handle.cursor.follow(ledger[i])
        handle.read = len(ledger)
        cycle = handle.cursor.plan.reply.draft
        if not cycle or maximum < 1:
            return None
        right = cycle[handle.rounds % len(cycle)]
        handle.rounds += 1
        cursor, tokens = handle.cursor, []
        for _ in range(right):
            tokens.append(cursor.token)
            cursor = cursor.follow(cursor.token)
        tokens.append(ord("~") if cursor.token != ord("~") else ord("!"))
        return Draft(tokens=tuple(tokens[:maximum]), matched=right)

    def observe(self, handle: object, draft: Draft, accepted: int) -> None:
        """Nothing to learn: the script is known."""

    def finish(self, handle: object) -> None:
        """Nothing is kept beside the handle."""


def most_drafts(script: Script) -> int:
    """The longest proposal of a script; 0: it drafts nothing."""
    return max((right + 1 for reply in (*script.replies, script.default) for right in reply.draft), default=0)
