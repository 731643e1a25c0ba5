"""Prompts nobody wrote."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninfer_core.engine.engine import LocalEngine


def random_prompt(engine: LocalEngine, tokens: int, seed: str) -> tuple[int, ...]:
    """Random tokens, no control token among them; another seed shares nothing with it."""
    draw = random.Random(seed)
    control = frozenset(engine.format.tokenizer.control_tokens.values())
    public = [token for token in range(engine.info.vocab_tokens) if token not in control]
    return tuple(draw.choices(public, k=tokens))
