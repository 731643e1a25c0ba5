"""What the options choose for one model: device, context, KV storage, drafters. Refusals in one line."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ninfer_core.api import (
    Checkpoint,
    CopySource,
    KVDtype,
    ModelFamily,
    OptionValues,
    PromptFormat,
    Refusal,
    SpecContext,
    StartupError,
)
from ninfer_core.api.nn import Model, Runtime
from ninfer_core.engine.engine import EngineLimits
from ninfer_core.plugins import Plugins

DEFAULT_CONTEXT = 8192


def choose_runtime(family: ModelFamily, checkpoint: Checkpoint, values: OptionValues, plugins: Plugins) -> Runtime:
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


def choose_kv_dtype(values: OptionValues, plugins: Plugins) -> KVDtype:
    name = values["kv_dtype"]
    if name is not None:
        return plugins.choose(plugins.kv_dtypes, name)
    default = [dtype for dtype in plugins.kv_dtypes if dtype.default]
    if len(default) != 1:
        known = ", ".join(plugins.kv_dtypes.names()) or "none"
        raise StartupError(f"no single default KV storage is installed; choose one with --kv-dtype (known: {known})")
    return default[0]


def copy_sources(
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


def all_sources(chosen: Sequence[CopySource], model: Model) -> list[CopySource]:
    return [*chosen, model.draft_source] if model.draft_source is not None else list(chosen)
