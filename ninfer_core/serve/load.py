"""``GET /v1/load``: capacity, current load and counters, for load balancers that poll."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ninfer_core.kv.pages import PAGE_TOKENS

if TYPE_CHECKING:
    from .figures import Figures


def load_report(figures: Figures) -> dict[str, Any]:
    """The wire object. There is no host tier: its slots and bytes are zero, as capacity and in use."""
    return {
        "object": "ninfer.load",
        "model": figures.model,
        "uptime_seconds": figures.uptime_seconds,
        "capacity": _capacity(figures),
        "requests": _requests(figures),
        "occupancy": _occupancy(figures),
        "counters": _counters(figures),
    }


def _capacity(figures: Figures) -> dict[str, int]:
    limits = figures.limits
    return {
        "max_concurrency": limits.max_concurrency,
        "max_pending_requests": limits.max_pending,
        "max_admitted_requests": figures.max_admitted,
        "max_context": limits.max_context,
        "kv_capacity_tokens": limits.pool_pages * PAGE_TOKENS,
        "kv_capacity_pages": limits.pool_pages,
        "kv_page_tokens": PAGE_TOKENS,
        "device_state_slots": figures.state_slots,
        "host_state_slots": 0,
        "host_kv_bytes": 0,
    }


def _requests(figures: Figures) -> dict[str, int]:
    gauges = figures.snapshot.gauges
    return {
        "admitted": figures.admitted,
        "running": gauges.running,
        "prefilling": gauges.prefilling,
        "decode_ready": gauges.decode_ready,
        "waiting": gauges.waiting,
        "materializing": 0,  # admission never waits for a transfer
    }


def _occupancy(figures: Figures) -> dict[str, int]:
    gauges = figures.snapshot.gauges
    return {
        "device_main_kv_pages": gauges.kv_pages,
        "device_main_kv_tokens": gauges.kv_pages * PAGE_TOKENS,
        "device_state_slots": gauges.state_slots,
        "host_state_slots": 0,
        "host_kv_bytes": 0,
    }


def _counters(figures: Figures) -> dict[str, int]:
    counters = figures.snapshot.counters
    return {
        "computed_prefill_tokens": counters.computed_prefill_tokens,
        "committed_decode_tokens": counters.committed_decode_tokens,
        "reused_prompt_tokens": counters.reused_prompt_tokens,
        "decode_rounds": counters.decode_rounds,
        "decode_row_rounds": counters.decode_row_rounds,
    }
