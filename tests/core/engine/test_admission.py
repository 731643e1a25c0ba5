"""Output limits and capacity units: the arithmetic of admission."""

import asyncio

import pytest
from engines import Driver, end, open_engine, run
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RawJob
from ninfer_core.engine.capacity import Capacity
from ninfer_core.engine.request import output_budget
from ninfer_core.errors import Overloaded
from ninfer_core.kv.pages import pages_for


def budget(**changes):
    facts = {"prompt": 1000, "requested": None, "max_context": 65536, "share_pages": 512, "default": None}
    return output_budget(**{**facts, **changes})


@pytest.mark.contract("limit.share")
def test_an_omitted_limit_fits_one_lanes_share():
    got = budget()
    assert (got.tokens, got.finish) == (512 * 64 - 1000 + 1, "output_limit")


@pytest.mark.contract("limit.whole")
def test_with_room_for_all_lanes_the_whole_context_is_given():
    got = budget(share_pages=1024)
    assert (got.tokens, got.finish) == (65536 - 1000 + 1, "context_capacity")


@pytest.mark.contract("limit.large-prompt")
def test_a_prompt_beyond_the_share_keeps_the_whole_context():
    assert budget(prompt=40000).tokens == 65536 - 40000 + 1


@pytest.mark.contract("limit.explicit")
def test_an_explicit_limit_wins_and_is_clamped_to_the_context():
    assert (budget(requested=5).tokens, budget(requested=5).finish) == (5, "output_limit")
    clamped = budget(requested=10**6)
    assert (clamped.tokens, clamped.finish) == (64537, "context_capacity")


@pytest.mark.contract("limit.flag")
def test_the_servers_default_replaces_the_derived_one():
    assert (budget(default=77).tokens, budget(default=77).finish) == (77, "output_limit")


@pytest.mark.contract("limit.share")
@given(
    context=st.integers(64, 4096),
    share=st.integers(1, 64),
    data=st.data(),
)
def test_the_closed_form_equals_a_search(context, share, data):
    prompt = data.draw(st.integers(1, context))
    got = output_budget(prompt=prompt, requested=None, max_context=context, share_pages=share, default=None).tokens
    fitting = [out for out in range(1, context - prompt + 2) if pages_for(prompt + out - 1) <= share]
    assert got == (max(fitting) if fitting else context - prompt + 1)


@pytest.mark.contract("limit.open")
def test_a_limit_left_open_is_the_derived_one_whatever_the_server_gives_silent_requests(tmp_path):
    async def limits():
        engine = open_engine(tmp_path, {"default": {"text": "x"}}, "--default-max-tokens", "5", "--max-context", "256")
        engine.start(asyncio.get_running_loop())
        found = []
        for is_open in (False, True):
            job = RawJob(prompt=("p" * 40,), max_tokens=None, max_tokens_is_open=is_open)
            async with await engine.complete(job) as generation:
                found.append(generation.max_tokens)
                await generation.result()
        engine.stop()
        return found, engine

    found, engine = run(limits())
    assert engine.join(10)
    assert found == [5, 256 - 40 + 1]


@pytest.mark.contract("limit.share")
@pytest.mark.parametrize("lease", [(), ("--kv-lease-growth",)], ids=["whole", "lease"])
def test_requests_without_a_limit_run_side_by_side_in_a_pool_too_small_for_whole_contexts(tmp_path, lease):
    script = {"default": {"text": "x", "finish": "never"}}
    flags = ("--max-concurrency", "4", "--max-context", "1024", "--kv-capacity", "1024", "--concurrent-prefill", *lease)
    driver = Driver(open_engine(tmp_path, script, *flags))
    asked = [driver.submit("p" * 40) for _ in range(4)]
    assert {generation.max_tokens for generation in asked} == {4 * 64 - 40 + 1}
    while len(driver.worker.lanes.decoding) < 4:
        assert not any(map(end, asked))
        driver.step()
    driver.run()
    assert all(end(generation).completion_tokens == generation.max_tokens for generation in asked)
    driver.check_at_rest()


@pytest.mark.contract("run.capacity")
def test_capacity_is_refused_at_once_and_returned_once_whatever_the_order():
    capacity = Capacity(2)
    first, second = capacity.acquire(), capacity.acquire()
    with pytest.raises(Overloaded):
        capacity.acquire()
    first.done("engine")
    assert capacity.held == 2  # the consumer still holds it
    first.done("engine")
    first.done("consumer")
    first.done("consumer")
    assert capacity.held == 1
    second.done("consumer")
    second.done("engine")
    assert (capacity.held, capacity.peak) == (0, 2)
