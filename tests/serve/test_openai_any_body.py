"""Bodies made from the very tables that decode them, good and bad: the status is one the contract names, the answer is
a whole answer or OpenAI's error object, and nothing of ours is in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ninfer_core.api import GeneratedCall
from ninfer_core.testing import FakeEngine
from ninfer_openai.chat.types import ChatBody, ToolIn
from ninfer_openai.completions import CompletionBody

STATUSES = {200, 400, 404}
LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|msgspec|site-packages|ninfer_|<class|<function|\.py\b")
WORDS = [
    "text", "image_url", "video_url", "refusal", "input_audio", "user", "assistant", "tool", "system", "function",
    "custom", "allowed_tools", "required", "auto", "none", "f", "c", "json_object", "grammar", "medium", "high",
    "fake", "gpt", "", "x" * 200, "é🌍", "\x00", "<|im_end|>", '{"a":1.0}', "{", "[1]", "a b", "-1", "1e999",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 20, 21, 4096, 1 << 31, 1 << 63, -(1 << 63), 10**30]
FLOATS = [0.0, 1.0, -0.5, 2.0, 2.5, 1e300, -1e300, 5e-324]

words = st.sampled_from(WORDS)
numbers = st.sampled_from(NUMBERS)
floats = st.sampled_from(FLOATS)
JUNK = [
    None, True, False, 0, -1, 1.5, 10**30, 1e300, "", "x", "é\x00", "x" * 300, [], [None], [[]], [{}], ["text", 1], {},
    {"": None}, {"type": "text"}, {"type": 1}, {"x" * 200: {"a": [1]}}, {"type": "function", "function": {"name": "f"}},
    [[[[[[1]]]]]], {"role": "user", "content": "hi"}, [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
]  # fmt: skip
junk = st.sampled_from(JUNK)
raws = st.sampled_from(["", "{}", '{"a":1.0}', "{", "[]", '{"a":"\\ud800"}']) | junk


def made_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a decoder's type, its bounds not kept; now and then something else."""
    fit = fitting(kind)
    return st.integers(0, 7).flatmap(lambda at: fit if at else junk)


def fitting(kind: Any) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.UnionType():
            return st.one_of([fitting(one) for one in kind.types])
        case inspect.StructType():
            return objects(kind.cls)
        case inspect.ListType():
            return st.lists(made_of(kind.item_type), max_size=2)
        case inspect.DictType():
            return st.dictionaries(words, made_of(kind.value_type), max_size=2)
        case inspect.StrType():
            return words
        case inspect.IntType():
            return numbers
        case inspect.FloatType():
            return floats | numbers
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.RawType():
            return raws
        case inspect.Metadata():
            return fitting(kind.type)
        case _:
            return junk


@cache
def objects(struct: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of a struct's members."""
    fields = inspect.type_info(struct).fields  # type: ignore[union-attr]
    members = {field.name: made_of(field.type) for field in fields}
    required = [field.name for field in fields if field.required]

    @st.composite
    def draw_one(draw: st.DrawFn) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(sorted(members)), max_size=3, unique=True))
        names = [*(name for name in required if draw(st.integers(0, 15))), *chosen]
        return {name: draw(members[name]) for name in dict.fromkeys(names)}

    return draw_one()


def bodies(struct: type[msgspec.Struct], good: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with some members replaced, or one that is made up."""
    changed = objects(struct)
    if struct is ChatBody:
        tools = st.lists(objects(ToolIn) | st.sampled_from(GOOD_TOOLS), max_size=2)
        changed = st.builds(lambda body, listed: {**body, "tools": listed}, changed, tools) | changed
    kept = st.builds(lambda new: {**good, **{k: v for k, v in new.items() if k not in ("messages", "prompt")}}, changed)
    return kept | kept | st.builds(lambda new: {**good, **new}, changed) | changed


GOOD_TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "custom", "custom": {"name": "c"}},
]
ROUTES: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/completions": (CompletionBody, {"prompt": "hi"}),
}
SAID = ["O", ("reasoning", "Hm"), GeneratedCall(name="c", arguments='{"input":"x"}')]


def check(site: Any, wire: Callable[..., Any], path: str, body: bytes) -> None:
    engine = site.engine
    engine.jobs.clear()
    connection = wire(path, body)
    asyncio.run(site.door(connection.scope, connection.receive, connection.send))
    assert connection.status in STATUSES, (connection.status, connection.text)
    if connection.status == 200:
        assert len(engine.jobs) == 1
        whole(connection.text)
        return
    assert engine.jobs == []
    error = msgspec.json.decode(connection.text)
    assert set(error) == {"error"}
    assert {"message", "type", "code"} <= set(error["error"]) <= {"message", "type", "param", "code"}
    assert all(isinstance(value, str) for value in error["error"].values())
    assert error["error"]["type"] == ("not_found_error" if connection.status == 404 else "invalid_request_error")
    assert not LEAK.search(connection.text), connection.text
    assert len(connection.text) < 2000


def whole(text: str) -> None:
    if text.startswith("data: "):
        *events, end = text.removesuffix("\n\n").split("\n\n")
        assert end == "data: [DONE]"
        assert "timings" in msgspec.json.decode(events[-1].removeprefix("data: "))
    else:
        assert {"id", "object", "created", "model", "choices", "usage", "timings"} == set(msgspec.json.decode(text))


LENIENT = {"lenient_tools": True, "lenient_image_detail": True, "assistant_prefill": True, "usage_chunk_choice": True}
common = partial(
    settings,
    deadline=None,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.contract("chat.errors.malformed", "chat.errors.internal")
@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("path", ROUTES)
def test_any_body_of_the_table_is_answered(serve, wire, path, options):
    ask_many(serve(FakeEngine(pieces=SAID), **options), wire, path, max_examples=250, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("path", ROUTES)
def test_any_body_of_the_table_is_answered_in_the_long_run(serve, wire, path, options):
    ask_many(serve(FakeEngine(pieces=SAID), **options), wire, path, max_examples=5_000)


def ask_many(site: Any, wire: Callable[..., Any], path: str, **how: Any) -> None:
    @common(**how)
    @given(body=bodies(*ROUTES[path]))
    def ask(body: dict[str, Any]) -> None:
        check(site, wire, path, msgspec.json.encode(body))

    ask()


def test_enough_of_these_bodies_reach_the_engine(serve, wire):
    statuses: list[int] = []
    site = serve()

    @common(max_examples=100, derandomize=True)
    @given(body=bodies(*ROUTES["/v1/chat/completions"]))
    def ask(body):
        connection = wire("/v1/chat/completions", msgspec.json.encode(body))
        asyncio.run(site.door(connection.scope, connection.receive, connection.send))
        statuses.append(connection.status)

    ask()
    assert 20 < statuses.count(200) < 90
