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
    KVDtype,
    ModelFamily,
    ModelInfo,
    OptionValues,
    PromptFormat,
    Refusal,
    SamplingRequest,
    SpecContext,
    StartupError,
)
from ninfer_core.api.nn import Model, Runtime
from ninfer_core.engine.engine import EngineLimits, LocalEngine
from ninfer_core.engine.graphs import DecodeGraphs, Shape, computed_allowance, shapes
from ninfer_core.engine.lanes import LaneTable
from ninfer_core.engine.program import Program
from ninfer_core.engine.progress import Progress
from ninfer_core.engine.request import Request
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.stats import HostClock
from ninfer_core.engine.thinking import close_guidance
from ninfer_core.engine.worker import Worker
from ninfer_core.kv.cache import KVCache, page_bytes
from ninfer_core.kv.memory import free_bytes
from ninfer_core.kv.pages import PAGE_TOKENS, PagePool, pages_for
from ninfer_core.kv.state import StatePool
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.plugins import Plugins
from ninfer_core.sampling.params import resolve
from ninfer_core.text.output import OutputSession
from ninfer_core.text.prompt import PromptBuilder
from ninfer_core.weights.checkpoint import checkpoint_facts, open_checkpoint

log = structlog.get_logger()
DEFAULT_CONTEXT = 8192
LEASE_WINDOW = 4096  # output tokens


def load_engine(model: str, values: OptionValues, plugins: Plugins, progress: Progress) -> LocalEngine:
    """Open, build and warm up; blocking. Raises StartupError (one line) for everything an operator can mend."""
    if values["threads"] is not None:
        torch.set_num_threads(values["threads"])
    progress.stage("opening the model")
    family, checkpoint = open_checkpoint(model, plugins)
    try:
        return _compose(family, checkpoint, values, plugins, progress)
    except BaseException:
        checkpoint.close()
        raise


def _compose(
    family: ModelFamily, checkpoint: Checkpoint, values: OptionValues, plugins: Plugins, progress: Progress
) -> LocalEngine:
    runtime = _runtime(family, checkpoint, values, plugins)
    dtype = _kv_dtype(values, plugins)
    with plugins.blaming(plugins.model_families, family.name, "read the prompt format of the family"):
        format = family.prompt(checkpoint)
    guidance = close_guidance(format, values["thinking_budget_message"])
    limits = _limits(values, runtime.max_context, guidance)
    sources = _copy_sources(family, format, limits, values, plugins)
    progress.stage("loading weights")
    loader = CheckpointWeights(checkpoint, plugins.weight_formats, runtime, progress=progress.advance)
    with plugins.blaming(plugins.model_families, family.name, "build a model of the family"):
        built = family.build(checkpoint, loader, runtime)
    progress.stage("allocating the KV pool")
    geometry = family.kv_geometry(checkpoint.config)
    # before memory is measured: the states come out of what the pool could take
    states = StatePool(family.state_layout(checkpoint.config, runtime), limits.max_concurrency, runtime.device)
    wanted = _graph_shapes(built, runtime, limits, _all_sources(sources, built), values)
    allowance = _graph_allowance(len(wanted), values)
    if values["kv_capacity"] == "auto":
        set_aside = (values["kv_headroom_mib"] << 20) + allowance
        limits = _fill_memory(limits, page_bytes(geometry, dtype), set_aside, runtime.device)
    with plugins.blaming(plugins.kv_dtypes, dtype.name, "open the KV storage"):
        # one page belongs to nobody: columns of a recorded round that have no token write there
        pages = limits.pool_pages + bool(wanted)
        cache = KVCache(geometry, dtype, pages, runtime.device, runtime.reference)
    graphs = None
    if wanted:
        progress.stage("recording decode rounds")
        ends = {"pages": pages_for(limits.max_context), "scratch_page": limits.pool_pages}
        graphs = DecodeGraphs(built, cache, states, runtime.device, **ends)
        with plugins.blaming(plugins.model_families, family.name, "record decode rounds of the family"):
            _record(graphs, wanted, allowance)
    program = Program(
        model=built,
        cache=cache,
        states=states,
        device=runtime.device,
        public_tokens=format.tokenizer.size,
        clock=HostClock(),
        graphs=graphs,
    )
    engine = LocalEngine(
        info=_info(family, checkpoint, format, limits, values, speculative=bool(_all_sources(sources, built))),
        format=format,
        prompts=_prompts(format, values, limits.max_context),
        worker=_worker(program, limits, format, _all_sources(sources, built), values),
        limits=limits,
        options=values,
        close=checkpoint.close,
    )
    progress.stage("warm-up")
    with plugins.blaming(plugins.model_families, family.name, "run the family"):
        engine.warm_up()
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


def _runtime(family: ModelFamily, checkpoint: Checkpoint, values: OptionValues, plugins: Plugins) -> Runtime:
    device = _device(values["device"])
    reference = bool(values["reference_ops"])
    _refuse_foreign_options(family, values, plugins)
    trained = family.context_length(checkpoint.config)
    most = family.context_limit(checkpoint.config) if family.context_limit is not None else trained
    max_context = values["max_context"] or min(DEFAULT_CONTEXT, trained)
    if max_context > most:
        what = f"the {trained} tokens this model was trained for"
        if most > trained:
            what = f"{most} tokens, the most this model of {trained} trained tokens is served with"
        raise Refusal(f"--max-context {max_context} exceeds {what}; pass at most that")
    dtype = torch.float32 if reference or device.type == "cpu" else torch.bfloat16
    return Runtime(device=device, dtype=dtype, reference=reference, max_context=max_context, options=values)


def _refuse_foreign_options(family: ModelFamily, values: OptionValues, plugins: Plugins) -> None:
    """An option of another family that this one would not read is a mistake, not a preference."""
    own = {option.key for option in family.options}
    for other in plugins.model_families:
        for option in other.options:
            if option.key in values.given and option.key not in own:
                raise Refusal(f"{option.flag} has no effect on a {family.name} model; it is read by {other.name}")


def _device(choice: str) -> torch.device:
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index = 0 if choice == "auto" else int(choice)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        raise StartupError(f"--device {index}: this machine has {count} CUDA devices; pass --device cpu")
    return torch.device("cuda", index)


def _kv_dtype(values: OptionValues, plugins: Plugins) -> KVDtype:
    name = values["kv_dtype"]
    if name is not None:
        return plugins.choose(plugins.kv_dtypes, name)
    default = [dtype for dtype in plugins.kv_dtypes if dtype.default]
    if len(default) != 1:
        known = ", ".join(plugins.kv_dtypes.names()) or "none"
        raise StartupError(f"no single default KV storage is installed; choose one with --kv-dtype (known: {known})")
    return default[0]


def _limits(values: OptionValues, max_context: int, guidance: tuple[int, ...]) -> EngineLimits:
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


def _graph_shapes(
    model: Model, runtime: Runtime, limits: EngineLimits, sources: Sequence[CopySource], values: OptionValues
) -> list[Shape]:
    """The rounds to record: none off a GPU, or for a model whose steps need the host."""
    if runtime.device.type != "cuda" or runtime.reference or values["no_cuda_graph"]:
        return []
    if not getattr(model, "records_steps", False):
        return []
    return shapes(limits.max_concurrency, max((source.max_drafts for source in sources), default=0))


def _record(graphs: DecodeGraphs, wanted: Sequence[Shape], allowance: int) -> None:
    taken = graphs.record(wanted)
    say = log.warning if taken > allowance else log.info
    say("cuda_graphs", count=len(graphs), allowance_bytes=allowance, measured_bytes=taken)


def _graph_allowance(count: int, values: OptionValues) -> int:
    """Bytes set aside for the graphs where memory decides the pool's size."""
    mib = values["cuda_graph_allowance_mib"]
    if not count:
        return 0
    return computed_allowance(count) if mib is None else int(mib) << 20


def _fill_memory(limits: EngineLimits, page: int, set_aside: int, device: torch.device) -> EngineLimits:
    """``--kv-capacity auto``: as many pages as memory holds beside the headroom, up to what every lane can use."""
    most = limits.max_concurrency * pages_for(limits.max_context)
    free = free_bytes(device) - set_aside
    if free < limits.pool_pages * page:
        raise Refusal(
            f"--kv-capacity auto: {max(free, 0) >> 20} MiB are left beside {set_aside >> 20} MiB of headroom, and the "
            f"least that works is {limits.pool_pages * page >> 20} MiB; lower --max-context or --kv-headroom-mib"
        )
    return replace(limits, pool_pages=min(most, free // page))


def _copy_sources(
    family: ModelFamily, format: PromptFormat, limits: EngineLimits, values: OptionValues, plugins: Plugins
) -> list[CopySource]:
    name = values["spec"]
    if name is None:
        _refuse_idle_options(values, plugins)
        return []
    backend = plugins.choose(plugins.speculative_backends, name)
    context = SpecContext(
        architecture=family.name,
        max_concurrency=limits.max_concurrency,
        max_context=limits.max_context,
        control_token_ids=frozenset(format.tokenizer.control_tokens.values()),
        options=values,
    )
    with plugins.blaming(plugins.speculative_backends, name, "open the speculative backend"):
        return [backend.open(context)]


def _refuse_idle_options(values: OptionValues, plugins: Plugins) -> None:
    """An option of a speculative backend that nothing would read is a mistake, not a preference."""
    for backend in plugins.speculative_backends:
        for option in backend.options:
            if option.key in values.given and values[option.key]:
                raise Refusal(f"{option.flag} has no effect without --spec {backend.name}")


def _all_sources(chosen: Sequence[CopySource], model: Model) -> list[CopySource]:
    return [*chosen, model.draft_source] if model.draft_source is not None else list(chosen)


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
