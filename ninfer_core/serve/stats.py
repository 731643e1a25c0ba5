"""``GET /stats``: the load report with the ingress peak and every counter since the engine became ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .figures import ratio
from .load import load_report

if TYPE_CHECKING:
    from ninfer_core.engine.stats import Counters, HostWork

    from .figures import Figures

DIRECTIONS = ("d2h", "h2d", "d2d")


def stats_report(figures: Figures) -> dict[str, Any]:
    """The wire object; the counters have the shape of a throughput record over the whole uptime."""
    load = load_report(figures)
    counters, gauges = figures.snapshot.counters, figures.snapshot.gauges
    return {
        **load,
        "object": "ninfer.stats",
        "requests": {**load["requests"], "peak_admitted": figures.peak_admitted},
        "tokens": {
            "computed_prefill": counters.computed_prefill_tokens,
            "committed_decode": counters.committed_decode_tokens,
        },
        "throughput_tokens_per_second": {
            "prefill": ratio(counters.computed_prefill_tokens, figures.uptime_seconds),
            "decode": ratio(counters.committed_decode_tokens, figures.uptime_seconds),
        },
        "scheduler": {
            "running": gauges.running,
            "prefilling": gauges.prefilling,
            "decode_ready": gauges.decode_ready,
            "waiting": gauges.waiting,
            "materializing": 0,
            "capture_pending": 0,
            "terminal_pending": 0,
        },
        "decode_batch": {
            "rounds": counters.decode_rounds,
            "row_rounds": counters.decode_row_rounds,
            "average_size": _per(counters.decode_row_rounds, counters.decode_rounds),
        },
        "host_work": _host_work(counters, figures.snapshot.host),
        "context_cache": _context_cache(figures),
        "engine_recoveries": counters.engine_recoveries,
        "queue": _queue(figures),
    }


def _per(amount: float, count: int) -> float | None:
    return amount / count if count else None


def _host_work(counters: Counters, host: HostWork) -> dict[str, Any]:
    decode_host = host.work_class["decode_host"] * 1e6
    decode_wait = host.work_class["decode_device_wait"] * 1e6
    return {
        "elapsed_seconds": {**host.phases, "total": host.total},
        "device_wait_seconds": host.device_wait,
        "work_class_seconds": host.work_class,
        "units": {"prefill": counters.prefill_units, "control": counters.control_units},
        "decode_host_microseconds_per_round": _per(decode_host, counters.decode_rounds),
        "decode_host_microseconds_per_row_round": _per(decode_host, counters.decode_row_rounds),
        "decode_device_wait_microseconds_per_round": _per(decode_wait, counters.decode_rounds),
    }


def _context_cache(figures: Figures) -> dict[str, Any]:
    """Nothing leaves the device, and only what the judgements of one request begin with is held, until the last of
    them: an admission starts there or from the root, and what counts transfers and pressure is zero."""
    counters, gauges = figures.snapshot.counters, figures.snapshot.gauges
    return {
        "captures": {
            "completed": counters.captures_completed,
            "aborted": 0,
            "skipped": counters.captures_skipped,
        },
        "salvage": _zeros("published"),
        "selections": {
            "root": counters.selected_root,
            **_zeros(
                "private_endpoint",
                "private_turn_closure",
                "private_response_replay",
                "private_long_anchor",
            ),
            "shared_stable_prefix": counters.selected_shared_prefix,
            "reused_prompt_tokens": counters.reused_prompt_tokens,
        },
        "last_selection": {"frontier_tokens": gauges.last_selected_frontier},
        "state_operations": {"moves": 0, "forks": counters.state_forks, "restores": 0},
        "state_transfers": _no_transfers("count"),
        "main_kv_transfers": _no_transfers("pages"),
        "backend_kv_transfers": _no_transfers("pages"),
        "pressure": _zeros(
            "spill_pages",
            "partial_tail_cow_pages",
            "private_owners_degraded",
            "private_owners_demoted",
            "private_owners_evicted",
            "shared_owners_degraded",
            "shared_owners_evicted",
            "checkpoints_dropped",
            "searches",
            "search_budget_exhaustions",
            "maximal_fallback_selections",
            "historical_fork_hits",
        ),
        "occupancy": {
            "device_state_slots": gauges.state_slots,
            "host_state_slots": 0,
            "device_main_kv_pages": gauges.kv_pages,
            "device_main_kv_lease_pages": gauges.kv_lease_pages,
            **_zeros("device_backend_kv_pages", "device_backend_kv_lease_pages", "host_kv_bytes"),
            "shared_active_references": 0,
        },
        "actual_transfer_seconds": 0.0,
    }


def _zeros(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 0)


def _no_transfers(unit: str) -> dict[str, dict[str, int | float]]:
    return {direction: {unit: 0, "bytes": 0, "seconds": 0.0} for direction in DIRECTIONS}


def _queue(figures: Figures) -> dict[str, Any]:
    """Waiting times go on since the boundary, so they are fresh however long the engine's current unit takes."""
    return {
        "depth": figures.snapshot.gauges.waiting,
        "entries": [
            {
                "request_id": one.request_id,
                "position": one.position,
                "wait_seconds": one.wait_seconds + figures.age_seconds,
            }
            for one in figures.snapshot.queue
        ],
    }
