"""The model: it stores what it consumes, finds it again, and says what the script says next."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ninfer_core.api import Checkpoint, CopySource
from ninfer_core.api.nn import Cache, Model, Step, StepOutput

from .drafts import ScriptedDrafts, most_drafts
from .memory import MASK, SEED, fault, history, key_words, mixed, to_rows
from .playback import Cursor, resume
from .script import Script, script_of

SCRIPTED_LOGIT = 20.0
REMEMBERED = 1 << 16


def build(checkpoint: Checkpoint) -> Model:
    """The model of one script."""
    return ScriptedModel(script_of(checkpoint))


@dataclass(kw_only=True, slots=True)
class Row:
    """One sequence of a step."""

    index: int  # in the step
    frontier: int
    tokens: list[int]
    hashes: list[int]  # of everything up to the frontier, then up to each token
    prompt_tokens: int | None  # None: nobody knows
    fault: str | None
    cursors: dict[int, Cursor] = field(default_factory=dict)  # after token ``at`` of the step

    def is_prompt(self, at: int) -> bool:
        """Whether token ``at`` of the step is a prompt token as far as anybody knows."""
        return self.prompt_tokens is None or self.frontier + at < self.prompt_tokens

    def follows_the_script(self, at: int) -> bool:
        """Whether the step's output tokens up to ``at`` are the scripted ones; drafts after a wrong one are moot."""
        return all(
            self.cursors[i - 1].token == self.tokens[i]
            for i in range(1, at + 1)
            if i - 1 in self.cursors and not self.is_prompt(i)
        )


class ScriptedModel:
    """A pure function of the tokens a sequence consumed and of how many of them are its prompt.

    The tokens are read from the KV pages, the running hash also from the state slot. Each step checks what
    ``memory.fault`` checks; where a reply has to be chosen (at a prompt's end, or after a hash never seen) all stored
    rows are checked. A sequence whose memory is wrong says so ("[wrong page]") instead of its reply. Places in a reply
    are remembered by hash, so that a decode round need not read the whole history.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.draft_source: CopySource | None = ScriptedDrafts(script) if most_drafts(script) else None
        self._known: OrderedDict[tuple[int, int], Cursor] = OrderedDict()

    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        """Raises RuntimeError where the script says ``fail_at``."""
        wanted = step.logit_index.tolist()
        rows = [self._read(step, cache, state, b) for b in range(step.rows)]
        logits = torch.zeros(len(wanted), self.script.tokenizer.size)
        out = dict(zip(wanted, logits, strict=True))
        for row in rows:
            first = step.starts[row.index]
            asked = [at for at in range(len(row.tokens)) if first + at in out]
            self._find_places(row, asked, step, cache)
            for at in asked:
                self._say(out[first + at], row, at)
        self._store(rows, step, cache)
        self._wait(rows, step)
        if not step.provisional:
            self._advance(step, [row.hashes[1:] for row in rows], state)
        return StepOutput(logits=logits.to(step.token_ids.device), records=[row.hashes[1:] for row in rows])

    def fold(self, step: Step, records: Any, kept: Sequence[int], state: Mapping[str, Tensor]) -> None:
        self._advance(step, [hashes[:count] for hashes, count in zip(records, kept, strict=True)], state)

    def _read(self, step: Step, cache: Cache, state: Mapping[str, Tensor], b: int) -> Row:
        """A sequence's memory, its hash continued. A first step starts anew, whatever its slot holds."""
        tokens = step.token_ids[step.starts[b] : step.starts[b + 1]].tolist()
        signed, count = state["consumed"][step.state_slots[b]].tolist() if step.frontiers[b] else (SEED, 0)
        hashes = [signed & MASK]
        wrong = fault(cache, step, b, (hashes[0], count))
        for token in tokens:
            hashes.append(mixed(hashes[-1], token))
        return Row(
            index=b,
            frontier=step.frontiers[b],
            tokens=tokens,
            hashes=hashes,
            prompt_tokens=step.prompt_tokens[b] if step.prompt_tokens else None,
            fault=wrong,
        )

    def _find_places(self, row: Row, asked: Sequence[int], step: Step, cache: Cache) -> None:
        """The place in the reply after each token whose logits are asked for."""
        before: list[int] | None = None
        for at in asked:
            if row.fault:
                return
            cursor = self._remembered(row, at)
            if cursor is None:
                before = history(cache, step, row.index) if before is None else before
                if before is None:
                    row.fault = "page"
                    return
                cursor = resume(self.script, [*before, *row.tokens[: at + 1]], row.prompt_tokens)
            row.cursors[at] = cursor
            if row.prompt_tokens is not None and row.frontier + at + 1 >= row.prompt_tokens:
                self._known[row.hashes[at + 1], row.prompt_tokens] = cursor
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)

    def _remembered(self, row: Row, at: int) -> Cursor | None:
        """The place after an output token, from the place before it."""
        if row.prompt_tokens is None or row.is_prompt(at):
            return None
        before = self._known.get((row.hashes[at], row.prompt_tokens))
        return before.follow(row.tokens[at]) if before else None

    def _say(self, logits: Tensor, row: Row, at: int) -> None:
        """Fill one position's logits, or fail as the script says."""
        if row.fault:
            logits[self.script.tokenizer.faults[f"[wrong {row.fault}]"]] = SCRIPTED_LOGIT
            return
        cursor = row.cursors[at]
        reply = cursor.plan.reply
        due = cursor.produced if row.follows_the_script(at) else None
        if due is not None and due == reply.fail_at:
            raise RuntimeError(f"the script fails at token {due}")
        logits[cursor.token] = SCRIPTED_LOGIT
        for token, value in reply.logits.items():
            logits[token] = value
        if due is not None and due == reply.nan_at:
            logits.fill_(float("nan"))

    def _store(self, rows: Sequence[Row], step: Step, cache: Cache) -> None:
        keys = np.concatenate([key_words(row.tokens, row.frontier) for row in rows])
        values = np.concatenate([np.asarray(row.hashes[1:], dtype=np.uint64) for row in rows])
        device = step.token_ids.device
        cache.store(0, to_rows(keys).to(device), to_rows(values).to(device), step)

    def _wait(self, rows: Sequence[Row], step: Step) -> None:
        """As long as the script says: the slowest reply of a round, and the prefill unit beside it."""
        decoding = [row for row in rows if step.provisional or not row.is_prompt(0)]
        replies = [cursor.plan.reply for row in decoding for cursor in row.cursors.values()]
        seconds = max((reply.delay_seconds for reply in replies), default=0.0)
        if len(decoding) < len(rows):
            seconds += self.script.prefill_delay_seconds
        if seconds:
            time.sleep(seconds)

    def _advance(self, step: Step, hashes: Sequence[Sequence[int]], state: Mapping[str, Tensor]) -> None:
        """Write each sequence's state after the tokens with these hashes; a sequence without any keeps its own."""
        moved = [b for b, own in enumerate(hashes) if own]
        if not moved:
            return
        consumed = state["consumed"]
        images = [[signed(hashes[b][-1]), step.frontiers[b] + len(hashes[b])] for b in moved]
        slots = torch.tensor([step.state_slots[b] for b in moved], device=consumed.device)
        consumed[slots] = torch.tensor(images, dtype=torch.int64, device=consumed.device)


def signed(word: int) -> int:
    """64 bits as int64 has them."""
    return word - (1 << 64) if word >> 63 else word
