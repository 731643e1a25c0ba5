"""What /v1/load, /stats and /metrics say of given figures: every member, from one snapshot."""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ninfer_core.api import OptionValues
from ninfer_core.engine.engine import EngineLimits
from ninfer_core.engine.stats import CLASSES, EMPTY, PHASES, Counters, Gauges, HostWork, Snapshot, Waiting
from ninfer_core.serve import figures as figures_module
from ninfer_core.serve.metrics import SERIES, number
from ninfer_core.serve.run import compose_stats
from ninfer_core.serve.state import ServerState

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"max_request_mib": 1, "host": "127.0.0.1", "api_key": None, "cors": False, "allowed_host": ()}
PATHS = ("/v1/load", "/stats", "/metrics")
LIMITS = EngineLimits(
    max_context=65536,
    max_concurrency=4,
    max_pending=32,
    pending_timeout_seconds=1.0,
    pool_pages=2048,
    default_max_tokens=None,
    default_thinking_budget=None,
    guidance=(),
    lease_growth=False,
)


def snapshot(first: int = 100, *, depth: int = 3) -> Snapshot:
    """Every counter is another number from ``first`` on, so that no two can be mixed up."""
    counters = Counters(**{name: first + at for at, name in enumerate(Counters.__struct_fields__)})
    work = {f"{kind}_{part}": first + at / 8 for at, kind in enumerate(CLASSES) for part in ("host", "device_wait")}
    return Snapshot(
        counters=counters,
        gauges=Gauges(
            running=4,
            prefilling=1,
            decode_ready=3,
            waiting=depth,
            kv_pages=1500,
            kv_lease_pages=70,
            state_slots=5,
            last_selected_frontier=128,
        ),
        host=HostWork(phases={name: float(at + 1) for at, name in enumerate(PHASES)}, device_wait=9.5, work_class=work),
        queue=tuple(Waiting(request_id=50 + at, position=at, wait_seconds=2.0 - at) for at in range(depth)),
        at=1000.0,
    )


class Worker:
    """Publishes another snapshot at each look, and counts the looks."""

    program = SimpleNamespace(states=SimpleNamespace(slots=8))

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots, self.looks = snapshots, 0

    @property
    def snapshot(self) -> Snapshot:
        self.looks += 1
        return self._snapshots[min(self.looks, len(self._snapshots)) - 1]


def engine(*snapshots: Snapshot) -> Any:
    return SimpleNamespace(
        info=SimpleNamespace(id="qwen"),
        uptime_seconds=812.5,
        limits=LIMITS,
        worker=Worker(*snapshots),
        capacity=SimpleNamespace(bound=36, held=6, peak=11),
        rejected=13,
    )


def ask(path: str, engine: Any, method: str = "GET", **options: Any) -> httpx.Response:
    values = OptionValues({**OPTIONS, **options}, frozenset())
    door = compose_stats(values, ServerState(phase="ready", engine=engine), "v")

    async def exchange() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://127.0.0.1") as client:
            return await client.request(method, path)

    return asyncio.run(exchange())


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a second after the boundary."""
    monkeypatch.setattr(figures_module, "time", SimpleNamespace(monotonic=lambda: 1000.25))


LOAD = {
    "object": "ninfer.load",
    "model": "qwen",
    "uptime_seconds": 812.5,
    "capacity": {
        "max_concurrency": 4,
        "max_pending_requests": 32,
        "max_admitted_requests": 36,
        "max_context": 65536,
        "kv_capacity_tokens": 131072,
        "kv_capacity_pages": 2048,
        "kv_page_tokens": 64,
        "device_state_slots": 8,
        "host_state_slots": 0,
        "host_kv_bytes": 0,
    },
    "requests": {"admitted": 6, "running": 4, "prefilling": 1, "decode_ready": 3, "waiting": 3, "materializing": 0},
    "occupancy": {
        "device_main_kv_pages": 1500,
        "device_main_kv_tokens": 96000,
        "device_state_slots": 5,
        "host_state_slots": 0,
        "host_kv_bytes": 0,
    },
    "counters": {
        "computed_prefill_tokens": 100,
        "committed_decode_tokens": 102,
        "reused_prompt_tokens": 108,
        "decode_rounds": 104,
        "decode_row_rounds": 105,
    },
}


@pytest.mark.contract("load.shape")
def test_the_load_report_has_the_members_of_the_contract_in_order():
    body = ask("/v1/load", engine(snapshot())).json()
    assert body == LOAD
    assert list(body) == list(LOAD)
    assert [list(body[name]) for name in ("capacity", "requests")] == [
        list(LOAD[name]) for name in ("capacity", "requests")
    ]


@pytest.mark.parametrize("path", ["/v1/load", "/v1/v1/load"])
def test_the_load_report_answers_under_a_doubled_prefix_and_to_head(path):
    assert ask(path, engine(snapshot())).json() == LOAD
    head = ask(path, engine(snapshot()), "HEAD")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.contract("stats.shape")
def test_stats_are_the_load_report_with_the_peak_and_all_counters(noon):
    body = ask("/stats", engine(snapshot())).json()
    expected = {**LOAD, "object": "ninfer.stats", "requests": {**LOAD["requests"], "peak_admitted": 11}}
    assert {name: body[name] for name in expected} == expected
    rest = {name: value for name, value in body.items() if name not in expected and name != "context_cache"}
    assert rest == {
        "tokens": {"computed_prefill": 100, "committed_decode": 102},
        "throughput_tokens_per_second": {"prefill": 100 / 812.5, "decode": 102 / 812.5},
        "scheduler": {
            "running": 4,
            "prefilling": 1,
            "decode_ready": 3,
            "waiting": 3,
            "materializing": 0,
            "capture_pending": 0,
            "terminal_pending": 0,
        },
        "decode_batch": {"rounds": 104, "row_rounds": 105, "average_size": 105 / 104},
        "host_work": {
            "elapsed_seconds": {
                "engine_boundary": 1.0,
                "program_submit": 2.0,
                "program_post": 3.0,
                "engine_commit_output": 4.0,
                "engine_maintenance": 5.0,
                "total": 15.0,
            },
            "device_wait_seconds": 9.5,
            "work_class_seconds": {
                "decode_host": 100.0,
                "decode_device_wait": 100.0,
                "prefill_host": 100.125,
                "prefill_device_wait": 100.125,
                "control_host": 100.25,
                "control_device_wait": 100.25,
            },
            "units": {"prefill": 106, "control": 107},
            "decode_host_microseconds_per_round": 1e8 / 104,
            "decode_host_microseconds_per_row_round": 1e8 / 105,
            "decode_device_wait_microseconds_per_round": 1e8 / 104,
        },
        "engine_recoveries": 120,
        "queue": {
            "depth": 3,
            "entries": [
                {"request_id": 50, "position": 0, "wait_seconds": 2.25},
                {"request_id": 51, "position": 1, "wait_seconds": 1.25},
                {"request_id": 52, "position": 2, "wait_seconds": 0.25},
            ],
        },
    }


def test_the_context_cache_of_stats_says_what_is_true_without_one():
    """Nothing is kept for another request; what judgements share is."""
    cache = ask("/stats", engine(snapshot())).json()["context_cache"]
    assert cache.pop("selections") == {
        "root": 109,
        "private_endpoint": 0,
        "private_turn_closure": 0,
        "private_response_replay": 0,
        "private_long_anchor": 0,
        "shared_stable_prefix": 121,
        "reused_prompt_tokens": 108,
    }
    occupancy = cache.pop("occupancy")
    used = {name: value for name, value in occupancy.items() if value}
    assert used == {"device_state_slots": 5, "device_main_kv_pages": 1500, "device_main_kv_lease_pages": 70}
    assert len(occupancy) == 8
    assert list(cache) == [
        "captures",
        "salvage",
        "last_selection",
        "state_operations",
        "state_transfers",
        "main_kv_transfers",
        "backend_kv_transfers",
        "pressure",
        "actual_transfer_seconds",
    ]
    assert cache["captures"] == {"completed": 122, "aborted": 0, "skipped": 123}
    assert cache["state_operations"] == {"moves": 0, "forks": 124, "restores": 0}
    assert cache["last_selection"] == {"frontier_tokens": 128}
    assert cache["state_transfers"]["d2h"] == {"count": 0, "bytes": 0, "seconds": 0}
    assert cache["main_kv_transfers"]["h2d"] == {"pages": 0, "bytes": 0, "seconds": 0}
    assert len(cache["pressure"]) == 12


@pytest.mark.contract("metrics.ratios")
def test_ratios_without_a_denominator_are_null_in_stats_and_zero_in_metrics():
    idle = engine(EMPTY)
    idle.uptime_seconds = 0.0
    body = ask("/stats", idle).json()
    assert body["decode_batch"]["average_size"] is None
    assert {name: value for name, value in body["host_work"].items() if "microseconds" in name} == {
        "decode_host_microseconds_per_round": None,
        "decode_host_microseconds_per_row_round": None,
        "decode_device_wait_microseconds_per_round": None,
    }
    assert body["throughput_tokens_per_second"] == {"prefill": 0, "decode": 0}
    assert body["queue"] == {"depth": 0, "entries": []}
    samples = parse(ask("/metrics", idle).text)
    assert samples["llamacpp:prompt_tokens_seconds"] == samples["llamacpp:n_busy_slots_per_decode"] == 0


NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(\{{[a-zA-Z_]\w*="[^"\\\n]*"(?:,[a-zA-Z_]\w*="[^"\\\n]*")*\}})? (\S+)')


def parse(text: str) -> dict[str, float]:
    """The strict text format 0.0.4: each metric once, HELP, TYPE, then its samples; every line ends."""
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    samples: dict[str, float] = {}
    kinds: dict[str, str] = {}
    at = 0
    while at < len(lines):
        help = re.fullmatch(rf"# HELP ({NAME}) ([^\\\n]+)", lines[at])
        assert help, lines[at]
        name = help[1]
        kind = re.fullmatch(rf"# TYPE {re.escape(name)} (counter|gauge)", lines[at + 1])
        assert kind, lines[at + 1]
        assert name not in kinds, f"{name} stands twice"
        kinds[name] = kind[1]
        at += 2
        begun = at
        while at < len(lines) and not lines[at].startswith("#"):
            sample = SAMPLE.fullmatch(lines[at])
            assert sample, lines[at]
            key = sample[1] + (sample[2] or "")
            assert (sample[1], key in samples) == (name, False), lines[at]
            samples[key] = float(sample[3])
            assert math.isfinite(samples[key])
            assert sample[3] == f"{samples[key]:.17g}"
            at += 1
        assert at > begun, f"{name} has no sample"
    assert {name for name, kind in kinds.items() if kind == "counter"} == {n for n in kinds if n.endswith("_total")}
    return samples


@pytest.mark.contract("ready.counted", "metrics.text", "metrics.names")
def test_metrics_are_strict_prometheus_text_with_every_value_in_its_place():
    response = ask("/metrics", engine(snapshot()))
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert parse(response.text) == {
        "llamacpp:prompt_tokens_total": 100,
        "llamacpp:prompt_seconds_total": 101,
        "llamacpp:tokens_predicted_total": 102,
        "llamacpp:tokens_predicted_seconds_total": 103,
        "llamacpp:prompt_tokens_seconds": 100 / 101,
        "llamacpp:predicted_tokens_seconds": 102 / 103,
        "llamacpp:n_decode_total": 104,
        "llamacpp:n_busy_slots_per_decode": 105 / 104,
        "llamacpp:kv_cache_usage_ratio": 1500 / 2048,
        "llamacpp:kv_cache_tokens": 96000,
        "llamacpp:requests_processing": 4,
        "llamacpp:requests_deferred": 3,
        "ninfer:requests_total": 110,
        "ninfer:requests_failed_total": 111,
        "ninfer:requests_rejected_total": 13,
        "ninfer:requests_admitted": 6,
        "ninfer:prefix_cache_hit_tokens_total": 114,
        "ninfer:reused_prompt_tokens_total": 108,
        "ninfer:draft_tokens_total": 112,
        "ninfer:draft_accepted_tokens_total": 113,
        "ninfer:engine_recoveries_total": 120,
        "ninfer:uptime_seconds": 812.5,
        "ninfer:waiting_cancelled_requests_total": 115,
        "ninfer:waiting_expired_requests_total": 116,
        "ninfer:waiting_abandoned_seconds_total": 117,
        "ninfer:cancelled_prefills_total": 118,
        "ninfer:cancelled_prefill_computed_tokens_total": 119,
        'ninfer:context_selections_total{source="root"}': 109,
        'ninfer:context_selections_total{source="shared_stable_prefix"}': 121,
        'ninfer:context_occupancy{pool="device_state_slots"}': 5,
        'ninfer:context_occupancy{pool="device_main_kv_pages"}': 1500,
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (48200113, "48200113"),
        (0.1, "0.10000000000000001"),
        (0, "0"),
        (1e300, "1.0000000000000001e+300"),
        (math.nan, "0"),
        (math.inf, "0"),
        (-math.inf, "0"),
    ],
)
def test_a_metric_value_has_seventeen_digits_and_is_finite(value, text):
    assert number(value) == text


@pytest.mark.contract("load.gauges")
@pytest.mark.parametrize("path", PATHS)
def test_an_answer_is_made_from_one_snapshot(path):
    """A second look would find the engine one boundary further, and mix two of them."""
    torn = engine(snapshot(100), snapshot(900, depth=1), snapshot(5000, depth=0))
    whole = engine(snapshot(100))
    assert without_clock(ask(path, torn).text) == without_clock(ask(path, whole).text)
    assert torn.worker.looks == 1


def without_clock(text: str) -> str:
    return re.sub(r'"wait_seconds":[^}]+', "", text)


@pytest.mark.contract("load.key")
@pytest.mark.parametrize(("path", "status"), [("/health", 200), *((path, 401) for path in PATHS)])
def test_the_figures_need_the_key_on_the_stats_port_too(path, status):
    assert ask(path, engine(snapshot()), api_key="secret").status_code == status


@pytest.mark.contract("load.loading")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_while_the_model_loads_there_are_no_figures(serve, path, method):
    response = serve(loading=True).get(method, path)
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


@pytest.mark.contract("metrics.text")
def test_the_page_on_figures_lists_every_series_and_no_other():
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z]+:\w+?)(?:\{\w+\})?` \| (counter|gauge) \|", page, re.MULTILINE)
    assert listed == [(series.name, series.kind) for series in SERIES]
