"""Events between the engine thread and the event loop."""

import asyncio
import threading

import pytest

from ninfer_core.api import Delta, Done, Result, Started, Timings, Unavailable
from ninfer_core.engine.capacity import Capacity
from ninfer_core.engine.generation import LocalGeneration, Outbox


def result(content="hi"):
    return Result(
        finish="stop_token",
        stop_string=None,
        reasoning="",
        content=content,
        token_ids=(1, 2),
        prompt_tokens=3,
        cached_tokens=0,
        completion_tokens=2,
        reasoning_tokens=0,
        timings=Timings(),
        seed=1,
    )


def open_generation(capacity):
    return LocalGeneration(sampling={}, max_tokens=5, unit=capacity.acquire())


def delta(text):
    return Delta(channel="content", text=text, token_ids=(1,), timings=Timings())


def test_events_arrive_in_order_from_another_thread():
    async def scenario():
        generation = open_generation(Capacity(1))
        outbox = Outbox()
        outbox.loop = asyncio.get_running_loop()

        def engine():
            for boundary in (
                [Started(prompt_tokens=3, reused_tokens=0)],
                [delta("h"), delta("i")],
                [Done(result=result())],
            ):
                for event in boundary:
                    outbox.put(generation, event)
                outbox.flush()

        threading.Thread(target=engine).start()
        return [event async for event in generation]

    events = asyncio.run(scenario())
    assert [type(event).__name__ for event in events] == ["Started", "Delta", "Delta", "Done"]


def test_a_failure_is_raised_after_the_events_before_it():
    async def scenario():
        generation = open_generation(Capacity(1))
        generation.deliver(delta("h"))
        generation.deliver(Unavailable())
        seen = []
        with pytest.raises(Unavailable):
            async for event in generation:
                seen.append(event.text)
        return seen

    assert asyncio.run(scenario()) == ["h"]


def test_leaving_early_cancels_and_holds_capacity_until_the_engine_is_through():
    async def scenario():
        capacity = Capacity(1)
        generation = open_generation(capacity)
        async with generation:
            pass
        assert generation.cancelled
        assert capacity.held == 1
        generation.deliver(Done(result=result()))
        return capacity.held

    assert asyncio.run(scenario()) == 0


def test_leaving_after_the_end_cancels_nothing():
    async def scenario():
        capacity = Capacity(1)
        async with open_generation(capacity) as generation:
            generation.deliver(Done(result=result("all")))
            assert (await generation.result()).content == "all"
        return generation.cancelled, capacity.held

    assert asyncio.run(scenario()) == (False, 0)


def test_a_loop_that_is_gone_loses_its_events_quietly():
    loop = asyncio.new_event_loop()

    async def make():
        return open_generation(Capacity(1))

    generation = loop.run_until_complete(make())
    loop.close()
    outbox = Outbox()
    outbox.loop = loop
    outbox.put(generation, Done(result=result()))
    outbox.flush()
    outbox.flush()


def test_who_waits_for_the_result_is_woken_once():
    async def scenario():
        generation = open_generation(Capacity(1))
        outbox = Outbox()
        outbox.loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(generation.result())
        await asyncio.sleep(0)
        for event in (Started(prompt_tokens=3, reused_tokens=0), delta("h"), delta("i")):
            outbox.put(generation, event)
        assert outbox._batch == []
        outbox.put(generation, Done(result=result("hi")))
        outbox.flush()
        return await waiting

    assert asyncio.run(scenario()).content == "hi"
