"""The README's lists of body fields are the body's."""

from __future__ import annotations

import re
from pathlib import Path

from ninfer_openai.types import ChatBody, PostThinking

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
BODY = README.partition("## The body of a chat")[2]


def names(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_every_field_of_the_body_is_listed_once():
    rows = [line for line in BODY.splitlines() if line.startswith("| `")]
    served = [name for row in rows for name in names(row.split("|")[1])]
    refused = names(BODY.partition("Read, and refused")[2].partition("Checked for")[0])
    unread = names(BODY.partition("Checked for")[2].partition("Any other")[0])
    assert sorted([*served, *refused, *unread]) == sorted(ChatBody.__struct_fields__)


def test_the_members_of_the_answers_sampler_are_listed():
    (row,) = [line for line in BODY.splitlines() if line.startswith("| `post_thinking`")]
    assert sorted(names(row.split("|")[2])) == sorted(PostThinking.__struct_fields__)
