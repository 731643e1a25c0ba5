"""Bodies made from the tables that decode them, and bytes that are no bodies, against every route of the dialect."""

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

from ninfer_core.testing import FakeEngine
from ninfer_llamacpp.types import CompletionBody, DetokenizeBody, ModelBody, RerankBody, TokenizeBody

LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|msgspec|site-packages|ninfer_|<class|<function|\.py\b")
WORDS = ["text", "fake", "gpt", "", "x" * 200, "é🌍", "\x00", "<|im_end|>", '{"a":1}', "a b", "-1", "content", "a/b/c"]
NUMBERS = [0, 1, -1, 2, 20, 97, 255, 256, 4096, 1 << 31, 1 << 63, -(1 << 63), 10**30]
FLOATS = [0.0, 1.0, -0.5, 2.0, 2.5, 1e300, -1e300, 5e-324]
JUNK = [
    None, True, False, 0, -1, 1.5, 10**30, 1e300, "", "x", "é\x00", "x" * 300, [], [None], [[]], [{}], ["text", 1], {},
    {"": None}, {"text": "d"}, {"text": 1}, [1, "a"], [[1, 2]], [["a"]], {"type": "json_object"}, [[5, 1]], {"5": -1},
    [[[[[[1]]]]]], {"x" * 200: {"a": [1]}}, [{"text": "d"}, "e"], {"prompt_string": "a"},
]  # fmt: skip
junk = st.sampled_from(JUNK)


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
            return st.lists(made_of(kind.item_type), max_size=3)
        case inspect.StrType():
            return st.sampled_from(WORDS)
        case inspect.IntType():
            return st.sampled_from(NUMBERS)
        case inspect.FloatType():
            return st.sampled_from([*FLOATS, *NUMBERS])
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
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


def bodies(struct: type[msgspec.Struct], good: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """A good body with some members replaced, one that is made up, one that is cut, or no JSON at all."""
    changed = objects(struct)
    kept = st.builds(lambda new: {**good, **{k: v for k, v in new.items() if k not in good}}, changed)
    whole = (kept | kept | st.builds(lambda new: {**good, **new}, changed) | changed).map(msgspec.json.encode)
    cut = st.builds(lambda body, at: body[: at % (len(body) + 1)], whole, st.integers(0, 10_000))
    return whole | whole | whole | cut | st.binary(max_size=40)


RERANK = {"query": "q", "documents": ["a", {"text": "b"}]}
TEI = {"query": "q", "texts": ["a", "b"]}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, tuple[type[msgspec.Struct], dict[str, Any], set[int]]] = {
    "/completion": (CompletionBody, {"prompt": "hi"}, {200, 400, 404}),
    "/completions": (CompletionBody, {"prompt": [104, "i"]}, {200, 400, 404}),
    "/tokenize": (TokenizeBody, {"content": "hi"}, {200, 400, 404}),
    "/detokenize": (DetokenizeBody, {"tokens": [104, 105]}, {200, 400, 404}),
    "/v1/rerank": (RerankBody, RERANK, {200, 400, 404}),
    "/reranking": (RerankBody, TEI, {200, 400, 404}),
    "/models/load": (ModelBody, {"model": "fake"}, {200, 400, 404}),
    "/models/unload": (ModelBody, {"model": "fake"}, {400, 404, 501}),
    "/models/sleep": (ModelBody, {"model": "fake"}, {400, 404, 501}),
    "/slots/0": (ModelBody, {"filename": "a"}, {501}),
}
TYPES = {400: "invalid_request_error", 404: "not_found_error", 501: "not_supported_error"}


def check(site: Any, wire: Callable[..., Any], path: str, body: bytes) -> int:
    engine = site.engine
    engine.jobs.clear()
    connection = wire(path, body)
    asyncio.run(site.door(connection.scope, connection.receive, connection.send))
    assert connection.status in ROUTES[path][2], (connection.status, connection.text)
    assert engine.running == 0
    if connection.status == 200:
        whole(connection.text)
    else:
        assert engine.jobs == []
        refusal(connection.status, connection.text)
    return connection.status


def refusal(status: int, text: str) -> None:
    error = msgspec.json.decode(text)
    assert set(error) == {"error"}
    assert {"message", "type", "code"} <= set(error["error"]) <= {"message", "type", "param", "code"}
    assert all(isinstance(value, str) for value in error["error"].values())
    assert error["error"]["type"] == TYPES[status]
    assert not LEAK.search(text), text
    assert len(text) < 2000


def whole(text: str) -> None:
    if text.startswith("data: "):
        assert "[DONE]" not in text
        *chunks, last = (msgspec.json.decode(one.removeprefix("data: ")) for one in text.strip().split("\n\n"))
        assert all(chunk["stop"] is False for chunk in chunks)
        assert isinstance(last, dict)
    else:
        assert isinstance(msgspec.json.decode(text), (dict, list))


common = partial(
    settings,
    deadline=None,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.contract("completion.any-body", "tokenizer.any-body", "rerank.any-body")
@pytest.mark.parametrize("path", [pytest.param(path, id=f"{path}-CVE-2026-54236") for path in ROUTES])
def test_any_body_is_answered_in_the_contract(serve, wire, path):
    statuses = ask_many(serve(FakeEngine(pieces=["O", "K"])), wire, path, max_examples=150, derandomize=True)
    # neither everything nor nothing gets through
    assert set(statuses) >= {200, 400} or path in ("/models/unload", "/models/sleep", "/slots/0")


@pytest.mark.slow
@pytest.mark.parametrize("path", ROUTES)
def test_any_body_is_answered_in_the_contract_in_the_long_run(serve, wire, path):
    ask_many(serve(FakeEngine(pieces=["O", "K"])), wire, path, max_examples=4_000)


def ask_many(site: Any, wire: Callable[..., Any], path: str, **how: Any) -> list[int]:
    struct, good, _ = ROUTES[path]
    statuses: list[int] = []

    @common(**how)
    @given(body=bodies(struct, good))
    def ask(body: bytes) -> None:
        statuses.append(check(site, wire, path, body))

    ask()
    return statuses


@pytest.mark.contract("tokenizer.any-body")
def test_a_chat_body_to_render_is_refused_as_chat_refuses_it(serve):
    site = serve()
    bad: list[Any] = [b"", b"{", [], {"messages": []}, {"messages": [{"role": "robot"}]}, {**CHAT, "temperature": 9}]
    for body in bad:
        shown, asked = (site.get("POST", path, body) for path in ("/apply-template", "/v1/chat/completions"))
        assert (shown.status_code, shown.content) == (asked.status_code, asked.content)
    assert site.get("POST", "/apply-template", CHAT).json() == {"prompt": "[user]hi[assistant]"}
