"""A body as its own table of fields: what is refused, and what its page says."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from ninfer_core.api import ApiError
from ninfer_core.api.fields import (
    Checked,
    Endpoint,
    Ignored,
    Only,
    ProtocolDocument,
    Used,
    at_most_zero,
    empty,
    equal,
    every_member,
    ignored,
    left_out,
    refuse_unsupported,
    table,
)
from ninfer_core.field_text import document


class Base(msgspec.Struct, kw_only=True):
    ignored: ClassVar = (Ignored("user", "tag", why="labels"),)

    text: Annotated[str, Used("any | text")]
    n: Annotated[int | None, Only(equal(1, 2), "1 or 2", "One answer")] = None


class Body(Base, kw_only=True):
    ignored: ClassVar = (Ignored("seed", why="of another server"),)

    off: Annotated[float | None, Only(at_most_zero, "0 or below", "Not here")] = None
    words: Annotated[list[str] | None, Only(every_member(equal("a")), "a", "One word")] = None
    bias: Annotated[dict[str, float] | None, Only(every_member(equal(0)), "0", "No bias")] = None
    nothing: Annotated[list[Any] | None, Only(empty, "empty", "Nothing", "no_such_thing")] = None
    gone: Annotated[Any, Only(left_out, "", "Not done")] = None
    typed: Annotated[int | None, Checked("it is the same without")] = None


@pytest.mark.parametrize(
    "neutral",
    [
        {},
        {"n": 1},
        {"n": 2},
        {"off": 0.0},
        {"off": -1.0},
        {"words": ["a", "a"]},
        {"words": []},
        {"bias": {"x": 0.0}},
        {"nothing": []},
        {"gone": None},
        {"typed": 5},
    ],
    ids=str,
)
def test_values_that_ask_for_nothing_pass(neutral):
    refuse_unsupported(Body(text="x", **neutral))


@pytest.mark.parametrize(
    ("asked", "code", "param", "message"),
    [
        ({"n": 3}, "n_not_supported", "n", "One answer: 'n' must be 1 or 2, but is 3."),
        ({"off": 0.5}, "off_not_supported", "off", "Not here: 'off' must be 0 or below, but is 0.5."),
        ({"words": ["a", "b"]}, "words_not_supported", "words[1]", "One word: 'words[1]' must be a, but is \"b\"."),
        ({"bias": {"x": 1.0}}, "bias_not_supported", "bias.x", "No bias: 'bias.x' must be 0, but is 1.0."),
        ({"nothing": [7]}, "no_such_thing", "nothing", "Nothing: 'nothing' must be empty, but is [7]."),
        ({"gone": {}}, "gone_not_supported", "gone", "Not done: 'gone' has to be left out."),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_value_that_asks_for_something_is_refused_by_place(asked, code, param, message):
    with pytest.raises(ApiError) as caught:
        refuse_unsupported(Body(text="x", **asked))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
    assert caught.value.message == message
    with pytest.raises(ApiError) as inside:
        refuse_unsupported(Body(text="x", **asked), "parts[0]")
    assert inside.value.param == f"parts[0].{param}"


def test_a_long_key_is_cut_in_the_place():
    with pytest.raises(ApiError) as caught:
        refuse_unsupported(Body(text="x", bias={"k" * 5000: 1.0}))
    assert caught.value.param == "bias." + "k" * 80
    assert len(caught.value.message) < 200


def test_a_field_that_does_not_say_what_becomes_of_it_is_a_mistake():
    class Silent(msgspec.Struct):
        said: Annotated[int, Used("any")] = 0
        silent: int = 0

    with pytest.raises(AssertionError, match=r"Silent\.silent does not say"):
        table(Silent)


def test_the_page_has_a_row_for_every_field():
    made = ProtocolDocument(
        title="T", intro="I.", endpoints=(Endpoint(route="POST /x", summary="S.", body=Body, notes=("N.",)),)
    )
    page = document(made)
    assert page.startswith("# T\n")
    assert [name for name in table(Body) if f"| `{name}`" not in page] == []
    assert "| `text` (required) | any \\| text |" in page
    assert "| `n` | 1 or 2 | `n_not_supported` | One answer |" in page
    assert "| `gone` | left out or null | `gone_not_supported` | Not done |" in page
    assert "| `nothing` | empty | `no_such_thing` | Nothing |" in page
    assert "| `typed` | it is the same without |" in page
    assert [entry.names for entry in ignored(Body)] == [("seed",), ("user", "tag")]
    assert "| `user`, `tag` | labels |" in page
    assert page.endswith("N.\n")
