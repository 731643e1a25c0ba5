import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.engine.scheduler import Scheduler


@pytest.mark.parametrize(("unit", "due"), [(64, 1), (128, 2), (512, 8), (1024, 16), (1, 1), (4096, 16)])
def test_rounds_before_a_unit_are_proportional_to_it(unit, due):
    assert Scheduler(chunk=1024, rounds=0).due(unit) == due


def test_one_round_per_prefill_alternates_strictly():
    scheduler = Scheduler(chunk=512, rounds=1)
    kinds = []
    for _ in range(6):
        kind = scheduler.next_unit(prefill_remaining=5000, decode_rows=2)
        scheduler.ran(kind)
        kinds.append(kind)
    assert kinds == ["decode", "prefill"] * 3


def test_without_decode_rows_prefill_runs_at_once():
    assert Scheduler(chunk=512, rounds=0).next_unit(prefill_remaining=10, decode_rows=0) == "prefill"


def test_nothing_to_do_is_no_unit():
    assert Scheduler(chunk=512, rounds=0).next_unit(prefill_remaining=0, decode_rows=0) is None


def test_admission_waits_for_the_staged_prefill_and_for_a_round():
    scheduler = Scheduler(chunk=512, rounds=0)
    assert scheduler.may_admit(prefilling=False, decoding=False)
    assert not scheduler.may_admit(prefilling=True, decoding=False)
    assert not scheduler.may_admit(prefilling=False, decoding=True)
    scheduler.ran("decode")
    assert scheduler.may_admit(prefilling=False, decoding=True)


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
            kind = scheduler.next_unit(prefill_remaining=prompt, decode_rows=rows)
            assert kind == ("decode" if run < owed else "prefill")  # never more, never fewer than owed
            if kind == "prefill":
                prompt -= scheduler.unit_tokens(prompt)
            scheduler.ran(kind)
