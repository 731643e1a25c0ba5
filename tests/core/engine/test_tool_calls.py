"""Tool calls through the engine: events, records and the end, in single tokens and in drafted rounds."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog
from engines import open_engine, run

from ninfer_core.api import MALFORMED_TOOL_CALL, Called, ChatJob, Delta, Done, Message, Part, Result, Tool, ToolCall

CITY = '{"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}'
WEATHER = Tool(name="get_weather", definition='{"function": {"name": "get_weather"}}', parameters=CITY)
NOW = Tool(name="now", definition='{"function": {"name": "now"}}')


def call(name: str, **values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


WHOLE = call("get_weather", city="Köln 😀", days="3")
SAID = {
    "one": f"Let me look.\n\n{WHOLE}",
    "two": f"{WHOLE}\n{call('now')}\n",
    "text": "No `<tool_call>` is needed. \n",
    "trailing": f"{call('now')} There.",
    "broken": f"Look. {call('now')}\n<tool_call>\n<function=get_weather>\n<parameter=city>\nx",
}
REPLIES = [{"match": name, "text": f"Hm.</think>\n\n{text}"} for name, text in SAID.items()]
SPLITS = {"single": {}, "drafted": {"draft": [3, 0, 7]}, "drafted-wide": {"draft": [60]}}


def play(engine, question, **changes) -> tuple[list[object], Result]:
    async def scenario() -> list[object]:
        engine.start(asyncio.get_running_loop())
        message = Message(role="user", content=(Part(text=question),))
        job = ChatJob(**{"messages": (message,), "tools": (WEATHER, NOW), **changes})
        async with await engine.chat(job) as generation:
            events = [event async for event in generation]
        engine.stop()
        return events

    events = run(scenario())
    assert engine.join(10)
    assert isinstance(events[-1], Done)
    return events, events[-1].result


def checked(events: list[object], result: Result) -> None:
    """The stream adds up to the end."""
    texts, tokens, records, calls = {"reasoning": "", "content": ""}, [], [], []
    for event in events:
        if isinstance(event, Delta):
            assert not calls
            texts[event.channel] += event.text
        elif isinstance(event, Called):
            assert event.index == len(calls)
            calls.append(event.call)
        if isinstance(event, Delta | Called | Done):
            tokens += event.token_ids
            records += event.logprobs
    assert texts == {"reasoning": result.reasoning, "content": result.content}
    assert (tuple(calls), tuple(tokens), tuple(records)) == (result.calls, result.token_ids, result.logprobs)


def recorded(result: Result) -> str:
    """The text of the tokens with records, control tokens left out."""
    return b"".join(bytes([one.token_id]) for one in result.logprobs if one.token_id < 256).decode()


@pytest.mark.parametrize("flags", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", SAID)
def test_an_answer_streams_as_it_ends_however_its_rounds_are_cut(tmp_path, name, flags):
    alone = play(open_engine(tmp_path, {"replies": REPLIES}, "--greedy"), name, logprobs=2)
    events, result = play(open_engine(tmp_path, {"replies": REPLIES, **flags}, "--greedy"), name, logprobs=2)
    checked(events, result)
    for field in (
        "finish",
        "reasoning",
        "content",
        "calls",
        "tool_report",
        "token_ids",
        "logprobs",
        "reasoning_tokens",
    ):
        assert getattr(result, field) == getattr(alone[1], field)
    # every content token has a record, the markup of calls included
    assert recorded(result) == SAID[name].replace("<tool_call>", "").replace("</tool_call>", "")


def test_what_the_answers_are(tmp_path):
    results = {}
    for name in SAID:
        results[name] = play(open_engine(tmp_path, {"replies": REPLIES}, "--greedy"), name)[1]
    arguments = '{"city":"Köln 😀","days":3}'
    assert (results["one"].content, results["one"].calls[0].arguments) == ("Let me look.", arguments)
    assert [one.name for one in results["two"].calls] == ["get_weather", "now"]
    assert (results["text"].content, results["text"].calls) == (SAID["text"], ())
    assert (results["trailing"].content, len(results["trailing"].calls)) == ("", 1)
    assert [one.name for one in results["broken"].calls] == ["now", MALFORMED_TOOL_CALL]
    assert {result.finish for result in results.values()} == {"stop_token"}


def test_a_forced_call_goes_on_behind_the_prompt(tmp_path):
    reply = {"match": "go", "text": WHOLE}
    events, result = play(
        open_engine(tmp_path, {"replies": [reply]}, "--greedy"), "go", forced_tool="get_weather", logprobs=0
    )
    checked(events, result)
    assert (result.content, result.reasoning) == ("", "")
    assert msgspec.json.decode(result.calls[0].arguments) == {"city": "Köln 😀", "days": 3}
    assert len(result.logprobs) == result.completion_tokens - 1  # the stop token has none


def test_a_stop_string_drops_the_records_of_what_it_cuts(tmp_path):
    reply = {"match": "go", "text": f"</think>\n\n{call('now')} END and more"}
    engine = open_engine(tmp_path, {"replies": [reply], "draft": [0, 9, 30]}, "--greedy")
    events, result = play(engine, "go", logprobs=0, stops=("END",))
    checked(events, result)
    assert (result.finish, len(result.calls)) == ("stop_string", 1)
    kept = call("now").replace("<tool_call>", "").replace("</tool_call>", "") + " "
    assert recorded(result) == kept


def test_a_history_with_the_calls_just_made_renders_the_same_prompt_again(tmp_path):
    """What makes a conversation resume from the cache: nothing the model wrote is written otherwise."""
    first = play(open_engine(tmp_path, {"replies": REPLIES}, "--greedy"), "two")[1]
    said = Message(
        role="assistant",
        reasoning=first.reasoning,
        content=(Part(text=first.content),),
        tool_calls=tuple(ToolCall(id="1", name=one.name, arguments=one.arguments) for one in first.calls),
    )
    engine = open_engine(tmp_path, {"replies": REPLIES}, "--greedy")
    asked = Message(role="user", content=(Part(text="two"),))
    history = (asked, said, Message(role="tool", content=(Part(text="r"),), tool_call_id="1"))
    again = play(engine, "two", messages=history)[1]
    spell = engine.format.tokenizer.spell
    before = spell([*first.prompt_ids, *first.token_ids]).decode()
    text = spell(again.prompt_ids).decode()
    begun = before.removesuffix("<|im_end|>").rstrip("\n").replace("Hm.</think>", "Hm.\n</think>")
    assert text.startswith(begun)


@pytest.mark.contract("chat.markers.logged")
def test_the_log_tells_how_markup_was_read_and_never_what_it_was(tmp_path):
    with structlog.testing.capture_logs() as logs:
        play(open_engine(tmp_path, {"replies": REPLIES}, "--greedy"), "broken")
        play(open_engine(tmp_path, {"replies": REPLIES}, "--greedy"), "text")
    done = [entry for entry in logs if entry["event"] == "request_done"]
    parsed = done[0]["tool_call_parse"]
    assert (parsed["structured_calls"], parsed["fallback"], parsed["recovered_call_count"]) == (
        2,
        "malformed_structure",
        1,
    )
    warned = [entry for entry in logs if entry["event"] == "tool_markup_kept_as_text"]
    assert [(entry["log_level"], entry["reason"]) for entry in warned] == [("warning", "malformed_structure")]
    assert "Köln" not in str(logs)
    assert "<function" not in str(logs)
