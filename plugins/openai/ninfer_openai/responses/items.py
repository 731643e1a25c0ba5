"""Items in their one canonical form: what input becomes, what output is made of, what is stored and listed.

Encoded, an Item is the JSON a client sees; decoded again, it is what the next turn of the conversation is made from.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType


class Breakpoint(Struct, frozen=True):
    """A hint: prompts will begin with everything up to here."""

    mode: str


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str
    prompt_cache_breakpoint: Breakpoint | UnsetType = UNSET


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: tuple[Any, ...] = ()


class RefusalText(Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


TextPart = InputText | OutputText | RefusalText


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str
    status: str = "completed"
    content: tuple[TextPart, ...]
    phase: str | UnsetType = UNSET


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: str = "completed"
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...]
    encrypted_content: str | UnsetType = UNSET


class CallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """``arguments``: JSON text of an object, as received or as generated."""

    id: str
    status: str = "completed"
    call_id: str
    namespace: str | UnsetType = UNSET
    name: str
    arguments: str


class OutputItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """A call's result; ``name`` and ``namespace`` are assertions about the call."""

    id: str
    status: str = "completed"
    call_id: str
    namespace: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    output: str | tuple[InputText, ...]


Item = MessageItem | ReasoningItem | CallItem | OutputItem

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Item)


def encoded(item: Item) -> bytes:
    """The Item as JSON."""
    return _encoder.encode(item)


def decoded(raw: bytes) -> Item:
    """The Item an ``encoded`` one was."""
    return _decoder.decode(raw)


def for_history(item: Item) -> Item:
    """The Item without what no prompt is made from."""
    if isinstance(item, ReasoningItem):
        return msgspec.structs.replace(item, summary=(), encrypted_content=UNSET)
    if isinstance(item, MessageItem):
        parts = tuple(OutputText(text=part.text) if isinstance(part, OutputText) else part for part in item.content)
        return msgspec.structs.replace(item, content=parts)
    return item


class Ids:
    """Names for what one Response is made of: ``msg_<response>_<n>``, unique within the server."""

    def __init__(self, request_id: str) -> None:
        self._stem = request_id.removeprefix("req_")
        self._count = 0

    @property
    def response(self) -> str:
        return f"resp_{self._stem}"

    def new(self, kind: str) -> str:
        """A fresh id of this kind (msg, rs, fc, fco, call)."""
        self._count += 1
        return f"{kind}_{self._stem}_{self._count}"
