"""Model families: everything the core needs to know about an architecture (``spec/engine.md`` §27)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .kv import KVGeometry
from .options import Option
from .tools import ToolSyntax
from .weights import Checkpoint, ImportPlan, Shape, Source

if TYPE_CHECKING:
    from .nn import Model, Runtime, Weights


class Tokenizer(Protocol):
    """Text <-> token ids. Immutable and safe to use from any thread.

    An optional ``special_ids: frozenset[int]`` names the control tokens whose text is withheld from output; the others
    (``<think>``, ``<tool_call>``) are text there. Without it only stop tokens are withheld. An optional
    ``longest_token: int | None`` is the most bytes of text that one token stands for; None or without it, there is no
    such bound, and a text that is too long has to be counted.
    """

    size: int  # public tokens: ids are below it
    control_tokens: Mapping[str, int]  # spelling -> id of every control token

    def encode(self, text: str) -> list[int]:
        """Plain text: a control token's spelling is text like any other."""

    def encode_with_control(self, text: str) -> list[int]:
        """Text in which a control token's spelling is that token."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; concatenating them spells the text. A control token gives its spelling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Sampling defaults of a model in one mode."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningSyntax:
    """How reasoning is written. It closes at ``close`` followed by white space or the end of the turn."""

    open: str  # "<think>"
    close: str  # "</think>"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFormat:
    """How a family reads prompts and writes answers."""

    tokenizer: Tokenizer
    template: str | None  # jinja2; None: the model has no chat format and answers raw prompts only
    template_globals: Mapping[str, Any] = field(default_factory=dict)  # bos_token, eos_token, ...
    stop_ids: frozenset[int] = frozenset()
    bos_id: int | None = None  # put before a raw prompt, where the checkpoint asks for it
    reasoning: ReasoningSyntax | None = None
    tools: ToolSyntax | None = None  # None: tools are shown to the model, and its calls are text
    thinks_by_default: bool = False
    thinking_variable: str | None = None  # the template variable that switches thinking: "enable_thinking"
    efforts: tuple[str, ...] = ()  # reasoning efforts the template accepts
    early_close: str = ""  # written into reasoning whose token budget is spent, the close tag included
    preset: Preset = Preset()  # without thinking
    thinking_preset: Preset | None = None  # None: the same
    post_thinking_preset: Preset | None = None  # of the answer after reasoning, on request; None: the same, cooler


@dataclass(frozen=True, kw_only=True, slots=True)
class StatePart:
    """One tensor of a sequence's recurrent state: [slots, *shape]."""

    name: str
    dtype: str
    shape: Shape
    layer: int | None = None  # the layer it belongs to, where it belongs to one


Geometry = Callable[[int | None], Mapping[str, Any]]
"""The config of a named size with so many of its layers, None: all; ArtifactError when it has fewer. Free to import."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFamily:
    """The architectures one plugin serves.

    ``sources`` maps an importer's kind to the architecture names of that kind which ``adapt`` understands. ``adapt``
    refuses (ArtifactError) what it cannot represent, naming the tensor or key. ``inventory(config)`` is the closed list
    of logical parameters with their shapes; a config is checked before it is used, an unknown key of an artifact
    refused. ``companions`` are the components beside the text model that the family understands, by component id, each
    with the inventory a checkpoint that has it must hold; their parameters' names begin with that id. ``build`` loads
    torch and makes the model; everything before it is free of torch.

    What artifacts of the family look like: ``weight_recipe(config, scheme)`` gives the stored format of each parameter
    for ``ninfer convert --weights SCHEME`` ("bf16", "fp8", "groupwise-int", "nvfp4"), companions' included; what it
    does not name keeps the source's format. Without one every matrix is stored in the scheme's usual format.
    ``direct_formats(config)`` names the parameters that are stored in one plain format only; another is refused, and a
    conversion casts to it. ``uses(config)`` gives the inputs each matrix is multiplied by; an artifact must have a Use
    for each, and a conversion writes them.

    For measurements: ``geometries`` are configs at the sizes of published models, by name; ``token_share(config,
    name)`` is the share of tokens that matrix ``name`` multiplies, below 1 for one of many experts.
    """

    name: str
    summary: str
    architectures: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    adapt: Callable[[Source], ImportPlan]
    inventory: Callable[[Mapping[str, Any]], Mapping[str, Shape]]
    kv_geometry: Callable[[Mapping[str, Any]], KVGeometry]
    context_length: Callable[[Mapping[str, Any]], int]  # the trained context, in tokens
    hidden_size: Callable[[Mapping[str, Any]], int]
    prompt: Callable[[Checkpoint], PromptFormat]
    build: Callable[[Checkpoint, Weights, Runtime], Model]
    state_layout: Callable[[Mapping[str, Any], Runtime], tuple[StatePart, ...]] = lambda config, runtime: ()
    context_limit: Callable[[Mapping[str, Any]], int] | None = None  # the longest context served; None: the trained one
    companions: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Shape]]] = field(default_factory=dict)
    weight_recipe: Callable[[Mapping[str, Any], str], Mapping[str, str]] | None = None
    direct_formats: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda config: {}
    uses: Callable[[Mapping[str, Any]], Mapping[str, tuple[str, ...]]] = lambda config: {}
    geometries: Mapping[str, Geometry] = field(default_factory=dict)
    token_share: Callable[[Mapping[str, Any], str], float] = lambda config, name: 1.0
    options: tuple[Option, ...] = ()  # read by ``build``; refused where another family's model is served
    describe: Callable[[Checkpoint], str] | None = None  # what ``ninfer inspect`` prints beside the inventory
