"""The functions of the descriptor: each reads the config and hands on to the module that does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ninfer_core.api import ArtifactError, Checkpoint, ImportPlan, KVGeometry, PromptFormat, Source

if TYPE_CHECKING:
    from ninfer_core.api.nn import Model, Runtime, Weights


def adapt(source: Source) -> ImportPlan:
    """A Hugging Face folder or a GGUF file in this family's words; ArtifactError for what it cannot represent."""
    from . import from_gguf, from_huggingface

    if source.kind == "huggingface":
        return from_huggingface.plan(source)
    if source.kind == "gguf":
        return from_gguf.plan(source)
    raise ArtifactError(f"{source.path}: the llama family reads huggingface and gguf sources, not {source.kind!r}")


def inventory(config: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    from . import names
    from .config import read

    return names.inventory(read(config))


def weight_recipe(config: Mapping[str, Any], scheme: str) -> Mapping[str, str]:
    from . import recipe
    from .config import read

    return recipe.weight_recipe(read(config), scheme)


def kv_geometry(config: Mapping[str, Any]) -> KVGeometry:
    from .config import read

    c = read(config)
    return KVGeometry(
        heads=(c.num_key_value_heads,) * c.num_hidden_layers, head_dims=(c.head_dim,) * c.num_hidden_layers
    )


def context_length(config: Mapping[str, Any]) -> int:
    from .config import read

    return read(config).max_position_embeddings


def hidden_size(config: Mapping[str, Any]) -> int:
    from .config import read

    return read(config).hidden_size


def prompt(checkpoint: Checkpoint) -> PromptFormat:
    from .prompt import prompt_format

    return prompt_format(checkpoint)


def build(checkpoint: Checkpoint, weights: Weights, runtime: Runtime) -> Model:
    from .config import read
    from .model import LlamaModel

    return LlamaModel(read(checkpoint.config), weights, runtime)
