"""The model says when it does not find what it stored, and draws delays, faults and drafts from the script."""

from __future__ import annotations

import json
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninfer_core.testing import Rig, SimpleCache
from ninfer_scripted import FAMILY
from ninfer_scripted.model import ScriptedModel
from ninfer_scripted.script import Script, parse

PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TEXT = "The quick brown fox jumps over the lazy dog, and then it goes home. " * 12


def script(**reply: object) -> Script:
    return parse(json.dumps({"replies": [{"match": "a", **({"text": TEXT} | reply)}]}).encode(), "f.json")


def bench(one: Script, *, rows: int = 2, max_tokens: int = 1024) -> Rig:
    config = {"vocab_size": one.tokenizer.size}
    layout = FAMILY.state_layout(config, None)  # type: ignore[arg-type]
    return Rig(ScriptedModel(one), FAMILY.kv_geometry(config), layout, rows=rows, max_tokens=max_tokens)


def prompt(one: Script, text: str = "a") -> list[int]:
    return one.tokenizer.encode_with_control(PROMPT.format(text))


def begin(rig: Rig, one: Script, row: int = 0, text: str = "a") -> int:
    ids = prompt(one, text)
    rig.prompts[row] = len(ids)
    return token(rig.feed({row: ids}, wanted="last")[row])


def token(logits: Tensor) -> int:
    return int(logits[-1].argmax())


def said(rig: Rig, one: Script, row: int, first: int, count: int) -> str:
    tokens = [first]
    for _ in range(count - 1):
        tokens.append(token(rig.feed({row: [tokens[-1]]}, provisional=True)[row]))
        rig.fold({row: 1})
    return one.tokenizer.spell(tokens).decode()


def test_the_reply_is_played_token_by_token() -> None:
    one = script()
    rig = bench(one)
    assert said(rig, one, 0, begin(rig, one), 400) == TEXT[:400]


def test_the_scripted_logit_is_20_and_the_others_0() -> None:
    one = script(logits={"x": 19.5, "T": -1})
    rig = bench(one)
    ids = prompt(one)
    rig.prompts[0] = len(ids)
    logits = rig.feed({0: ids}, wanted="last")[0][0]
    expected = torch.zeros(one.tokenizer.size)
    expected[ord("x")], expected[ord("T")] = 19.5, -1
    assert torch.equal(logits, expected)
    logits = rig.feed({0: [ord("T")]}, wanted="last")[0][0]
    assert logits[ord("h")] == 20


@pytest.mark.parametrize("page", range(6))
def test_a_page_of_another_sequence_shows_as_wrong_text(page: int) -> None:
    one = script()
    rig = bench(one)
    first = begin(rig, one, 0, "a" * 340)
    begin(rig, one, 1, "b" * 340)
    rig.pages[0][page] = rig.pages[1][page]
    assert "[wrong page]" in said(rig, one, 0, first, 8)


def test_a_page_used_by_two_sequences_shows_in_both_or_the_first() -> None:
    one = script()
    rig = bench(one)
    begin(rig, one, 0, "a" * 200)
    rig.pages[1][0] = rig.pages[0][0]
    said(rig, one, 1, begin(rig, one, 1, "another a"), 3)
    assert "[wrong page]" in said(rig, one, 0, ord("x"), 8)


def test_every_stored_row_is_checked_at_a_prompts_end() -> None:
    one = script()
    rig = bench(one)
    ids = prompt(one, "a" + "b" * 600)
    rig.feed({0: ids[:-1], 1: [ord("x")] * (len(ids) - 1)}, wanted="none")
    cache = rig.cache
    assert isinstance(cache, SimpleCache)
    slot = rig.pages[0][3] * 64 + 17
    cache.keys[0][slot] = -cache.keys[0][slot]
    rig.prompts = {0: len(ids), 1: 10_000}
    assert one.tokenizer.token_bytes(token(rig.feed({0: ids[-1:]}, wanted="last")[0])) == b"[wrong page]"


def test_the_state_of_another_sequence_shows_as_wrong_text() -> None:
    one = script()
    rig = bench(one)
    first, other = begin(rig, one), begin(rig, one, 1, "another a")
    rig.slots[0] = rig.slots[1]
    assert "[wrong state]" in said(rig, one, 0, first, 2)
    # the other one's slot has been advanced by the first
    assert "[wrong state]" in said(rig, one, 1, other, 2)


def test_a_state_that_was_not_folded_shows_as_wrong_text() -> None:
    one = script()
    rig = bench(one)
    rig.feed({0: [begin(rig, one)]}, provisional=True)
    rig.frontiers[0] += 1
    assert "[wrong state]" in said(rig, one, 0, ord("h"), 2)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_wrong_frontier_shows_as_wrong_text(shift: int) -> None:
    one = script()
    rig = bench(one)
    first = begin(rig, one)
    rig.frontiers[0] += shift
    assert "[wrong " in said(rig, one, 0, first, 2)


def test_a_fault_stays_visible() -> None:
    one = script()
    rig = bench(one)
    first = begin(rig, one)
    begin(rig, one, 1, "another a")
    good, rig.slots[0] = rig.slots[0], rig.slots[1]
    said(rig, one, 0, first, 2)
    rig.slots[0] = good
    assert said(rig, one, 0, ord("x"), 30).count("[wrong ") == 29


def test_the_reply_does_not_depend_on_what_the_model_saw_before() -> None:
    one = script(text="abcdef")
    rig = bench(one)
    # the first request stops in the middle of the reply, the second continues the same text as its own prompt
    tokens = said(rig, one, 0, begin(rig, one), 3)
    assert tokens == "abc"
    again = [*prompt(one), *b"ab"]
    rig.prompts[1] = len(again)
    second = token(rig.feed({1: again}, wanted="last")[1])
    fresh = bench(one)
    fresh.prompts[1] = len(again)
    assert second == token(fresh.feed({1: again}, wanted="last")[1]) == ord("c")


def test_fail_at_raises_at_that_token_and_not_behind_a_wrong_draft() -> None:
    one = script(text="abcdef", fail_at=3)
    rig = bench(one)
    assert said(rig, one, 0, begin(rig, one), 3) == "abc"
    with pytest.raises(RuntimeError, match="token 3"):
        rig.feed({0: [ord("c")]}, provisional=True)
    drafted = bench(one)
    first = begin(drafted, one)
    drafted.feed({0: [first, ord("~"), ord("c")]}, provisional=True)
    with pytest.raises(RuntimeError, match="token 3"):
        drafted.feed({0: [first, ord("b"), ord("c")]}, provisional=True)


def test_nan_at_spoils_that_position_alone() -> None:
    one = script(text="abcdef", nan_at=2)
    rig = bench(one)
    first, other = begin(rig, one), begin(rig, one, 1, "nothing")
    out = rig.feed({0: [first, ord("b"), ord("c")], 1: [other]}, provisional=True)
    assert [bool(row.isnan().all()) for row in out[0]] == [False, True, False]
    assert not out[1].isnan().any()


def test_delays_are_per_round_and_per_prefill_unit() -> None:
    content = {"prefill_delay_ms": 30, "replies": [{"match": "a", "text": "abc", "delay_ms": 60}]}
    one = parse(json.dumps(content).encode(), "f.json")
    rig = bench(one)

    def timed(fed: dict[int, list[int]], *, provisional: bool) -> float:
        before = time.perf_counter()
        rig.feed(fed, wanted="last", provisional=provisional)
        return time.perf_counter() - before

    ids = prompt(one)
    rig.prompts = {0: len(ids), 1: len(ids)}
    assert timed({0: ids[:4]}, provisional=False) >= 0.03
    assert 0.03 <= timed({0: ids[4:]}, provisional=False) < 0.06
    rig.feed({1: ids}, wanted="last")
    assert 0.06 <= timed({0: [ord("a")], 1: [ord("a")]}, provisional=True) < 0.12


def test_drafts_split_the_reply_into_the_rounds_the_script_asks_for() -> None:
    one = script(text="abcdefghij", draft=[2, 0, 3])
    source = ScriptedModel(one).draft_source
    assert source is not None
    assert source.max_drafts == 4
    from ninfer_core.api import DraftRequest

    handle = source.begin(DraftRequest(request_id=1, prompt_ids=prompt(one)))
    ledger, rounds = [*prompt(one), ord("a")], []
    for right in (2, 0, 3, 2):
        draft = source.propose(handle, ledger, 10)
        assert draft is not None
        rounds.append(one.tokenizer.spell(draft.tokens).decode("utf-8", "replace"))
        at = len(ledger) - len(prompt(one))
        ledger += list(b"abcdefghij"[at : at + right + 1])
    assert rounds == ["bc~", "~", "fgh~", "j<|im_end|>~"]
    assert source.propose(handle, ledger, 0) is None
    cut = source.propose(handle, [*prompt(one), *b"abc"], 1)
    assert cut is None or len(cut.tokens) == 1


@settings(max_examples=25, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=12))
def test_any_split_into_rounds_gives_the_same_text(rounds: list[tuple[int, int]]) -> None:
    one = script(text=TEXT)
    rig = bench(one)
    out = [begin(rig, one)]
    for right, wrong in rounds:
        drafts = [*TEXT.encode()[len(out) : len(out) + right], *b"~~~"[:wrong]]
        columns = [int(row.argmax()) for row in rig.feed({0: [out[-1], *drafts]}, provisional=True)[0]]
        accepted = next((i for i, draft in enumerate(drafts) if columns[i] != draft), len(drafts))
        rig.fold({0: accepted + 1})
        out += columns[: accepted + 1]
    assert one.tokenizer.spell(out) == TEXT.encode()[: len(out)]
    assert len(out) == 1 + sum(right + 1 for right, _ in rounds)


def test_a_script_without_drafts_has_no_drafter() -> None:
    assert ScriptedModel(script()).draft_source is None
