"""Thinking budgets and the answer's own sampler."""

import asyncio

import pytest
import structlog
from engines import Driver, end, open_engine, run, text
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ChatJob, Message, Part, SamplingRequest
from ninfer_core.engine.thinking import plan_budget

THOUGHT = "one two three four five six seven eight nine ten"
SCRIPT = {
    "replies": [
        {"match": "think", "text": THOUGHT + "</think>\n\nDone."},
        {"match": "quick", "text": "no</think>\n\nDone."},
        {"match": "stray", "text": "x", "finish": "never", "logits": {str(d): 20.0 for d in range(10)}},
        {"match": "even", "text": "t</think>\n\nx", "finish": "never", "logits": {str(d): 20.0 for d in range(10)}},
    ]
}
CLOSE = "\n\nTime to answer.\n</think>\n\n"
R = len(CLOSE) - len("</think>") + 1 + 1  # bytes and the close tag, and one token after them


def chat(engine, question, **changes):
    async def scenario():
        engine.start(asyncio.get_running_loop())
        message = Message(role="user", content=(Part(text=question),))
        job = ChatJob(**{"messages": (message,), "thinking": True, **changes})
        async with await engine.chat(job) as generation:
            result = await generation.result()
        engine.stop()
        return result

    result = run(scenario())
    assert engine.join(10)
    return result


@given(requested=st.integers(1, 300), output=st.integers(1, 400), guidance=st.integers(0, 60))
@pytest.mark.contract("chat.budget.window")
def test_the_effective_budget_is_what_the_contract_says(requested, output, guidance):
    b, c, r = requested, output, guidance + 1
    got = plan_budget(b, c, [0] * guidance).effective
    if c <= b or c - b >= r:
        assert got == b
    elif c > r:
        assert got == c - r < b
    else:
        assert got is None


@pytest.mark.parametrize("budget", [1, 5, 12])
@pytest.mark.parametrize("draft", [[0], [4], [1, 3]])
def test_a_spent_budget_closes_the_reasoning_and_the_answer_follows(tmp_path, budget, draft):
    engine = open_engine(tmp_path, {**SCRIPT, "draft": draft})
    result = chat(engine, "think", thinking_budget=budget)
    assert result.reasoning == THOUGHT[:budget] + "\n\nTime to answer."
    assert result.content == "Done."
    assert result.finish == "stop_token"
    assert result.completion_tokens == budget + R - 1 + len("Done.") + 1  # inserted tokens count
    assert engine.worker.snapshot.counters.control_units == 1


@pytest.mark.contract("chat.budget.natural")
def test_reasoning_that_closes_in_time_is_left_alone(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)
    result = chat(engine, "quick", thinking_budget=3)
    assert (result.reasoning, result.content) == ("no", "Done.")
    assert engine.worker.snapshot.counters.control_units == 0


def test_near_the_end_of_the_window_the_budget_shrinks_so_that_the_close_fits(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)
    result = chat(engine, "think", thinking_budget=10, max_tokens=R + 5)
    assert result.reasoning == THOUGHT[:5] + "\n\nTime to answer."
    assert (result.content, result.finish) == ("D", "output_limit")


def test_a_window_too_short_for_the_close_is_all_thought(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)
    result = chat(engine, "think", thinking_budget=2, max_tokens=R)
    assert (result.reasoning, result.content) == (THOUGHT[:R].rstrip(), "")


@pytest.mark.contract("chat.budget.logged")
@pytest.mark.parametrize(
    ("budget", "limit", "told"),
    [
        (10, R + 30, {"thinking_budget": 10}),
        (10, R + 5, {"thinking_budget": 10, "effective_thinking_budget": 5}),
        (2, R, {"thinking_budget": 2}),  # cannot be enforced
        (None, 40, {}),
    ],
)
def test_the_log_names_the_budget_and_the_effective_one_where_it_differs(tmp_path, budget, limit, told):
    engine = open_engine(tmp_path, SCRIPT)
    with structlog.testing.capture_logs() as entries:
        chat(engine, "think", thinking_budget=budget, max_tokens=limit)
    done = next(entry for entry in entries if entry["event"] == "request_done")
    assert {name: value for name, value in done.items() if "thinking" in name} == told


@pytest.mark.contract("post.logged", "chat.effort.logged")
@pytest.mark.parametrize(
    ("last", "asked", "told"),
    [
        ("quick", {"post_thinking": SamplingRequest(), "effort": "low"}, {"post_thinking": True, "effort": "low"}),
        ("think", {"post_thinking": SamplingRequest(), "max_tokens": 5}, {"post_thinking": False}),  # never closes
        ("quick", {}, {}),
    ],
)
def test_the_log_says_what_was_asked_of_the_thinking_and_whether_the_sampler_switched(tmp_path, last, asked, told):
    engine = open_engine(tmp_path, SCRIPT, "--default-reasoning-effort", "medium")
    with structlog.testing.capture_logs() as entries:
        chat(engine, last, **asked)
    done = next(entry for entry in entries if entry["event"] == "request_done")
    assert done.get("post_thinking") == told.get("post_thinking")
    # an effort that only the server's default filled in is nobody's request
    assert done.get("requested_reasoning_effort") == told.get("effort")


@pytest.mark.contract("chat.budget.default", "chat.budget.silent")
def test_the_servers_default_caps_only_requests_that_think(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--default-thinking-budget", "4")
    assert chat(engine, "think").reasoning.endswith("Time to answer.")
    engine = open_engine(tmp_path, SCRIPT, "--default-thinking-budget", "4")
    result = chat(engine, "think", thinking=False)
    assert "Time to answer." not in result.reasoning + result.content
    # beside --no-thinking it is there for requests that ask to think
    flags = ("--default-thinking-budget", "4", "--no-thinking")
    assert chat(open_engine(tmp_path, SCRIPT, *flags), "think").reasoning.endswith("Time to answer.")
    result = chat(open_engine(tmp_path, SCRIPT, *flags), "think", thinking=None)
    assert "Time to answer." not in result.reasoning + result.content


@pytest.mark.contract("chat.budget.message")
def test_an_operators_message_gets_the_close_tag(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--thinking-budget-message", "Enough!")
    result = chat(engine, "think", thinking_budget=3)
    assert (result.reasoning, result.content) == ("oneEnough!", "Done.")


def test_a_budget_of_one_row_changes_nothing_in_another(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2"))
    capped = driver.submit("think", budget_tokens=6, thinking=True)
    free = driver.submit("think", thinking=True)
    driver.run()
    assert end(free).reasoning == THOUGHT
    assert end(free).content == end(capped).content == "Done."
    driver.check_at_rest()
    assert text(free) == THOUGHT + "Done."


@pytest.mark.contract("post.switch")
def test_the_answer_is_sampled_apart_from_the_round_after_the_close(tmp_path):
    def tokens(*flags, **changes):
        engine = open_engine(tmp_path, SCRIPT, *flags)
        sampling = SamplingRequest(seed=5, temperature=1.0)
        return chat(engine, "even", sampling=sampling, max_tokens=80, thinking_budget=4, **changes)

    plain = tokens()
    greedy = tokens(post_thinking=SamplingRequest(temperature=0.0))
    flagged = tokens("--post-thinking-temperature", "0")
    assert plain.reasoning == greedy.reasoning
    assert len(set(plain.content)) > 3  # ten tokens are equally likely
    assert set(greedy.content[2:]) == {min(set(plain.content) | set(greedy.content[2:]))}
    assert flagged.content == greedy.content
    cool = tokens("--post-thinking-sampler", "temp=1,top_k=1")
    assert cool.content == greedy.content
    assert tokens("--post-thinking", thinking=True).content != ""


@pytest.mark.contract("post.never")
def test_reasoning_that_never_closes_keeps_its_sampler(tmp_path):
    def thought(**changes):
        sampling = SamplingRequest(seed=5, temperature=1.0)
        return chat(open_engine(tmp_path, SCRIPT), "stray", sampling=sampling, max_tokens=60, **changes)

    plain = thought()
    assert len(set(plain.reasoning)) > 3  # ten tokens are equally likely
    assert thought(post_thinking=SamplingRequest(temperature=0.0)).token_ids == plain.token_ids
