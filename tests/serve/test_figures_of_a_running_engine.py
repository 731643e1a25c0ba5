"""Live figures beside real requests: monotonic, of one boundary, never waiting for the engine."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from ninfer_core.api import ApiError, RawJob
from ninfer_core.engine.stats import Counters

SCRIPT = {
    "replies": [{"match": "long", "text": "la " * 40}, {"match": "forever", "text": "x", "finish": "never"}],
    "default": {"text": "Hello."},
}
FLAGS = ("--max-context", "512", "--max-pending-requests", "4", "--no-thinking", "--greedy")


async def completion(client: httpx.AsyncClient, prompt: str) -> Any:
    response = await client.post("/completion", json={"prompt": prompt}, timeout=30)
    assert response.status_code == 200
    return response.json()


def counters_of(stats: Any, metrics: str) -> dict[str, float]:
    """Everything that may only grow."""
    out = {f"load.{name}": value for name, value in stats["counters"].items()}
    out |= {f"phase.{name}": value for name, value in stats["host_work"]["elapsed_seconds"].items()}
    out |= {f"class.{name}": value for name, value in stats["host_work"]["work_class_seconds"].items()}
    out |= {f"unit.{name}": value for name, value in stats["host_work"]["units"].items()}
    out |= {"peak": stats["requests"]["peak_admitted"], "uptime": stats["uptime_seconds"]}
    lines = [line.rsplit(" ", 1) for line in metrics.splitlines() if "_total" in line and not line.startswith("#")]
    return out | {name: float(value) for name, value in lines}


def check_gauges(stats: Any) -> None:
    """What holds within one boundary."""
    requests, occupancy, capacity = stats["requests"], stats["occupancy"], stats["capacity"]
    assert requests["prefilling"] + requests["decode_ready"] <= requests["running"] <= capacity["max_concurrency"]
    assert requests["admitted"] <= stats["requests"]["peak_admitted"] <= capacity["max_admitted_requests"]
    assert occupancy["device_state_slots"] == requests["running"]
    assert occupancy["device_main_kv_tokens"] == occupancy["device_main_kv_pages"] * capacity["kv_page_tokens"]
    reserved = stats["context_cache"]["occupancy"]["device_main_kv_lease_pages"]
    assert occupancy["device_main_kv_pages"] + reserved <= capacity["kv_capacity_pages"]
    assert len(stats["queue"]["entries"]) <= stats["queue"]["depth"] == stats["scheduler"]["waiting"]


@pytest.mark.contract("load.counters", "metrics.live")
def test_counters_only_grow_while_requests_run_and_end_at_what_the_answers_say(scripted):
    async def poll(client: httpx.AsyncClient, running: asyncio.Future[Any]) -> int:
        before: dict[str, float] = {}
        polls = 0
        while not running.done():
            stats = (await client.get("/stats")).json()
            metrics = (await client.get("/metrics")).text
            now = counters_of(stats, metrics)
            assert all(now[name] >= before.get(name, 0) for name in now)
            check_gauges(stats)
            before = now
            polls += 1
        return polls

    async def scenario(client: httpx.AsyncClient) -> tuple[list[Any], int, Any]:
        prompts = ["long", "hi", "long", "long one"]
        running = asyncio.gather(*(completion(client, prompt) for prompt in prompts))
        polls = await poll(client, running)
        return await running, polls, (await client.get("/v1/load")).json()

    with scripted({**SCRIPT, "delay_ms": 1}, "--max-concurrency", "2", *FLAGS) as server:
        answers, polls, load = server.runner.run(scenario(server.client()))
        assert polls > 3
        assert load["counters"]["computed_prefill_tokens"] == sum(one["tokens_evaluated"] for one in answers)
        assert load["counters"]["committed_decode_tokens"] == sum(one["tokens_predicted"] - 1 for one in answers)
        assert load["requests"] == dict.fromkeys(load["requests"], 0)
        assert load["occupancy"] == dict.fromkeys(load["occupancy"], 0)
        assert server.engine.capacity.peak == 4


@pytest.mark.contract("load.uptime")
def test_nothing_counts_before_the_engine_is_ready(scripted):
    """The warm-up runs a whole request through the engine; it is nobody's."""
    with scripted(SCRIPT, *FLAGS) as server:
        snapshot = server.engine.worker.snapshot
        assert snapshot.counters == Counters()
        spent = snapshot.host.phases
        assert spent["program_submit"] == spent["program_post"] == snapshot.host.device_wait == 0


@pytest.mark.contract("load.never-waits", "stats.fresh")
def test_figures_are_told_while_the_engine_is_inside_a_unit(scripted):
    entered, leave = threading.Event(), threading.Event()

    async def scenario(server: Any) -> list[int]:
        async with server.client() as client:
            request = asyncio.create_task(completion(client, "hi"))
            assert await asyncio.to_thread(entered.wait, 20)
            statuses = [(await client.get(path)).status_code for path in ("/v1/load", "/stats", "/metrics")]
            assert not request.done()
            assert (await client.get("/v1/load")).json()["requests"]["admitted"] == 1
            leave.set()
            await request
        return statuses

    with scripted(SCRIPT, *FLAGS) as server:
        program = server.engine.worker.program
        decode = program.decode

        def held(*arguments: Any, **named: Any) -> Any:
            entered.set()
            assert leave.wait(20), "the figures waited for the engine"
            return decode(*arguments, **named)

        program.decode = held
        try:
            assert server.runner.run(scenario(server)) == [200, 200, 200]
        finally:
            leave.set()


@pytest.mark.contract("stats.queue")
def test_the_queue_is_listed_in_order_with_its_waiting_times(scripted):
    async def scenario(server: Any) -> Any:
        async with server.client() as client:
            requests = [asyncio.create_task(completion(client, prompt)) for prompt in ("long", "hi", "hi", "hi")]
            while True:
                stats = (await client.get("/stats")).json()
                if stats["queue"]["depth"] == 3 == len(stats["queue"]["entries"]) or requests[0].done():
                    break
            await asyncio.gather(*requests)
        return stats

    with scripted({**SCRIPT, "delay_ms": 5}, "--max-concurrency", "1", *FLAGS) as server:
        stats = server.runner.run(scenario(server))
    assert (stats["requests"]["running"], stats["requests"]["admitted"]) == (1, 4)
    entries = stats["queue"]["entries"]
    assert [one["position"] for one in entries] == [0, 1, 2]
    ids = [one["request_id"] for one in entries]
    assert ids == sorted(ids)
    assert all(one["wait_seconds"] >= 0 for one in entries)


def metric(server: Any, name: str) -> float:
    async def ask() -> str:
        async with server.client() as client:
            return (await client.get("/metrics")).text

    lines = dict(line.rsplit(" ", 1) for line in server.runner.run(ask()).splitlines() if not line.startswith("#"))
    return float(lines[name])


@pytest.mark.contract("metrics.rejected", "metrics.outcomes")
def test_each_request_refused_before_it_is_accepted_counts_once_as_rejected(scripted):
    """Overload, an oversized and an invalid prompt; not a body that is no request at all."""
    with scripted(SCRIPT, "--max-concurrency", "1", *FLAGS) as server:
        post = server.post
        units = [server.engine.capacity.acquire() for _ in range(server.engine.capacity.bound)]
        assert post("/completion", {"prompt": "hi"}).status_code == 429
        assert metric(server, "ninfer:requests_rejected_total") == 1
        assert metric(server, "ninfer:requests_admitted") == len(units)
        for unit in units:
            unit.done("engine")
            unit.done("consumer")
        assert post("/completion", {"prompt": "x" * 600}).status_code == 400
        assert metric(server, "ninfer:requests_rejected_total") == 2
        assert post("/v1/chat/completions", {"messages": []}).status_code == 400
        rejected = metric(server, "ninfer:requests_rejected_total")
        assert post("/completion", {"prompt": 1.5}).status_code == 400
        assert post("/completion", {"prompt": "hi"}).status_code == 200
        assert metric(server, "ninfer:requests_rejected_total") == rejected
        assert metric(server, "ninfer:requests_failed_total") == 0
        assert metric(server, "ninfer:requests_total") == 1


@pytest.mark.contract("metrics.rejected")
def test_a_prompt_the_template_refuses_counts_as_rejected_and_a_cancelled_one_does_not(scripted):
    async def refused(engine: Any) -> None:
        with pytest.raises(ApiError):
            await engine.complete(RawJob(prompt=()))

    async def left(engine: Any) -> None:
        request = asyncio.create_task(engine.complete(RawJob(prompt=("hi",))))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait({request})
        assert request.cancelled()

    with scripted(SCRIPT, *FLAGS) as server:
        server.runner.run(refused(server.engine))
        assert server.engine.rejected == 1
        server.runner.run(left(server.engine))
        assert (server.engine.rejected, server.engine.capacity.held) == (1, 0)
