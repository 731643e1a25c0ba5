"""The conversation: Messages' turns as the core's, with calls and results paired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ninfer_core.api import ApiError, Message, Part, ToolCall
from ninfer_core.api.http import invalid_value, quoted

from .blocks import Placed, blocks, filled, needed, result_parts, text_part, tool_call
from .signatures import restored
from .types import Block, MessageIn

ROLES = ("user", "assistant", "system")
VOLATILE = "x-anthropic-billing-header:"


@dataclass(kw_only=True, slots=True)
class Turn:
    """Consecutive messages of one role. System messages stay apart: each is a turn of its own."""

    role: str
    place: str  # of its first message
    content: list[Placed] = field(default_factory=list)


def joined(messages: list[MessageIn]) -> list[Turn]:
    """The turns of a body: neighbours of one role are one turn, nothing put between them."""
    turns: list[Turn] = []
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        if message.role not in ROLES:
            raise invalid_value(f"{place}.role", message.role, f"one of {', '.join(ROLES)}")
        if not turns or turns[-1].role != message.role or message.role == "system":
            turns.append(Turn(role=message.role, place=place))
        turns[-1].content += blocks(message.content, f"{place}.content", message.role)
    return turns


def conversation(system: str | list[Block] | None, turns: list[Turn], *, strip_volatile: bool) -> tuple[Message, ...]:
    """Every turn in order, the top-level system text first. ApiError 400 with the place of what has none.

    ``strip_volatile`` leaves a billing line in front of the system text out.
    """
    return (*_leading(system, strip_volatile), *Pairing().read(turns))


def _leading(system: str | list[Block] | None, strip_volatile: bool) -> Iterator[Message]:
    """The top-level system text; none when it is empty."""
    if not system:
        return
    parts = [text_part(one) for one in blocks(system, "system", "system")]
    if strip_volatile:
        parts = without_billing_line(parts)
    if parts:
        yield Message(role="system", content=tuple(parts), place="system")


def without_billing_line(parts: list[Part]) -> list[Part]:
    """The first line left out when it is the one that changes with every request."""
    first = parts[0]
    if not first.text.startswith(VOLATILE):
        return parts
    rest = first.text.partition("\n")[2]
    return [*([Part(text=rest, cache_boundary=first.cache_boundary)] if rest else ()), *parts[1:]]


class Pairing:
    """Reads turns in order and keeps the calls that wait for their results."""

    def __init__(self) -> None:
        self._calls: tuple[ToolCall, ...] = ()
        self._caller = ""  # the place of the turn that made them
        self._begun = False  # a user or assistant turn was read

    def read(self, turns: list[Turn]) -> Iterator[Message]:
        """The messages of all turns."""
        for turn in turns:
            if self._calls and turn.role != "user":
                text = f"'{turn.place}' stands between the tool_use blocks of '{self._caller}' and their results."
                raise invalid_history(text, turn.place)
            match turn.role:
                case "system":
                    yield Message(role="system", content=tuple(map(text_part, turn.content)), place=turn.place)
                    continue
                case "assistant":
                    yield self._assistant(turn)
                case _:
                    yield from self._user(turn)
            self._begun = True

    def _assistant(self, turn: Turn) -> Message:
        """Reasoning, text and calls, whatever the order of the blocks: the template renders them in this one."""
        reasoning: list[str] = []
        parts: list[Part] = []
        calls: dict[str, ToolCall] = {}
        for one in turn.content:
            match one.block.type:
                case "thinking":
                    thought = needed(one.block.thinking, one.place, "thinking")
                    reasoning.append(restored(thought, one.block.signature, one.place))
                case "text":
                    # a prompt cannot be cut inside an assistant turn: its own hints have no place
                    parts.append(Part(text=needed(one.block.text, one.place, "text")))
                case "tool_use":
                    call = tool_call(one)
                    if call.id in calls:
                        text = f"'{one.place}.id' is {quoted(call.id)}, as an earlier call's of its turn."
                        raise invalid_history(text, one.place)
                    calls[call.id] = call
                case _:
                    pass  # redacted thinking is another server's
        self._calls, self._caller = tuple(calls.values()), turn.place
        return Message(
            role="assistant",
            content=tuple(parts),
            reasoning="".join(reasoning) or None,
            tool_calls=self._calls,
            place=turn.place,
        )

    def _user(self, turn: Turn) -> Iterator[Message]:
        """The results first, in call order; then the rest as a turn of its own."""
        results = self._results(turn)
        for id in self._order(results, turn):
            one = results[id]
            yield Message(role="tool", content=result_parts(one), tool_call_id=id, place=one.place)
        rest = turn.content[len(results) :]
        if rest or not results:
            yield Message(role="user", content=tuple(map(text_part, rest)), place=turn.place)

    def _order(self, results: dict[str, Placed], turn: Turn) -> Iterable[str]:
        """The ids of the calls that wait, each of which has its result, and no other."""
        calls, self._calls = self._calls, ()
        if not calls and not self._begun:
            # a conversation that was cut begins with results of calls nobody sees
            return results
        order = {call.id: call for call in calls}
        for id in order:
            if id not in results:
                text = f"The tool_use {quoted(id)} of '{self._caller}' has no result where '{turn.place}' begins."
                raise invalid_history(text, turn.place)
        for id, one in results.items():
            if id not in order:
                text = f"'{one.place}.tool_use_id' is {quoted(id)}, which the turn before it does not call."
                raise invalid_history(text, one.place)
        return order

    def _results(self, turn: Turn) -> dict[str, Placed]:
        """The leading results by the id they answer, in the order sent."""
        results: dict[str, Placed] = {}
        leading = True
        for one in turn.content:
            if one.block.type != "tool_result":
                leading = False
                continue
            id = filled(one.block.tool_use_id, one.place, "tool_use_id")
            if not leading:
                text = f"'{one.place}' comes after other content; results lead their turn."
                raise invalid_history(text, one.place)
            if id in results:
                text = f"'{one.place}.tool_use_id' is {quoted(id)}, which has a result already."
                raise invalid_history(text, one.place)
            results[id] = one
        return results


def invalid_history(text: str, place: str) -> ApiError:
    """Calls and results that do not pair."""
    return ApiError("invalid_tool_history", text, param=place)
