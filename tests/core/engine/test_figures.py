"""Leases, log probabilities, and the figures of one boundary."""

import pytest
from engines import Driver, end, events, open_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import Delta, Done, SamplingRequest
from ninfer_core.engine import device_start, sizing
from ninfer_core.engine.stats import PHASES, WAIT, HostClock
from ninfer_core.errors import Refusal

LONG = "word " * 200
SCRIPT = {
    "replies": [
        {"match": "long", "text": LONG},
        {"match": "two", "pieces": ["He", "llo", " wor", "ld. ", "Stop", " here"]},
        {"match": "bytes", "pieces_bytes": [[0xF0], [0x9F, 0x98], [0x80, 0x21], [0xC3]]},
    ],
    "default": {"text": "Hello."},
}


def records(generation):
    """(text, token ids with a record) per event."""
    return [
        (event.text if isinstance(event, Delta) else "", [one.token_id for one in event.logprobs])
        for event in events(generation)
        if isinstance(event, (Delta, Done))
    ]


@pytest.mark.parametrize("draft", [[0], [3]])
def test_a_record_travels_with_the_first_byte_of_its_token(tmp_path, draft):
    driver = Driver(open_engine(tmp_path, {**SCRIPT, "draft": draft}))
    generation = driver.submit("two", logprobs=2)
    driver.run()
    result = end(generation)
    assert len(result.logprobs) == 6  # the stop token has none
    assert [one.token_id for one in result.logprobs] == list(result.token_ids[:-1])
    assert all(one.logprob > -0.01 for one in result.logprobs)
    assert all(len(one.top) == 2 for one in result.logprobs)
    sent = [token for _, ids in records(generation) for token in ids]
    assert sent == [one.token_id for one in result.logprobs]


def test_a_stop_string_drops_the_records_of_what_it_cuts(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    generation = driver.submit("two", logprobs=0, stops=("d. Stop",))
    driver.run()
    result = end(generation)
    assert result.content == "Hello worl"
    assert [one.token_id for one in result.logprobs] == list(result.token_ids[:4])  # "ld. " begins before the cut


def test_parts_of_a_character_carry_their_records(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    generation = driver.submit("bytes", logprobs=0)
    driver.run()
    assert len(end(generation).logprobs) == 4
    first = next(ids for text, ids in records(generation) if text)
    assert len(first) == 3  # three tokens begin inside the first character


def test_reasoning_has_no_records(tmp_path):
    driver = Driver(open_engine(tmp_path, {"default": {"text": "hm</think>\n\nYes."}}))
    generation = driver.submit("x", logprobs=1, thinking=True)
    driver.run()
    result = end(generation)
    assert (result.reasoning, result.content) == ("hm", "Yes.")
    assert len(result.logprobs) == 4


def test_neighbours_of_a_request_with_records_have_none(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2"))
    with_records, without = driver.submit("long", logprobs=3, max_tokens=9), driver.submit("long", max_tokens=9)
    driver.run()
    assert len(end(with_records).logprobs) == 9
    assert end(without).logprobs == ()
    assert end(with_records).token_ids == end(without).token_ids


def lease_engine(tmp_path, *flags, context="8192"):
    flags = ("--kv-lease-growth", "--max-context", context, "--prefill-chunk", "64", *flags)
    return Driver(open_engine(tmp_path, {"default": {"text": "la", "finish": "never"}}, *flags))


@pytest.mark.contract("run.lease")
def test_a_lease_reserves_a_window_and_grows_with_the_answer(tmp_path):
    driver = lease_engine(tmp_path)
    driver.worker.lanes._window = 128
    generation = driver.submit("x" * 10, max_tokens=1000)
    driver.step()
    lane = driver.worker.lanes.active[0]
    assert lane.space.entitlement == 3  # 10 prompt tokens and 127 of the window
    driver.run()
    assert (end(generation).completion_tokens, end(generation).finish) == (1000, "output_limit")
    driver.check_at_rest()


@pytest.mark.contract("run.lease")
@pytest.mark.parametrize(("chunk", "window"), [(64, 4096), (8192, 8192)])
def test_the_window_of_a_lease_is_4096_tokens_or_a_chunk_when_that_is_larger(tmp_path, chunk, window):
    flags = ("--kv-lease-growth", "--max-context", "16384", "--prefill-chunk", str(chunk))
    driver = Driver(open_engine(tmp_path, {"default": {"text": "la", "finish": "never"}}, *flags))
    generation = driver.submit("x" * 10, max_tokens=12_000)
    driver.step()
    assert driver.worker.lanes.active[0].space.entitlement == -(-(10 + window - 1) // 64)
    generation.cancel()
    driver.run()
    driver.check_at_rest()


@pytest.mark.contract("run.lease-short")
def test_a_lease_the_pool_cannot_extend_ends_the_answer_with_its_limit(tmp_path):
    driver = lease_engine(tmp_path, "--max-concurrency", "2", "--kv-capacity", "8192")
    driver.worker.lanes._window = 4096
    first, second = driver.submit("x", max_tokens=8000), driver.submit("y", max_tokens=8000)
    driver.run(20_000)
    lengths = [end(generation).completion_tokens for generation in (first, second)]
    assert [end(generation).finish for generation in (first, second)] == ["output_limit"] * 2
    assert max(lengths) <= 8000
    assert min(lengths) < 8000
    assert min(lengths) >= 4032  # nobody gets less than the window it was admitted with
    driver.check_at_rest()


@settings(max_examples=15, deadline=None)
@given(limits=st.lists(st.integers(1, 900), min_size=1, max_size=5), window=st.sampled_from([64, 200, 512]))
def test_any_mix_of_leases_keeps_the_pages_and_every_token(limits, window, tmp_path_factory):
    driver = lease_engine(tmp_path_factory.mktemp("lease"), "--max-concurrency", "3", context="1024")
    driver.worker.lanes._window = window
    asked = [(driver.submit("x" * (7 * i), max_tokens=limit), limit) for i, limit in enumerate(limits, 1)]
    while driver.worker.lanes.active or len(driver.worker.queue):
        driver.step()
        driver.worker.lanes.pool.check()
    for generation, limit in asked:
        assert 1 <= end(generation).completion_tokens <= limit
    driver.check_at_rest()


@pytest.mark.contract("load.gauges", "load.counters.meaning")
def test_the_figures_of_a_boundary_add_up(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2", "--prefill-chunk", "64"))
    asked = [driver.submit("long" + "." * 100, max_tokens=20) for _ in range(3)]
    before = driver.worker.snapshot.counters
    running = waiting = 0
    while driver.worker.lanes.active or len(driver.worker.queue):
        driver.step()
        snapshot = driver.worker.snapshot
        gauges, counters = snapshot.gauges, snapshot.counters
        assert gauges.running <= 2
        assert gauges.prefilling + gauges.decode_ready == gauges.running
        assert len(snapshot.queue) == gauges.waiting
        assert [one.position for one in snapshot.queue] == list(range(gauges.waiting))
        for field in counters.__struct_fields__:
            assert getattr(counters, field) >= getattr(before, field)  # monotonic
        before = counters
        running, waiting = max(running, gauges.running), max(waiting, gauges.waiting)
    done = driver.worker.snapshot
    assert (running, waiting) == (2, 2)
    assert done.counters.computed_prefill_tokens == sum(len(g._events[-1].result.prompt_ids) for g in asked)
    assert done.counters.committed_decode_tokens == 3 * 19  # the first token is prefill's
    assert done.counters.selected_root == done.counters.requests == 3
    # nothing is drafted: each row of a batch gives one token
    assert done.counters.decode_row_rounds == 3 * 19
    assert done.counters.decode_rounds < 3 * 19  # two of them ran side by side
    assert done.gauges.kv_pages == done.gauges.state_slots == 0


@pytest.mark.contract("metrics.cancelled")
def test_cancellations_are_counted_where_they_happen(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--prefill-chunk", "64"))
    prefilling, waiting = driver.submit("long" + "." * 300), driver.submit("hi")
    driver.step()
    driver.now += 2
    waiting.cancel()
    prefilling.cancel()
    driver.run()
    counters = driver.worker.snapshot.counters
    assert (counters.waiting_cancelled, counters.cancelled_prefills) == (1, 1)
    assert counters.cancelled_prefill_computed_tokens == 64
    assert counters.waiting_abandoned_seconds >= 2
    assert counters.requests == counters.requests_failed == 0


def test_nested_phases_are_counted_once():
    now = [0.0]
    clock = HostClock(lambda: now[0])
    with clock.phase("engine_boundary"):
        now[0] += 1
        with clock.phase(WAIT):
            now[0] += 4
        now[0] += 2
    now[0] += 100  # nobody's
    read = clock.read()
    assert read.phases["engine_boundary"] == 3
    assert read.device_wait == 4
    assert read.total == 3
    assert set(read.phases) == set(PHASES)


@pytest.mark.contract("run.concurrent")
def test_concurrent_prefill_lets_a_short_prompt_in_beside_a_long_one(tmp_path):
    def first_to_finish(*flags):
        driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2", "--prefill-chunk", "64", *flags))
        long, short = driver.submit("." * 3000), driver.submit("hi")
        while not (end(long) or end(short)):
            driver.step()
        return "short" if end(short) and not any(isinstance(e, Delta) for e in events(long)) else "other"

    assert first_to_finish("--concurrent-prefill") == "short"
    assert first_to_finish() == "other"


@pytest.mark.contract("run.capacity-auto")
def test_automatic_capacity_takes_what_memory_has_and_the_lanes_can_use(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--kv-capacity", "auto", "--max-concurrency", "3", "--max-context", "1000")
    assert engine.limits.pool_pages == 3 * 16
    assert engine.limits.share_pages == 16


@pytest.mark.contract("run.capacity-auto", "options.headroom.free")
@pytest.mark.parametrize(
    ("headroom", "pages"), [((), 20), (("--kv-headroom-mib", "1025"), 18)], ids=["default", "asked"]
)
def test_automatic_capacity_leaves_the_headroom_free(tmp_path, monkeypatch, headroom, pages):
    """The default is 1024 MiB; a page is half a MiB here."""
    flags = ("--kv-capacity", "auto", "--max-concurrency", "3", "--max-context", "1000", *headroom)
    monkeypatch.setattr(device_start, "page_bytes", lambda geometry, dtype: 1 << 19)
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 1034 << 20)
    assert open_engine(tmp_path, SCRIPT, *flags).limits.pool_pages == pages
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 1031 << 20)
    with pytest.raises(Refusal, match=r"--kv-capacity auto: \d MiB are left beside 102[45] MiB of headroom"):
        open_engine(tmp_path, SCRIPT, *flags)


@pytest.mark.contract("options.headroom")
@pytest.mark.parametrize("flag", ["--kv-headroom-mib", "--vram-headroom-mib"])
def test_a_headroom_needs_a_capacity_that_memory_decides(tmp_path, flag):
    with pytest.raises(Refusal, match="--kv-headroom-mib has no effect without --kv-capacity auto"):
        open_engine(tmp_path, SCRIPT, flag, "100")
    assert open_engine(tmp_path, SCRIPT, flag, "100", "--kv-capacity", "auto").limits.pool_pages > 0


@pytest.mark.contract("options.capacity")
def test_a_capacity_left_out_is_one_whole_context(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--max-concurrency", "3", "--max-context", "1000")
    assert (engine.limits.max_context, engine.limits.pool_pages) == (1000, 16)
    assert open_engine(tmp_path, SCRIPT).limits.pool_pages == 8192 // 64


def test_the_seed_of_a_silent_request_is_reported(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    generation = driver.submit("hi", sampling=SamplingRequest())
    driver.run()
    assert end(generation).seed >= 0
