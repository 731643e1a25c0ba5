"""Thinking that comes back: by its text, by our signature, or not at all."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_anthropic.signatures import RESTORABLE, restorable, shown
from ninfer_anthropic.to_job import Leniency, prompt_job
from ninfer_anthropic.types import PromptBody
from ninfer_core.api import ApiError, ChatJob


def job(thinking: str, signature: str | None) -> ChatJob:
    block = {"type": "thinking", "thinking": thinking, "signature": signature}
    messages: list[Any] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "a"}]},
        {"role": "user", "content": "r"},
    ]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    return prompt_job(msgspec.json.decode(body, type=PromptBody), Leniency()).job


def reasoning(thinking: str, signature: str | None) -> str | None:
    return job(thinking, signature).messages[1].reasoning


@pytest.mark.contract("messages.display.restored", "messages.display.signature")
@given(text=st.text(min_size=1))
def test_omitted_thinking_comes_back_whole(text):
    signature = restorable(text)
    assert signature == "ninfer-reasoning.v1:" + base64.b64encode(text.encode()).decode()
    assert job("", signature) == job(text, shown(text)) == job(text, None)
    assert reasoning("", signature) == text


@pytest.mark.contract("messages.thinking.replay", "messages.display.text-first", "messages.display.foreign")
@pytest.mark.parametrize(
    ("thinking", "signature", "expected"),
    [
        pytest.param("hm", None, "hm", id="none"),
        pytest.param("hm", "", "hm", id="empty"),
        pytest.param("hm", "EqQBCgIYAhIM", "hm", id="foreign"),
        pytest.param("hm", restorable("other"), "hm", id="text-first"),
        pytest.param("hm", RESTORABLE + "!", "hm", id="text-before-a-broken-one"),
        pytest.param("", "EqQBCgIYAhIM", None, id="foreign-litellm-8961"),
        pytest.param("", shown("hm"), None, id="shown-and-stripped"),
        pytest.param("", None, None, id="nothing"),
        pytest.param("", RESTORABLE, None, id="restores-nothing"),
    ],
)
def test_text_counts_first_and_foreign_signatures_hold_nothing(thinking, signature, expected):
    assert reasoning(thinking, signature) == expected


@pytest.mark.contract("messages.display.malformed")
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("aG1t!", id="junk"),
        pytest.param("aG1", id="cut-litellm-8961"),
        pytest.param("aG1t\n", id="line-break"),
        pytest.param("aG-_", id="url-safe"),
        pytest.param("é", id="not-ascii"),
        pytest.param("/w==", id="not-utf8"),
        pytest.param("7aCA", id="half-a-surrogate-pair"),
        pytest.param("=", id="padding-alone"),
        pytest.param("aA==aA==", id="two-ends"),
    ],
)
def test_a_broken_signature_of_ours_is_refused(payload):
    with pytest.raises(ApiError) as caught:
        reasoning("", RESTORABLE + payload)
    assert (caught.value.code, caught.value.param) == (
        "invalid_thinking_signature",
        "messages[1].content[0].signature",
    )


@given(payload=st.text(max_size=12) | st.text(alphabet="aG1t+/=", max_size=12))
def test_any_payload_is_restored_or_refused(payload):
    try:
        text = reasoning("", RESTORABLE + payload) or ""
    except ApiError as error:
        assert error.code == "invalid_thinking_signature"
    else:
        assert base64.b64decode(payload) == text.encode()
