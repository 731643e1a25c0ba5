"""The model list: one object per served model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ninfer_core.api import ApiError, Engine, ModelInfo
from ninfer_core.api.model_card import model_card


def model_list(engines: Iterable[Engine]) -> dict[str, Any]:
    """OpenAI's list object."""
    return {"object": "list", "data": [model_card(engine.info) for engine in engines]}


def residency() -> dict[str, Any]:
    """Where a model is that is never suspended."""
    return {
        "state": "resident",
        "auto_resume": False,
        "releasable_device_bytes": 0,
        "host_snapshot_bytes": 0,
        "host_reserved_bytes": 0,
        "suspend_count": 0,
        "resume_count": 0,
        "last_suspend": None,
        "last_resume": None,
        "last_error": None,
    }


def no_suspend(info: ModelInfo) -> ApiError:
    """The answer of the routes that move a model out of the device's memory and back."""
    text = f"{info.id!r} cannot give its memory back while it is loaded: this server has no suspend."
    return ApiError("model_suspend_disabled", text, param="model", status=501, type="not_supported_error")
