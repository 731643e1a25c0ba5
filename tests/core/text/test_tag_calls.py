"""The tags by themselves; what is made of them is in test_tool_calls_in_output.py."""

from typing import ClassVar

from ninfer_core.api import Argument, WrittenCall
from ninfer_core.testing import ToolSyntaxContract
from ninfer_core.text.tag_calls import MAX_NAME, TagToolSyntax

F = WrittenCall(name="f", arguments=(Argument(name="a", text="x"),))
CALL = "<function=f><parameter=a>\nx\n</parameter></function>"
INVOKE = '<invoke name="f"><param name="a">x</param></invoke>'


class TestTags(ToolSyntaxContract):
    syntax: ClassVar = TagToolSyntax()
    names: ClassVar = ("f", "g")
    complete: ClassVar = {
        CALL: (F,),
        INVOKE: (F,),
        f"<tool_call>\n{CALL}\n</tool_call>": (F,),
        f"<tool_call>{CALL}</tool_call>\n\n<tool_call>{CALL}</tool_call>\n": (F, F),
        f"<function_calls>{INVOKE}\n{CALL}</function_calls> \n{CALL}": (F, F, F),
        '<function name="g">\n</function>': (WrittenCall(name="g"),),
    }
    broken: ClassVar = (
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call> text",
        "<function=f",
        "<function=h>",
        "<function=h h>",
        "<function=f>text</function>",
        "<function=f><parameter=a>x",
        "<function=f><parameter=a>x</parameter>",
        f"<tool_call>{CALL}",
        f"<tool_call>{CALL} text</tool_call>",
        f"{CALL} text",
        f"{CALL}<tool_call>",
        f"<tool_call>{CALL}</tool_call></tool_call>",
        "<function=" + "f" * (MAX_NAME + 1) + ">",
    )
    forced: ClassVar = "<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"


def failure(text: str):
    region = TagToolSyntax().region(frozenset({"f"}))
    region.feed(text)
    region.finish()
    return region.failure


def test_a_failure_inside_a_call_points_behind_its_opening():
    """What follows the opening may hold the call that was meant."""
    assert failure("<tool_call>\n<function=f> is how").at == len("<tool_call>\n<function=f>")
    assert failure("<tool_call>\n<function=f> is how").inside == "f"
    between = failure(f"{CALL} text")
    assert (between.at, between.inside, between.reason) == (len(CALL) + 1, None, "trailing_content")


def test_reasons():
    assert failure("<function=h>").reason == "undeclared_tool"
    assert failure("<function=h h>").reason == "invalid_tool_name"
    assert failure("<function=f>x").reason == "malformed_structure"
    assert failure(f"<tool_call>{CALL} x").reason == "trailing_content"
    assert failure("<tool_call> x").reason == "malformed_structure"


def test_only_closing_tags_are_ever_supplied():
    for text, closing in (
        ("<tool_call><function=f>", "</function></tool_call>"),
        ("<tool_call><function=f><parameter=a>x</parameter>\n</fun", "ction></tool_call>"),
        ("<tool_call><function=f></function>\n", "</tool_call>"),
        ("<function=f>\n", "</function>"),
        ("<function=f></function>", None),
        ("<tool_call>", None),
        ("<tool_call><function=f><parameter=a>x", None),
        ("<tool_call><function=f><param", None),
        ("<tool_call><function=f>text", None),
    ):
        region = TagToolSyntax().region(frozenset({"f"}))
        region.feed(text)
        assert region.closing() == closing, text
