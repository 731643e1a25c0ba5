import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.engine.scheduler import PASSED_OVER, Scheduler, Staged


@pytest.mark.contract("run.rounds")
@pytest.mark.parametrize(("unit", "due"), [(64, 1), (128, 2), (512, 8), (1024, 16), (1, 1), (4096, 16)])
def test_rounds_before_a_unit_are_proportional_to_it(unit, due):
    assert Scheduler(chunk=1024, rounds=0).due(unit) == due


@pytest.mark.contract("run.rounds")
@pytest.mark.parametrize(
    ("chunk", "rounds", "unit", "due"), [(512, 0, 512, 8), (512, 0, 256, 4), (1024, 4, 1024, 4), (1024, 4, 512, 2)]
)
def test_rounds_are_those_asked_for_or_the_chunk_over_64(chunk, rounds, unit, due):
    assert Scheduler(chunk=chunk, rounds=rounds).due(unit) == due


@pytest.mark.contract("run.rounds")
def test_one_round_per_prefill_alternates_strictly():
    scheduler = Scheduler(chunk=512, rounds=1)
    kinds = []
    for _ in range(6):
        kind = scheduler.next_unit(staged=Staged(0, 5000, 0), decode_rows=2, forced_rows=0)
        scheduler.ran(kind)
        kinds.append(kind)
    assert kinds == ["decode", "prefill"] * 3


def test_without_decode_rows_prefill_runs_at_once():
    assert Scheduler(chunk=512, rounds=0).next_unit(staged=Staged(0, 10, 0), decode_rows=0, forced_rows=0) == "prefill"


def test_nothing_to_do_is_no_unit():
    assert Scheduler(chunk=512, rounds=0).next_unit(staged=None, decode_rows=0, forced_rows=0) is None


@pytest.mark.contract("run.staged")
def test_admission_waits_for_the_staged_prefill_and_for_a_round():
    scheduler = Scheduler(chunk=512, rounds=0)
    assert scheduler.may_admit(staged=0, decoding=0)
    assert not scheduler.may_admit(staged=1, decoding=0)
    assert not scheduler.may_admit(staged=0, decoding=1)
    scheduler.ran("decode")
    assert scheduler.may_admit(staged=0, decoding=1)


@given(
    chunk=st.integers(1, 32).map(lambda n: n * 64),
    rounds=st.integers(0, 40),
    remaining=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    rows=st.integers(1, 8),
)
def test_a_staged_prefill_and_the_streams_both_keep_moving(chunk, rounds, remaining, rows):
    scheduler = Scheduler(chunk=chunk, rounds=rounds)
    for prompt in remaining:
        while prompt:
            owed = scheduler.due(scheduler.unit_tokens(prompt))
            run = scheduler.decode_run
            kind = scheduler.next_unit(staged=Staged(0, prompt, 0), decode_rows=rows, forced_rows=0)
            assert kind == ("decode" if run < owed else "prefill")  # never more, never fewer than owed
            if kind == "prefill":
                prompt -= scheduler.unit_tokens(prompt)
            scheduler.ran(kind)


def test_inserted_tokens_come_before_anything_else():
    scheduler = Scheduler(chunk=512, rounds=0)
    assert scheduler.next_unit(staged=Staged(0, 10, 0), decode_rows=3, forced_rows=1) == "control"


@pytest.mark.contract("run.concurrent")
def test_concurrent_prefill_admits_beside_a_staged_prompt():
    assert Scheduler(chunk=512, rounds=0, concurrent=True).may_admit(staged=3, decoding=0)


@pytest.mark.contract("run.ageing", "run.concurrent")
@given(prompts=st.lists(st.integers(1, 20), min_size=2, max_size=8), arrivals=st.lists(st.integers(1, 3), max_size=60))
def test_no_staged_prompt_waits_longer_than_the_ageing_allows(prompts, arrivals):
    """Short prompts keep arriving; every lane still gets a unit within 8 + (lanes - 2) units of others."""
    scheduler = Scheduler(chunk=64, rounds=1, concurrent=True)
    remaining = dict(enumerate(prompts))
    skips = dict.fromkeys(remaining, 0)
    while remaining:
        chosen = scheduler.choose([Staged(lane, left * 64, skips[lane]) for lane, left in remaining.items()]).lane
        if skips[chosen] < PASSED_OVER:
            assert remaining[chosen] == min(remaining.values())  # the shortest, unless somebody starves
        for lane in remaining:
            skips[lane] = 0 if lane == chosen else skips[lane] + 1
            assert skips[lane] <= PASSED_OVER + max(len(prompts) - 2, 0)
        remaining[chosen] -= 1
        if not remaining[chosen]:
            del remaining[chosen]
            if arrivals:
                remaining[chosen], skips[chosen] = arrivals.pop(), 0
