"""What a checkpoint's text files say of prompts."""

from __future__ import annotations

from typing import Any

import msgspec

from ninfer_core.api import Checkpoint
from ninfer_core.errors import ArtifactError

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextFiles:
    """The text resources of one checkpoint. ArtifactError, with the file's name, for one that does not parse."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def tokenizer(self) -> bytes:
        """``tokenizer.json``; ArtifactError when there is none."""
        raw = self._checkpoint.resource("tokenizer.json")
        if raw is None:
            raise self._error('text: missing resource "tokenizer.json"')
        return raw

    @property
    def tokenizer_config(self) -> bytes | None:
        return self._checkpoint.resource("tokenizer_config.json")

    @property
    def template(self) -> str | None:
        """``chat_template.jinja``, or None."""
        raw = self._checkpoint.resource("chat_template.jinja")
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"chat_template.jinja is not UTF-8 at byte {error.start}") from None

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that templates know by name, from ``tokenizer_config.json``."""
        settings = self.json("tokenizer_config.json")
        found = {name: spelling(settings.get(name)) for name in SPECIAL_TOKENS}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def listed_ends(self) -> list[Any]:
        """The ``eos_token_id`` of ``generation_config.json``, one or several, as it stands there."""
        listed = self.json("generation_config.json").get("eos_token_id")
        return listed if isinstance(listed, list) else [] if listed is None else [listed]

    def json(self, role: str) -> dict[str, Any]:
        """A file's object; empty when the checkpoint does not have the file."""
        raw = self._checkpoint.resource(role)
        if raw is None:
            return {}
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise self._error(f"{role}: {error}") from None

    def _error(self, text: str) -> ArtifactError:
        return ArtifactError(f"{self._checkpoint.path}: {text}")


def spelling(value: Any) -> str | None:
    """A special token as ``tokenizer_config.json`` has it: a string or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
