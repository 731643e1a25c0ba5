"""The input of a body as canonical Items. ApiError 400 with the place of what cannot be represented."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import msgspec
from msgspec import UNSET

from ninfer_core.api import ApiError
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.http import invalid_value, not_supported, quoted

from .items import (
    Breakpoint,
    CallItem,
    Ids,
    InputText,
    Item,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    RefusalText,
    SummaryText,
    TextPart,
)
from .types import BreakpointIn, ItemIn, PartIn

ITEMS = "message, reasoning, function_call or function_call_output"
ROLES = ("user", "assistant", "system", "developer")
CONTENT = {  # role -> the types of parts a message of it may hold
    "user": ("input_text", "input_image", "input_video"),
    "assistant": ("output_text", "input_text", "refusal", "input_image"),
    "system": ("input_text",),
    "developer": ("input_text",),
}
RESULT = ("input_text", "input_image")
NOT_READ = ("input_file", "input_audio")
DETAILS = ("auto", "high", "low")
MAX_BREAKPOINTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """An Item and where the body has it, for refusals found later."""

    item: Item
    place: str


def read_input(
    wire: str | Sequence[ItemIn] | None, *, ids: Ids, known: Iterable[str] = (), lenient_detail: bool = False
) -> tuple[Placed, ...]:
    """Every Item in order; none for an empty input. ``known``: ids of the conversation so far."""
    if not wire:
        return ()
    if isinstance(wire, str):
        item = MessageItem(id=ids.new("msg"), role="user", content=(InputText(text=wire),))
        return (Placed(item=item, place="input"),)
    reader = _Reader(ids, lenient_detail)
    placed = tuple(Placed(item=reader.item(item, f"input[{at}]"), place=f"input[{at}]") for at, item in enumerate(wire))
    _refuse_repeated_ids(placed, known)
    return placed


def refuse_unknown_types(wire: Sequence[str | None]) -> None:
    """ApiError for the first type that is not read; ``wire``: the type of each Item."""
    for at, kind in enumerate(wire):
        if kind is not None and kind not in KINDS:
            _refuse_type(kind, f"input[{at}]")


def _refuse_type(kind: str, place: str) -> NoReturn:
    text = f"Items of this type are not read; '{place}.type' must be {ITEMS}, but is {quoted(kind)}."
    raise not_supported("input_item", text, param=f"{place}.type")


def _refuse_repeated_ids(placed: Sequence[Placed], known: Iterable[str]) -> None:
    seen = set(known)
    for one in placed:
        if one.item.id in seen:
            text = f"'{one.place}.id' is {quoted(one.item.id)}, which an earlier Item of the conversation has."
            raise ApiError("invalid_value", text, param=f"{one.place}.id")
        seen.add(one.item.id)


class _Reader:
    """Reads one input; counts its breakpoints."""

    def __init__(self, ids: Ids, lenient_detail: bool) -> None:
        self._ids = ids
        self._lenient_detail = lenient_detail
        self._breakpoints = 0

    def item(self, wire: ItemIn, place: str) -> Item:
        kind = wire.type or ("message" if wire.role is not None else None)
        if kind is None:
            raise ApiError("missing_required_parameter", f"'{place}.type' is required: {ITEMS}.", param=f"{place}.type")
        if kind not in KINDS:
            _refuse_type(kind, place)
        if wire.id == "":
            raise invalid_value(f"{place}.id", "", "a text that is not empty")
        return KINDS[kind](self, wire, place)

    def message(self, wire: ItemIn, place: str) -> MessageItem:
        role = _needed(wire.role, f"{place}.role")
        if role not in ROLES:
            raise invalid_value(f"{place}.role", role, f"one of {', '.join(ROLES)}")
        return MessageItem(
            id=wire.id or self._ids.new("msg"),
            role=role,
            status=wire.status or "completed",
            content=self.content(wire.content, role, f"{place}.content"),
            phase=UNSET if wire.phase is None else wire.phase,
        )

    def content(self, wire: str | list[PartIn] | None, role: str, place: str) -> tuple[TextPart, ...]:
        if wire is None:
            raise _missing(place)
        if isinstance(wire, str):
            return (OutputText(text=wire) if role == "assistant" else InputText(text=wire),)
        return tuple(self.part(part, f"{place}[{at}]", CONTENT[role]) for at, part in enumerate(wire))

    def reasoning(self, wire: ItemIn, place: str) -> ReasoningItem:
        if not isinstance(wire.content, list) or not wire.content:
            text = f"Reasoning is replayed by its raw text; '{place}.content' must be an array of reasoning_text parts."
            raise not_supported("reasoning_without_text", text, param=f"{place}.content")
        texts = []
        for at, part in enumerate(wire.content):
            if part.type != "reasoning_text":
                raise invalid_value(f"{place}.content[{at}].type", part.type, "reasoning_text")
            _no_breakpoint(part, f"{place}.content[{at}]")
            texts.append(ReasoningText(text=_needed(part.text, f"{place}.content[{at}].text")))
        return ReasoningItem(
            id=wire.id or self._ids.new("rs"),
            status=wire.status or "completed",
            summary=tuple(SummaryText(text=one.text) for one in wire.summary or ()),
            content=tuple(texts),
            encrypted_content=UNSET if wire.encrypted_content is None else wire.encrypted_content,
        )

    def call(self, wire: ItemIn, place: str) -> CallItem:
        _completed(wire, place)
        return CallItem(
            id=wire.id or self._ids.new("fc"),
            call_id=_filled(wire.call_id, f"{place}.call_id"),
            namespace=UNSET if wire.namespace is None else _filled(wire.namespace, f"{place}.namespace"),
            name=_filled(wire.name, f"{place}.name"),
            arguments=_object_text(_needed(wire.arguments, f"{place}.arguments"), f"{place}.arguments"),
        )

    def output(self, wire: ItemIn, place: str) -> OutputItem:
        _completed(wire, place)
        return OutputItem(
            id=wire.id or self._ids.new("fco"),
            call_id=_filled(wire.call_id, f"{place}.call_id"),
            namespace=UNSET if wire.namespace is None else wire.namespace,
            name=UNSET if wire.name is None else wire.name,
            output=self.result(wire.output, f"{place}.output"),
        )

    def result(self, wire: str | list[PartIn] | None, place: str) -> str | tuple[InputText, ...]:
        if wire is None:
            raise _missing(place)
        if isinstance(wire, str):
            return wire
        if not wire:
            raise invalid_value(place, [], "a text, or an array of at least one part")
        parts = (self.part(part, f"{place}[{at}]", RESULT) for at, part in enumerate(wire))
        return cast(tuple[InputText, ...], tuple(parts))

    def part(self, wire: PartIn, place: str, kinds: Sequence[str]) -> TextPart:
        if wire.type in NOT_READ:
            raise not_supported(wire.type, f"Only text is read; '{place}' is of type {quoted(wire.type)}.", param=place)
        if wire.type not in kinds:
            raise invalid_value(f"{place}.type", wire.type, " or ".join(kinds))
        if wire.type == "input_text":
            text = _needed(wire.text, f"{place}.text")
            if wire.prompt_cache_breakpoint is None:
                return InputText(text=text)
            mark = self._breakpoint(wire.prompt_cache_breakpoint, f"{place}.prompt_cache_breakpoint")
            return InputText(text=text, prompt_cache_breakpoint=mark)
        if wire.type in ("input_image", "input_video"):
            self._refuse_media(wire, place)
        _no_breakpoint(wire, place)
        if wire.type == "refusal":
            return RefusalText(refusal=_needed(wire.refusal, f"{place}.refusal"))
        return OutputText(text=_needed(wire.text, f"{place}.text"))

    def _breakpoint(self, wire: BreakpointIn, place: str) -> Breakpoint:
        if wire.mode != "explicit":
            raise invalid_value(f"{place}.mode", wire.mode, "explicit")
        self._breakpoints += 1
        if self._breakpoints > MAX_BREAKPOINTS:
            text = f"An input may have {MAX_BREAKPOINTS} cache breakpoints; '{place}' is one more."
            raise ApiError("invalid_value", text, param=place)
        return Breakpoint(mode=wire.mode)

    def _refuse_media(self, wire: PartIn, place: str) -> NoReturn:
        refuse_unsupported(wire, place)
        source = "video_url" if wire.type == "input_video" else "image_url"
        _filled(getattr(wire, source), f"{place}.{source}")
        if wire.type == "input_image" and wire.detail not in (None, *DETAILS) and not self._lenient_detail:
            text = f"'{place}.detail' must be {', '.join(DETAILS)}, but is {quoted(wire.detail)}."
            raise ApiError("image_detail_not_supported", text, param=f"{place}.detail")
        if wire.prompt_cache_breakpoint is not None:
            self._breakpoint(wire.prompt_cache_breakpoint, f"{place}.prompt_cache_breakpoint")
        text = f"This server reads no images and no video; '{place}' is of type {quoted(wire.type)}."
        raise ApiError("vision_disabled", text, param=place)


KINDS: dict[str, Callable[[_Reader, ItemIn, str], Item]] = {
    "message": _Reader.message,
    "reasoning": _Reader.reasoning,
    "function_call": _Reader.call,
    "function_call_output": _Reader.output,
}


def _missing(place: str) -> ApiError:
    return ApiError("missing_required_parameter", f"'{place}' is required.", param=place)


def _needed(value: str | None, place: str) -> str:
    if value is None:
        raise _missing(place)
    return value


def _filled(value: str | None, place: str) -> str:
    text = _needed(value, place)
    if not text:
        raise invalid_value(place, text, "a text that is not empty")
    return text


def _completed(wire: ItemIn, place: str) -> None:
    """Calls and their outputs are whole, or they are not history."""
    if wire.status not in (None, "completed"):
        text = (
            f"Only whole calls and outputs are read; '{place}.status' must be completed, but is {quoted(wire.status)}."
        )
        raise not_supported("partial_item", text, param=f"{place}.status")


def _no_breakpoint(part: PartIn, place: str) -> None:
    if part.prompt_cache_breakpoint is not None:
        param = f"{place}.prompt_cache_breakpoint"
        text = f"'{param}' can be set on input and result parts, not on one of type {quoted(part.type)}."
        raise ApiError("invalid_value", text, param=param)


def _object_text(text: str, place: str) -> str:
    """The text, which spells a JSON object."""
    try:
        msgspec.json.decode(text, type=dict)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        raise invalid_value(place, text, "a text that holds a JSON object") from None
    return text
