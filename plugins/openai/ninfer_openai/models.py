"""The model list: one object per served model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ninfer_core.api import Engine
from ninfer_core.api.model_card import model_card


def model_list(engines: Iterable[Engine]) -> dict[str, Any]:
    """OpenAI's list object."""
    return {"object": "list", "data": [model_card(engine.info) for engine in engines]}
