"""The conversation of a Chat Completions body: what is taken over, and what is refused by place."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer_core.api import Part, ToolCall

contract = pytest.mark.contract


def after_a_turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "before"}, fields]}


@contract(
    "chat.history.roles",
    "chat.history.legacy",
    "chat.history.reasoning",
    "chat.content.parts",
    "chat.content.empty",
    "chat.template.order",
    "chat.name.tool",
)
def test_messages_keep_their_order_parts_and_places(job):
    made = job(
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "user", "content": "", "name": ""},
                {"role": "user", "content": []},
                {"role": "assistant", "content": None, "reasoning": "r", "refusal": "no"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}], "reasoning_content": "q"},
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
                {"role": "function", "name": "g", "content": "43"},
            ]
        }
    ).messages
    assert [m.role for m in made] == ["system", "developer", "user", "user", "assistant", "assistant", "tool", "tool"]
    assert made[1].content == (Part(text="a"), Part(text="b"))
    assert made[2].content == (Part(text=""),)
    assert made[3].content == ()
    assert (made[4].text, made[4].reasoning, made[5].text, made[5].reasoning) == ("no", "r", "never", "q")
    assert (made[6].tool_call_id, made[7].tool_call_id) == ("c1", None)
    assert [m.place for m in made] == [f"messages[{at}]" for at in range(8)]


@contract("chat.history.calls", "chat.history.legacy", "chat.json.order", "chat.json.no-canonical")
def test_calls_of_the_history_keep_the_text_of_their_arguments(job):
    spelled = '{"z":1.0,"a":[true , null,"\\u00e9"],"n":123456789012345678901234567890, "e":1E5}'
    body = (
        b'{"messages":[{"role":"assistant","tool_calls":['
        b'{"id":"1","type":"function","function":{"name":"f","arguments":%s}},'
        b'{"id":"2","type":"custom","custom":{"name":"g","input":"free \\"text\\""}},'
        b'{"id":"3","function":{"name":"h","arguments":""}},'
        b'{"id":"4","function":{"name":"i"}},'
        b'{"id":"5","function":{"name":"j","arguments":{"b" : 1.50,"a":{}}}}'
        b'],"function_call":{"name":"old","arguments":" {} "}}]}'
    )
    import msgspec

    (made,) = job(body % msgspec.json.encode(spelled)).messages
    assert made.tool_calls == (
        ToolCall(id="1", name="f", arguments=spelled),
        ToolCall(id="2", name="g", arguments='{"input":"free \\"text\\""}'),
        ToolCall(id="3", name="h", arguments="{}"),
        ToolCall(id="4", name="i", arguments="{}"),
        ToolCall(id="5", name="j", arguments='{"b" : 1.50,"a":{}}'),
        ToolCall(id="", name="old", arguments=" {} "),
    )


@contract("chat.errors.malformed", "chat.name.tool", "chat.name.others", "chat.media.parts", "media.off")
@pytest.mark.parametrize(
    ("fields", "code", "place"),
    [
        ({"role": "robot", "content": "x"}, "invalid_value", "role"),
        ({"content": "x"}, "missing_required_parameter", "role"),
        ({"role": "user"}, "invalid_value", "content"),
        ({"role": "tool", "tool_call_id": "1"}, "invalid_value", "content"),
        ({"role": "user", "content": 5}, "invalid_type", "content"),
        ({"role": "user", "content": "x", "name": "ann"}, "name_not_supported", "name"),
        ({"role": "tool", "tool_call_id": "1", "content": "x", "name": 5}, "invalid_type", "name"),
        ({"role": "tool", "content": "x"}, "missing_required_parameter", "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "missing_required_parameter", "tool_call_id"),
        ({"role": "function", "content": "x"}, "missing_required_parameter", "name"),
        ({"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}, "invalid_value", "tool_calls"),
        ({"role": "user", "content": "x", "function_call": {"name": "f"}}, "invalid_value", "function_call"),
        ({"role": "assistant", "audio": {"id": "a"}}, "audio_not_supported", "audio"),
        ({"role": "assistant", "reasoning": "a", "reasoning_content": "b"}, "invalid_value", "reasoning"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "vision_disabled",
            "content[0]",
        ),
        (
            {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]},
            "vision_disabled",
            "content[0]",
        ),
        ({"role": "user", "content": [{"type": "image_url"}]}, "missing_required_parameter", "content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "missing_required_parameter",
            "content[0].image_url.url",
        ),
        ({"role": "user", "content": [{"type": "image_url", "image_url": 5}]}, "invalid_type", "content[0].image_url"),
        (
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url", "image_url": "x"}]},
            "vision_disabled",
            "content[0]",
        ),
        (
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "video_url", "video_url": "x"}]},
            "invalid_value",
            "content[0].type",
        ),
        ({"role": "system", "content": [{"type": "image_url", "image_url": "x"}]}, "invalid_value", "content[0].type"),
        (
            {"role": "assistant", "content": [{"type": "image_url", "image_url": "x"}]},
            "invalid_value",
            "content[0].type",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio_not_supported", "content[0]"),
        ({"role": "user", "content": [{"type": "file"}]}, "file_not_supported", "content[0]"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "invalid_value", "content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "missing_required_parameter", "content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "missing_required_parameter", "content[0].type"),
        ({"role": "user", "content": ["x"]}, "invalid_type", "content[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": NaN}'}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":' + "[" * 5000}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "a b"}}]},
            "invalid_value",
            "tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "", "input": ""}}]},
            "invalid_value",
            "tool_calls[0].custom.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "function"}]},
            "missing_required_parameter",
            "tool_calls[0].function",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
            "missing_required_parameter",
            "tool_calls[0].custom",
        ),
        ({"role": "assistant", "tool_calls": [{"type": "code"}]}, "invalid_value", "tool_calls[0].type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_message_that_cannot_be_represented_is_refused_by_place(refusal, fields, code, place):
    assert refusal(after_a_turn(**fields))[:2] == (code, f"messages[1].{place}")


@contract("chat.media.string-form", "chat.media.detail")
def test_media_sources_are_checked_before_they_are_refused(refusal):
    def code(source: Any, kind: str = "image_url", **options: Any) -> Any:
        return refusal(after_a_turn(role="user", content=[{"type": kind, kind: source}]), **options)[:2]

    at = "messages[1].content[0]"
    for source in ("http://a/b.png", {"url": "x", "detail": "auto"}, {"url": "x", "detail": "high"}, {"url": "x"}):
        assert code(source) == ("vision_disabled", at)
    assert code({"url": "x", "detail": "low"}) == code({"url": "x", "detail": None}) == ("vision_disabled", at)
    odd = {"url": "x", "detail": "original"}
    assert code(odd) == ("image_detail_not_supported", f"{at}.image_url.detail")
    assert code(odd, lenient_image_detail=True) == ("vision_disabled", at)
    assert code({"url": "x"}, "video_url") == ("vision_disabled", at)


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,bm90IGFuIGltYWdl",
        "data:image/png;base64,!!!",
        "file:///etc/passwd",
        "http://127.0.0.1:1/",
    ],
)
@pytest.mark.parametrize(
    "stream", [pytest.param(False, id="cve-2026-22778-aggregate"), pytest.param(True, id="cve-2026-54236-stream")]
)
def test_a_refused_image_tells_nothing_of_this_machine(refusal, url, stream):
    part = {"type": "image_url", "image_url": {"url": url}}
    code, _, message = refusal({**after_a_turn(role="user", content=[part]), "stream": stream})
    assert code == "vision_disabled"
    assert not any(sign in message for sign in ("0x", "<_io", "Traceback", "/etc", "127.0.0.1"))
