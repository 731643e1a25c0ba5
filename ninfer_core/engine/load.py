"""From a model path and options to an engine ready to start."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
import torch

from ninfer_core.api import (
    Checkpoint,
    CopySource,
    ModelFamily,
    ModelInfo,
    OptionValues,
    PromptFormat,
    Refusal,
    SamplingRequest,
    StartupError,
)
from ninfer_core.engine.choices import all_sources, choose_kv_dtype, choose_runtime, copy_sources
from ninfer_core.engine.device_start import DeviceStart
from ninfer_core.engine.engine import EngineLimits, LocalEngine
from ninfer_core.engine.graphs import Shape
from ninfer_core.engine.lanes import LaneTable
from ninfer_core.engine.program import Program
from ninfer_core.engine.progress import Progress
from ninfer_core.engine.request import Request
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.sizing import plan_limits
from ninfer_core.engine.thinking import close_guidance
from ninfer_core.engine.worker import Worker
from ninfer_core.kv.pages import PagePool
from ninfer_core.plugins import Plugins
from ninfer_core.sampling.params import resolve
from ninfer_core.text.output import OutputSession
from ninfer_core.text.prompt import PromptBuilder
from ninfer_core.weights.checkpoint import checkpoint_facts, open_checkpoint

log = structlog.get_logger()
LEASE_WINDOW = 4096  # output tokens


def load_engine(model: str, values: OptionValues, plugins: Plugins, progress: Progress) -> LocalEngine:
    """Open, build and warm up; blocking. Raises StartupError (one line) for everything an operator can mend."""
    progress.stage("opening the model")
    family, checkpoint = open_checkpoint(model, plugins)
    return build_engine(family, checkpoint, values, plugins, progress)


def build_engine(
    family: ModelFamily,
    checkpoint: Checkpoint,
    values: OptionValues,
    plugins: Plugins,
    progress: Progress,
    *,
    rounds: Sequence[Shape] | None = None,
) -> LocalEngine:
    """The engine of a checkpoint that is open; the checkpoint is closed with it, or when this fails.

    ``rounds``: the decode rounds to record where rounds are recorded; None: all that its requests may come to need.
    """
    if values["threads"] is not None:
        torch.set_num_threads(values["threads"])
    try:
        return _compose(family, checkpoint, values, plugins, progress, rounds)
    except BaseException:
        checkpoint.close()
        raise


def _compose(
    family: ModelFamily,
    checkpoint: Checkpoint,
    values: OptionValues,
    plugins: Plugins,
    progress: Progress,
    rounds: Sequence[Shape] | None,
) -> LocalEngine:
    runtime = choose_runtime(family, checkpoint, values, plugins)
    dtype = choose_kv_dtype(values, plugins)
    with plugins.blaming(plugins.model_families, family.name, "read the prompt format of the family"):
        format = family.prompt(checkpoint)
    guidance = close_guidance(format, values["thinking_budget_message"])
    limits = plan_limits(values, runtime.max_context, guidance)
    sources = copy_sources(family, format, limits, values, plugins)
    start = DeviceStart(family, checkpoint, runtime, dtype, values, plugins, progress)
    built = start.load_weights()
    drafters = all_sources(sources, built)
    program, limits = start.program(built, limits, drafters, rounds, format.tokenizer.size)
    prompts = _prompts(format, values, limits.max_context)
    info = _info(family, checkpoint, format, limits, values, speculative=bool(drafters))
    engine = LocalEngine(
        info=replace(info, shows_tools=prompts.shows_tools),
        format=format,
        prompts=prompts,
        worker=_worker(program, limits, format, drafters, values),
        limits=limits,
        options=values,
        close=checkpoint.close,
    )
    progress.stage("warm-up")
    with plugins.blaming(plugins.model_families, family.name, "run the family"), start.room("the first request"):
        engine.warm_up()
    engine.memory, engine.load_facts = start.ledger(program, limits), start.load_facts
    log.info(
        "engine_ready",
        model=engine.info.id,
        architecture=checkpoint.architecture,
        device=str(runtime.device),
        kv_dtype=dtype.name,
        kv_pages=limits.pool_pages,
        max_context=limits.max_context,
        max_concurrency=limits.max_concurrency,
        speculation=values["spec"] or "off",
    )
    return engine


def _worker(
    program: Program, limits: EngineLimits, format: PromptFormat, sources: Sequence[CopySource], values: OptionValues
) -> Worker:
    def open_session(request: Request) -> OutputSession:
        return OutputSession(
            format.tokenizer,
            stop_ids=request.stop_ids,
            stops=request.stops,
            reasoning=request.reasoning,
            in_reasoning=request.in_reasoning,
            limit=request.limit,
            limit_finish=request.limit_finish,
            raw=request.raw,
            tools=request.tools,
        )

    lanes = LaneTable(
        count=limits.max_concurrency,
        pool=PagePool(limits.pool_pages),
        states=program.states,
        sources=sources,
        open_session=open_session,
        window=max(LEASE_WINDOW, values["prefill_chunk"]) if limits.lease_growth else None,
    )
    scheduler = Scheduler(
        chunk=values["prefill_chunk"],
        rounds=values["decode_rounds_per_prefill"],
        concurrent=values["concurrent_prefill"],
    )
    return Worker(
        program=program,
        lanes=lanes,
        scheduler=scheduler,
        recovers_invariants=values["recover_invariant_failures"],
    )


def _prompts(format: PromptFormat, values: OptionValues, max_context: int) -> PromptBuilder:
    effort = values["default_reasoning_effort"]
    if values["no_thinking"] and effort not in (None, "none"):
        raise Refusal(f"--default-reasoning-effort {effort} contradicts --no-thinking; leave one of them out")
    override = None
    if values["chat_template"] is not None:
        try:
            override = Path(values["chat_template"]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise StartupError(f"--chat-template {values['chat_template']}: cannot be read ({reason})") from None
    return PromptBuilder(
        format,
        default_thinking=False if values["no_thinking"] or effort == "none" else None,
        default_effort=None if effort == "none" else effort,
        default_preserve_thinking=True if values["preserve_thinking"] else None,
        template_override=override,
        max_context=max_context,
    )


def _info(
    family: ModelFamily,
    checkpoint: Checkpoint,
    format: PromptFormat,
    limits: EngineLimits,
    values: OptionValues,
    *,
    speculative: bool,
) -> ModelInfo:
    facts = checkpoint_facts(checkpoint)
    thinks = format.thinks_by_default and not (
        values["no_thinking"] or values.get("default_reasoning_effort") == "none"
    )
    preset = format.thinking_preset if thinks and format.thinking_preset is not None else format.preset
    sampling = resolve(SamplingRequest(), preset, values).describe()
    return ModelInfo(
        id=values.get("model_id") or checkpoint.name or checkpoint.architecture,
        path=os.fspath(checkpoint.path),
        created=int(time.time()),
        architecture=checkpoint.architecture,
        max_context=limits.max_context,
        trained_context=family.context_length(checkpoint.config),
        vocab_tokens=format.tokenizer.size,
        hidden_size=family.hidden_size(checkpoint.config),
        parameters=facts.parameters,
        weight_bytes=facts.weight_bytes,
        weight_formats=tuple(facts.formats),
        max_concurrency=limits.max_concurrency,
        has_chat=format.template is not None or values.get("chat_template") is not None,
        thinks_by_default=thinks,
        longest_token=getattr(format.tokenizer, "longest_token", None),
        sampling={**sampling, "seed": values.get("seed")},
        default_max_tokens=limits.default_max_tokens,
        speculative=speculative,
    )
