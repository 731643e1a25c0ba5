"""Random weights at the sizes a family names, made on the device: a model without a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ninfer_core.api import Checkpoint, EncodedTensor, Geometry, ModelFamily, PromptFormat
from ninfer_core.errors import InvariantError
from ninfer_core.plugins import Plugins
from ninfer_core.registry import Registry

if TYPE_CHECKING:
    from ninfer_core.api.nn import Model, Runtime, Weights

TABLE = "text/token_embedding"
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomModel:
    """A family that builds itself of random weights, and the checkpoint that stands for them."""

    family: ModelFamily
    checkpoint: Checkpoint
    formats: Mapping[str, str]  # parameter -> stored format


def random_model(name: str, layers: int | None, scheme: str, plugins: Plugins) -> RandomModel:
    """The model of ``--geometry name``. UnknownChoice lists the geometries; ArtifactError for too many layers."""
    from ninfer_core.weights.recipes import DIRECT, targets

    family, geometry = known(plugins)[name]
    checkpoint = RandomCheckpoint(name, family, geometry(layers))
    formats = targets(family, checkpoint, plugins.weight_formats, scheme)

    def prompt(checkpoint: Checkpoint) -> PromptFormat:
        return PromptFormat(tokenizer=Numbers(family.inventory(checkpoint.config)[TABLE][0]), template=None)

    def build(checkpoint: Checkpoint, weights: Weights, runtime: Runtime) -> Model:
        from ninfer_core.nn.random import RandomWeights

        stored = {name: plugins.weight_formats[form] for name, form in formats.items() if form not in DIRECT}
        return family.build(checkpoint, RandomWeights(runtime, formats=stored), runtime)

    return RandomModel(family=replace(family, prompt=prompt, build=build), checkpoint=checkpoint, formats=formats)


def known(plugins: Plugins) -> Registry[tuple[ModelFamily, Geometry]]:
    """The geometries of all families; PluginConflict for a name that two of them have."""
    found: Registry[tuple[ModelFamily, Geometry]] = Registry("--geometry")
    for family in plugins.model_families:
        for name, geometry in family.geometries.items():
            found.add(name, (family, geometry), origin=plugins.model_families.origin(family.name))
    return found


def names(plugins: Plugins) -> list[str]:
    """What the geometries are called, for help; a name that two families have is no conflict yet."""
    return sorted({name for family in plugins.model_families for name in family.geometries})


class RandomCheckpoint:
    """``api.Checkpoint`` of a config alone: its parameters have no stored form."""

    companions: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, name: str, family: ModelFamily, config: Mapping[str, Any]) -> None:
        self.path = f"--geometry {name}"
        self.name: str | None = name
        self.architecture = config["architectures"][0] if "architectures" in config else family.architectures[0]
        self.config = config
        self._names = tuple(family.inventory(config))

    def names(self) -> Iterable[str]:
        return self._names

    def has(self, name: str) -> bool:
        return name in self._names

    def parameter(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        raise InvariantError(f"{name}: random weights have no stored form")

    def pieces(self, name: str, shape: Shape) -> tuple[Any, ...]:
        raise InvariantError(f"{name}: random weights have no stored form")

    def resources(self) -> Mapping[str, int]:
        return {}

    def resource(self, role: str) -> bytes | None:
        return None

    def drop_pages(self) -> None:
        """Nothing was read."""

    def close(self) -> None:
        """Nothing is open."""


class Numbers:
    """``api.Tokenizer`` of a model nobody trained: a token is spelled as its number."""

    control_tokens: Mapping[str, int] = {}
    longest_token = 8

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, text: str) -> list[int]:
        return [byte % self.size for byte in text.encode()]

    def encode_with_control(self, text: str) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return b"%d " % token_id
