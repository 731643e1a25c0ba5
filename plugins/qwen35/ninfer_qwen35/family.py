"""The functions of the descriptor: each reads the config and hands on to the module that does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ninfer_core.api import ArtifactError, Checkpoint, ImportPlan, KVGeometry, PromptFormat, Source, StatePart

if TYPE_CHECKING:
    from ninfer_core.api.nn import Model, Runtime, Weights


def adapt(source: Source) -> ImportPlan:
    """A Hugging Face folder or a GGUF file in this family's words; ArtifactError for what it cannot represent."""
    if source.kind == "huggingface":
        from . import from_huggingface

        return from_huggingface.plan(source)
    if source.kind == "gguf":
        from . import from_gguf

        return from_gguf.plan(source)
    raise ArtifactError(f"{source.path}: the qwen35 family reads huggingface and gguf sources, not {source.kind!r}")


def inventory(config: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    from . import names
    from .config import read

    return names.inventory(read(config))


def mtp_inventory(config: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    from . import names
    from .config import read

    return names.mtp_inventory(read(config))


def weight_recipe(config: Mapping[str, Any], scheme: str) -> Mapping[str, str]:
    from . import recipe
    from .config import read

    return recipe.weight_recipe(read(config), scheme)


def direct_formats(config: Mapping[str, Any]) -> Mapping[str, str]:
    from . import recipe
    from .config import read

    return recipe.direct_formats(read(config))


def uses(config: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    from . import recipe
    from .config import read

    return recipe.uses(read(config))


def kv_geometry(config: Mapping[str, Any]) -> KVGeometry:
    """One entry per full attention layer; Gated DeltaNet keeps nothing per token."""
    from .config import read

    c = read(config)
    layers = len(c.attention_layers)
    if not layers:
        return KVGeometry(heads=(), head_dims=())
    a = c.attention
    return KVGeometry(heads=(a.kv_heads,) * layers, head_dims=(a.head_dim,) * layers)


def mtp_geometry(config: Mapping[str, Any]) -> KVGeometry:
    """The one layer the MTP block keeps beside the text model's."""
    from .config import read

    a = read(config).attention
    return KVGeometry(heads=(a.kv_heads,), head_dims=(a.head_dim,))


def state_layout(config: Mapping[str, Any], runtime: Runtime) -> tuple[StatePart, ...]:
    from .config import read
    from .model import state_layout

    return state_layout(read(config), runtime)


def context_length(config: Mapping[str, Any]) -> int:
    from .config import read

    return read(config).native_context


def context_limit(config: Mapping[str, Any]) -> int:
    """Four native windows, whatever stretches the positions (``spec/kv-dtypes.md`` §11)."""
    from .config import read
    from .rope_plan import LONGEST

    return LONGEST * read(config).native_context


def hidden_size(config: Mapping[str, Any]) -> int:
    from .config import read

    return read(config).hidden_size


def prompt(checkpoint: Checkpoint) -> PromptFormat:
    from .prompt import prompt_format

    return prompt_format(checkpoint)


def build(checkpoint: Checkpoint, weights: Weights, runtime: Runtime) -> Model:
    from .config import read
    from .model import Qwen35Model

    return Qwen35Model(read(checkpoint.config), weights, runtime)
