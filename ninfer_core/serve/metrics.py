"""``GET /metrics``: the same figures in Prometheus' text format, under llama.cpp's names and our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ninfer_core.kv.pages import PAGE_TOKENS

from .figures import ratio

if TYPE_CHECKING:
    from ninfer_core.engine.stats import Counters, Gauges

    from .figures import Figures

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric. With a ``label``, ``read`` gives a value per value of it."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str  # one line, no backslash
    read: Callable[[Figures], float | Mapping[str, float]]
    label: str = ""

    def samples(self, figures: Figures) -> Iterator[str]:
        value = self.read(figures)
        if isinstance(value, Mapping):
            for label, one in value.items():
                yield f'{self.name}{{{self.label}="{label}"}} {number(one)}'
        else:
            yield f"{self.name} {number(value)}"


def exposition(figures: Figures) -> bytes:
    """Every series with its HELP and TYPE."""
    lines: list[str] = []
    for series in SERIES:
        lines += [f"# HELP {series.name} {series.help}", f"# TYPE {series.name} {series.kind}"]
        lines += series.samples(figures)
    return ("\n".join(lines) + "\n").encode()


def number(value: float) -> str:
    """17 significant digits, enough for any double; what is not finite is 0."""
    return f"{value:.17g}" if math.isfinite(value) else "0"


def counted(name: str, help: str, read: Callable[[Counters], float]) -> Series:
    """A counter of the engine."""
    return Series(name=name, kind="counter", help=help, read=lambda figures: read(figures.snapshot.counters))


def gauged(name: str, help: str, read: Callable[[Gauges], float]) -> Series:
    """A gauge of the boundary."""
    return Series(name=name, kind="gauge", help=help, read=lambda figures: read(figures.snapshot.gauges))


def averaged(name: str, help: str, read: Callable[[Counters], float]) -> Series:
    """A gauge that is a ratio of two counters."""
    return Series(name=name, kind="gauge", help=help, read=lambda figures: read(figures.snapshot.counters))


LLAMACPP = (
    counted(
        "llamacpp:prompt_tokens_total",
        "prompt tokens computed by prefill; prefix-cache hits excluded",
        lambda c: c.computed_prefill_tokens,
    ),
    counted("llamacpp:prompt_seconds_total", "prefill execution time", lambda c: c.prefill_seconds),
    counted(
        "llamacpp:tokens_predicted_total", "tokens committed by decode rounds", lambda c: c.committed_decode_tokens
    ),
    counted("llamacpp:tokens_predicted_seconds_total", "decode execution time", lambda c: c.decode_seconds),
    averaged(
        "llamacpp:prompt_tokens_seconds",
        "prompt tokens over prefill seconds",
        lambda c: ratio(c.computed_prefill_tokens, c.prefill_seconds),
    ),
    averaged(
        "llamacpp:predicted_tokens_seconds",
        "decoded tokens over decode seconds",
        lambda c: ratio(c.committed_decode_tokens, c.decode_seconds),
    ),
    counted("llamacpp:n_decode_total", "decode rounds executed", lambda c: c.decode_rounds),
    averaged(
        "llamacpp:n_busy_slots_per_decode",
        "average requests per decode round",
        lambda c: ratio(c.decode_row_rounds, c.decode_rounds),
    ),
    Series(
        name="llamacpp:kv_cache_usage_ratio",
        kind="gauge",
        help="occupied share of the device KV cache",
        read=lambda figures: ratio(figures.snapshot.gauges.kv_pages, figures.limits.pool_pages),
    ),
    gauged("llamacpp:kv_cache_tokens", "tokens held in the device KV cache", lambda g: g.kv_pages * PAGE_TOKENS),
    gauged("llamacpp:requests_processing", "requests holding an execution lane", lambda g: g.running),
    gauged("llamacpp:requests_deferred", "requests waiting for admission", lambda g: g.waiting),
)

REQUESTS = (
    counted("ninfer:requests_total", "requests completed with an outcome", lambda c: c.requests),
    counted("ninfer:requests_failed_total", "accepted requests that ended in an error", lambda c: c.requests_failed),
    Series(
        name="ninfer:requests_rejected_total",
        kind="counter",
        help="generation requests rejected during preparation",
        read=lambda figures: figures.rejected,
    ),
    Series(
        name="ninfer:requests_admitted",
        kind="gauge",
        help="requests holding server ingress capacity, in any phase",
        read=lambda figures: figures.admitted,
    ),
    counted(
        "ninfer:prefix_cache_hit_tokens_total",
        "prompt tokens of completed requests served from a cached prefix",
        lambda c: c.prefix_cache_hit_tokens,
    ),
    counted(
        "ninfer:reused_prompt_tokens_total",
        "prompt tokens restored from the context cache instead of prefilled",
        lambda c: c.reused_prompt_tokens,
    ),
    counted(
        "ninfer:draft_tokens_total",
        "speculative draft tokens proposed for completed requests",
        lambda c: c.draft_tokens,
    ),
    counted(
        "ninfer:draft_accepted_tokens_total",
        "speculative draft tokens accepted for completed requests",
        lambda c: c.draft_accepted_tokens,
    ),
    counted(
        "ninfer:engine_recoveries_total",
        "host-side worker failures the engine survived instead of latching unavailable",
        lambda c: c.engine_recoveries,
    ),
    Series(
        name="ninfer:uptime_seconds",
        kind="gauge",
        help="seconds since the engine became ready",
        read=lambda figures: figures.uptime_seconds,
    ),
)

ABANDONED = (
    counted(
        "ninfer:waiting_cancelled_requests_total",
        "requests the client cancelled while they waited for admission",
        lambda c: c.waiting_cancelled,
    ),
    counted(
        "ninfer:waiting_expired_requests_total",
        "requests that reached --pending-timeout-ms before admission",
        lambda c: c.waiting_expired,
    ),
    counted(
        "ninfer:waiting_abandoned_seconds_total",
        "time those cancelled and expired requests had waited",
        lambda c: c.waiting_abandoned_seconds,
    ),
    counted(
        "ninfer:cancelled_prefills_total",
        "requests cancelled while their prompt prefilled",
        lambda c: c.cancelled_prefills,
    ),
    counted(
        "ninfer:cancelled_prefill_computed_tokens_total",
        "prompt tokens those requests had computed",
        lambda c: c.cancelled_prefill_computed_tokens,
    ),
)

CONTEXT = (
    Series(
        name="ninfer:context_selections_total",
        kind="counter",
        help="admissions by the context-cache source they started from",
        label="source",
        read=lambda figures: {
            "root": figures.snapshot.counters.selected_root,
            "shared_stable_prefix": figures.snapshot.counters.selected_shared_prefix,
        },
    ),
    Series(
        name="ninfer:context_occupancy",
        kind="gauge",
        help="context-cache capacity in use",
        label="pool",
        read=lambda figures: {
            "device_state_slots": figures.snapshot.gauges.state_slots,
            "device_main_kv_pages": figures.snapshot.gauges.kv_pages,
        },
    ),
)

SERIES: tuple[Series, ...] = (*LLAMACPP, *REQUESTS, *ABANDONED, *CONTEXT)
