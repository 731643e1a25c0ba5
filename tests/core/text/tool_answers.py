"""Answers read from texts, through every split of a text into tokens and rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from ninfer_core.api import GeneratedCall, ReasoningSyntax, Tool, ToolReport
from ninfer_core.text.output import OutputSession
from ninfer_core.text.prompt_json import PromptJson
from ninfer_core.text.tag_calls import TagToolSyntax
from ninfer_core.text.tool_reader import ToolReading
from ninfer_core.text.tool_types import ToolTypes

THINK = ReasoningSyntax(open="<think>", close="</think>")
END = 256


class Bytes:
    """A token per byte, and one that ends the turn."""

    size = 257
    control_tokens = {"<end>": END}  # noqa: RUF012
    special_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_with_control = encode

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == END else bytes([token_id])


def tool(name: str, /, **properties: object) -> Tool:
    """Parameters by name, each with its type or its whole schema."""
    schemas = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    return Tool(name=name, definition="{}", parameters=msgspec.json.encode({"properties": schemas}).decode())


TOOLS = (
    tool("find", include_body="boolean", name="string", limit="integer", ratio="number", tags="array", where="object"),
    tool("now"),
    Tool(name="free", definition="{}"),
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    finish: str
    reasoning: str
    content: str
    calls: tuple[GeneratedCall, ...]
    report: ToolReport
    marks: tuple[int | None, ...]
    tokens: int


def answer(
    text: str,
    tools: Sequence[Tool] = TOOLS,
    *,
    cuts: Sequence[int] | None = None,
    limit: int | None = None,
    stops: Sequence[str] = (),
    forced: str | None = None,
    single: bool = False,
    thinking: bool = False,
) -> Answer:
    """The answer to ``text`` and a stop token, in rounds that end at ``cuts`` (None: a token each). What streams has to
    add up to what the end says, and nothing that was published may change."""
    reading = ToolReading(syntax=TagToolSyntax(), types=ToolTypes(tools, PromptJson()), forced=forced, single=single)
    session = OutputSession(
        Bytes(),
        stop_ids=frozenset({END}),
        stops=tuple(stops),
        reasoning=THINK if thinking else None,
        in_reasoning=thinking,
        limit=limit or 10_000_000,
        limit_finish="output_limit",
        raw=False,
        tools=reading,
    )
    tokens = [*text.encode(), END]
    bounds = range(len(tokens) + 1) if cuts is None else sorted({0, len(tokens), *(c for c in cuts if c < len(tokens))})
    streamed, calls, marks = {"reasoning": "", "content": ""}, [], []
    for begin, end in pairwise(bounds):
        taken = session.preview(tokens[begin:end])
        session.commit(taken)
        marks += taken.marks
        for channel, piece in taken.deltas:
            assert piece
            assert not calls, "text never follows a call"
            streamed[channel] += piece
        calls += taken.calls
        if taken.finish:
            break
    assert (streamed["reasoning"], streamed["content"]) == (session.reasoning, session.content)
    assert calls == session.calls
    return Answer(
        finish=str(session.finish),
        reasoning=session.reasoning,
        content=session.content,
        calls=tuple(session.calls),
        report=session.tool_report,
        marks=tuple(marks),
        tokens=len(session.token_ids),
    )


def read(text: str, tools: Sequence[Tool] = TOOLS, **options: object) -> Answer:
    """The answer, which is the same token by token, in rounds of several sizes, and in one."""
    size = len(text.encode()) + 2
    alone = answer(text, tools, **options)  # type: ignore[arg-type]
    for step in (2, 3, 5, 7, size):
        assert answer(text, tools, cuts=range(0, size, step), **options) == alone  # type: ignore[arg-type]
    for call in alone.calls:
        assert isinstance(strict(call.arguments), dict)
    return alone


def strict(text: str) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    msgspec.json.decode(text)
    return json.loads(text, parse_constant=refuse)


def call(name: str = "find", /, **values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def made(result: Answer) -> list[tuple[str, str]]:
    return [(one.name, one.arguments) for one in result.calls]
