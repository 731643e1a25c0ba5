"""Thinking budgets: how many tokens a request may reason, and what closes its reasoning when they are spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_core.api import PromptFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinkingBudget:
    """``effective`` None: the output window is too short to close the reasoning early, so nothing is inserted."""

    requested: int
    effective: int | None
    guidance: tuple[int, ...]  # early-close text and close tag, as tokens

    @property
    def enforced(self) -> bool:
        return self.effective is not None


def plan_budget(requested: int, output: int, guidance: Sequence[int]) -> ThinkingBudget:
    """Fit a budget into an output window of ``output`` tokens (contract, *Thinking budgets*: B, C and R).

    R is the early close and one token after it. The budget stands when the output ends before it or the close fits
    behind it; else it shrinks until the close fits; when even a budget of nothing would not, there is none.
    """
    needed = len(guidance) + 1
    if output <= requested or output - requested >= needed:
        effective: int | None = requested
    elif output > needed:
        effective = output - needed
    else:
        effective = None
    return ThinkingBudget(requested=requested, effective=effective, guidance=tuple(guidance))


def close_guidance(format: PromptFormat, message: str | None) -> tuple[int, ...]:
    """The tokens that end reasoning early: the family's text, or the operator's message with the close tag appended
    where it is missing. Empty for a family that does not reason."""
    syntax = format.reasoning
    if syntax is None:
        return ()
    text = message if message is not None else format.early_close
    if syntax.close not in text:
        text = text.rstrip() + f"\n{syntax.close}\n\n"
    elif not text.endswith(("\n", " ", "\t")):
        # the close tag counts only before white space
        text += "\n\n"
    return tuple(format.tokenizer.encode_with_control(text))
