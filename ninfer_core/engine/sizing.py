"""How many lanes, pages and recorded rounds an engine has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog
import torch

from ninfer_core.api import CopySource, OptionValues, Refusal
from ninfer_core.api.nn import Model, Runtime
from ninfer_core.engine.engine import EngineLimits
from ninfer_core.engine.graphs import Shape, computed_allowance, shapes
from ninfer_core.kv.memory import free_bytes
from ninfer_core.kv.pages import PAGE_TOKENS, pages_for

log = structlog.get_logger()


def plan_limits(values: OptionValues, max_context: int, guidance: tuple[int, ...]) -> EngineLimits:
    needed = pages_for(max_context)
    asked = values["kv_capacity"]
    lanes = values["max_concurrency"]
    if asked == "auto":
        pages = max(needed, lanes)  # the least that works; memory decides what is added
    elif "kv_headroom_mib" in values.given:
        raise Refusal("--kv-headroom-mib has no effect without --kv-capacity auto")
    else:
        pages = pages_for(asked) if asked is not None else needed
    if pages < needed:
        raise Refusal(
            f"--kv-capacity {asked} is below --max-context {max_context}; one request could not fill its context"
        )
    if pages < lanes:
        raise Refusal(
            f"--kv-capacity {pages * PAGE_TOKENS} is {pages} pages for {lanes} lanes; each needs at least one page of "
            f"{PAGE_TOKENS} tokens"
        )
    return EngineLimits(
        max_context=max_context,
        max_concurrency=lanes,
        max_pending=values["max_pending_requests"],
        pending_timeout_seconds=values["pending_timeout_ms"] / 1e3,
        pool_pages=min(pages, lanes * needed),
        default_max_tokens=values["default_max_tokens"],
        default_thinking_budget=values["default_thinking_budget"],
        guidance=guidance,
        lease_growth=values["kv_lease_growth"],
    )


def rounds_to_record(
    model: Model,
    runtime: Runtime,
    limits: EngineLimits,
    sources: Sequence[CopySource],
    values: OptionValues,
    asked: Sequence[Shape] | None,
) -> list[Shape]:
    """The rounds to record: none off a GPU, or for a model whose steps need the host."""
    if runtime.device.type != "cuda" or runtime.reference or values["no_cuda_graph"]:
        return []
    if not getattr(model, "records_steps", False):
        return []
    if asked is not None:
        return list(asked)
    return shapes(limits.max_concurrency, max((source.max_drafts for source in sources), default=0))


def graph_allowance(count: int, values: OptionValues) -> int:
    """Bytes set aside for the graphs where memory decides the pool's size."""
    mib = values["cuda_graph_allowance_mib"]
    if not count:
        if "cuda_graph_allowance_mib" in values.given:
            log.info("option_without_effect", option="--cuda-graph-allowance-mib", detail="no round is recorded here")
        return 0
    return computed_allowance(count) if mib is None else int(mib) << 20


def fill_memory(limits: EngineLimits, page: int, headroom: int, reserved: int, device: torch.device) -> EngineLimits:
    """``--kv-capacity auto``: as many pages as memory holds, up to what every lane can use.

    ``page``: its bytes; ``reserved``: bytes that what comes later will take; ``headroom``: bytes that stay free.
    """
    most = limits.max_concurrency * pages_for(limits.max_context)
    free = free_bytes(device) - headroom - reserved
    if free < limits.pool_pages * page:
        beside = f" and {reserved >> 20} MiB for recorded rounds and passing values" if reserved else ""
        raise Refusal(
            f"--kv-capacity auto: {max(free, 0) >> 20} MiB are left beside {headroom >> 20} MiB of headroom{beside}, "
            f"and the least that works is {limits.pool_pages * page >> 20} MiB; lower --max-context or "
            "--kv-headroom-mib"
        )
    return replace(limits, pool_pages=min(most, free // page))
