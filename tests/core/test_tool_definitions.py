"""Tool definitions of any protocol: names, and what a lenient server drops."""

from __future__ import annotations

from functools import partial

import pytest

from ninfer_core.api import ApiError, Tool
from ninfer_core.api.tool_sets import (
    UnsupportedTool,
    check_declared_names,
    check_name,
    read_tools,
    tool_headers,
)
from ninfer_core.testing.fakes import renamed

SHOWS = renamed("model")
BLIND = renamed("model", shows_tools=False)


def tool(name: str) -> Tool:
    return Tool(name=name, definition="{}")


def unsupported(label: str) -> str:
    raise UnsupportedTool("tool_type_not_supported", "no", param="tools[0].type", label=label)


def malformed() -> str:
    raise ApiError("invalid_value", "bad", param="tools[0]")


@pytest.mark.parametrize("name", ["f", "get_weather", "mcp__a-b.c:d/e", "x" * 128])
def test_names_that_a_call_can_spell(name):
    check_name(name, "tools[0].name")


@pytest.mark.parametrize("name", ["", " ", "a b", "a>b", "a\n", "é", "x" * 129, "<f>"])
def test_names_that_none_can(name):
    with pytest.raises(ApiError) as caught:
        check_name(name, "tools[0].name")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "tools[0].name")


@pytest.mark.parametrize(
    ("names", "at"), [(["f", "g", "f"], 2), (["malformed_tool_call"], 0), (["f", "g h"], 1)], ids=str
)
def test_a_declared_name_is_there_once_and_not_reserved(names, at):
    with pytest.raises(ApiError) as caught:
        check_declared_names((name, f"tools[{i}].name") for i, name in enumerate(names))
    assert caught.value.param == f"tools[{at}].name"


def test_a_lenient_server_drops_what_cannot_be_honoured_and_nothing_else():
    readers = [lambda: "a", partial(unsupported, "web_search"), lambda: "b", partial(unsupported, "mcp")]
    assert read_tools(readers, lenient=True) == (["a", "b"], ("web_search", "mcp"))
    with pytest.raises(UnsupportedTool):
        read_tools(readers, lenient=False)
    with pytest.raises(ApiError, match="bad"):
        read_tools([*readers, malformed], lenient=True)


def test_the_header_names_them_in_plain_characters():
    assert tool_headers(SHOWS, [tool("seen")]) == {}
    _, dropped = read_tools([partial(unsupported, "a\r\nset-cookie: é"), partial(unsupported, "x" * 500)], lenient=True)
    assert tool_headers(SHOWS, (), dropped) == {"x-ninfer-dropped-tools": f"a??set-cookie:??, {'x' * 64}"}
    _, many = read_tools([partial(unsupported, "t")] * 40, lenient=True)
    assert tool_headers(SHOWS, (), many)["x-ninfer-dropped-tools"] == ", ".join(["t"] * 32 + ["and 8 more"])


def test_the_header_names_tools_that_the_template_has_no_place_for():
    assert tool_headers(BLIND, [tool("a"), tool("b")], ["web_search"]) == {"x-ninfer-dropped-tools": "web_search, a, b"}
    assert tool_headers(SHOWS, [tool("a")], ["web_search"]) == {"x-ninfer-dropped-tools": "web_search"}
    assert tool_headers(BLIND, []) == {}
