"""Items as the conversation a prompt is made from: which make one turn, and which results answer which calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from msgspec import UNSET, UnsetType

from ninfer_core.api import ApiError, Message, Part, ToolCall
from ninfer_core.api.http import quoted

from .input import MAX_BREAKPOINTS, Placed
from .items import CallItem, InputText, MessageItem, OutputItem, ReasoningItem, RefusalText, TextPart
from .tools import identity


def conversation(placed: Iterable[Placed], *, lenient: bool = False) -> tuple[Message, ...]:
    """The turns in order. ``lenient``: text and reasoning after a turn's calls join it (--lenient-assistant-history).

    ApiError ``invalid_assistant_history`` or ``invalid_tool_history`` for Items that no order of turns represents.
    """
    history = _History(lenient)
    for one in placed:
        history.add(one)
    return _newest_boundaries(history.finished())


@dataclass(slots=True)
class _Turn:
    """An assistant's turn that more Items may belong to: reasoning, then content, then calls."""

    place: str
    reasoning: list[str] = field(default_factory=list)
    content: list[Part] = field(default_factory=list)
    calls: list[tuple[CallItem, str]] = field(default_factory=list)
    spoke: bool = False  # it has a message, though perhaps one without parts

    def message(self) -> Message:
        calls = tuple(
            ToolCall(id=call.call_id, name=identity(call.namespace, call.name), arguments=call.arguments)
            for call, _ in self.calls
        )
        reasoning = "".join(self.reasoning) if self.reasoning else None
        return Message(
            role="assistant", content=tuple(self.content), reasoning=reasoning, tool_calls=calls, place=self.place
        )


@dataclass(slots=True)
class _Results:
    """The calls of the last turn, and the results so far."""

    calls: dict[str, tuple[CallItem, str]]
    given: dict[str, Message] = field(default_factory=dict)


class _History:
    def __init__(self, lenient: bool) -> None:
        self._lenient = lenient
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._results: _Results | None = None
        self._answered: set[str] = set()  # calls of the last turn, once all have their results

    def add(self, placed: Placed) -> None:
        item, place = placed.item, placed.place
        match item:
            case OutputItem():
                self._close_turn()
                self._result(item, place)
            case MessageItem(role="assistant"):
                self._say(item, self._open_turn(place), place)
            case ReasoningItem():
                self._think(item, self._open_turn(place), place)
            case CallItem():
                self._open_turn(place).calls.append((item, place))
            case MessageItem():
                self._close_turn()
                self._close_results(place)
                message = Message(role=item.role, content=_parts(item.content), place=place)  # type: ignore[arg-type]
                self._messages.append(message)

    def finished(self) -> list[Message]:
        self._close_turn()
        self._close_results(None)
        return self._messages

    def _open_turn(self, place: str) -> _Turn:
        if self._turn is None:
            self._close_results(place)
            self._turn = _Turn(place=place)
        return self._turn

    def _say(self, item: MessageItem, turn: _Turn, place: str) -> None:
        if turn.calls and not self._lenient:
            raise _out_of_order(place, "text", "calls")
        turn.spoke = True
        turn.content += _parts(item.content)

    def _think(self, item: ReasoningItem, turn: _Turn, place: str) -> None:
        if turn.calls:
            if not self._lenient:
                raise _out_of_order(place, "reasoning", "calls")
        elif turn.spoke:
            raise _out_of_order(place, "reasoning", "text")
        turn.reasoning += [part.text for part in item.content]

    def _close_turn(self) -> None:
        """Nothing more belongs to the turn; its calls wait for their results."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        self._messages.append(turn.message())
        self._answered = set()
        calls: dict[str, tuple[CallItem, str]] = {}
        for call, place in turn.calls:
            if call.call_id in calls:
                raise _tool_history(
                    f"'{place}.call_id' is {quoted(call.call_id)}, which another call of the turn has.", place
                )
            calls[call.call_id] = (call, place)
        if calls:
            self._results = _Results(calls=calls)

    def _result(self, item: OutputItem, place: str) -> None:
        results = self._results
        if item.call_id in self._answered or (results is not None and item.call_id in results.given):
            raise _tool_history(f"'{place}' is a second result of call {quoted(item.call_id)}.", place)
        if results is None or item.call_id not in results.calls:
            text = f"'{place}.call_id' is {quoted(item.call_id)}, which is no call of the turn before it."
            raise _tool_history(text, place)
        call, _ = results.calls[item.call_id]
        for name, said, is_so in (("name", item.name, call.name), ("namespace", item.namespace, call.namespace)):
            if said is not UNSET and said != is_so:
                text = f"'{place}.{name}' is {quoted(said)}, but the call it answers has {_spelled(is_so)}."
                raise _tool_history(text, f"{place}.{name}")
        output = (Part(text=item.output),) if isinstance(item.output, str) else _parts(item.output)
        results.given[item.call_id] = Message(role="tool", content=output, tool_call_id=item.call_id, place=place)
        if len(results.given) == len(results.calls):
            self._messages += [results.given[call_id] for call_id in results.calls]
            self._results, self._answered = None, set(results.calls)

    def _close_results(self, place: str | None) -> None:
        """The results end before ``place``, or with the input; there has to be one of each call."""
        if self._results is None:
            return
        missing = next(call_id for call_id in self._results.calls if call_id not in self._results.given)
        before = "in 'input'" if place is None else f"before '{place}'"
        raise _tool_history(f"Call {quoted(missing)} has no function_call_output {before}.", place or "input")


def _parts(content: Iterable[TextPart]) -> tuple[Part, ...]:
    return tuple(_part(part) for part in content)


def _part(part: TextPart) -> Part:
    if isinstance(part, RefusalText):
        return Part(text=part.refusal)
    marked = isinstance(part, InputText) and part.prompt_cache_breakpoint is not UNSET
    return Part(text=part.text, cache_boundary=marked)


def _newest_boundaries(messages: list[Message]) -> tuple[Message, ...]:
    """A conversation of several requests may hold more breakpoints than one; the latest count."""
    left = MAX_BREAKPOINTS
    out: list[Message] = []
    for message in reversed(messages):
        marked = sum(part.cache_boundary for part in message.content)
        if marked > left:
            message, marked = _with_latest(message, left), left
        left -= marked
        out.append(message)
    return tuple(reversed(out))


def _with_latest(message: Message, count: int) -> Message:
    parts: list[Part] = []
    for part in reversed(message.content):
        keep = part.cache_boundary and count > 0
        count -= keep
        parts.append(replace(part, cache_boundary=keep))
    return replace(message, content=tuple(reversed(parts)))


def _spelled(value: str | UnsetType) -> str:
    return "none" if value is UNSET else quoted(value)


def _out_of_order(place: str, what: str, after: str) -> ApiError:
    text = f"'{place}' has {what} after the {after} of its turn; a turn is reasoning, then text, then calls."
    return ApiError("invalid_assistant_history", text, param=place)


def _tool_history(text: str, place: str) -> ApiError:
    return ApiError("invalid_tool_history", text, param=place)
