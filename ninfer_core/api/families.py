"""Model families: everything the core needs to know about an architecture (``spec/engine.md`` §27)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .kv import KVGeometry
from .weights import Checkpoint, ImportPlan, Shape, Source

if TYPE_CHECKING:
    from .nn import Model, Runtime, Weights


class Tokenizer(Protocol):
    """Text <-> token ids. Immutable and safe to use from any thread.

    An optional ``special_ids: frozenset[int]`` names the control tokens whose text is withheld from output; the others
    (``<think>``, ``<tool_call>``) are text there. Without it only stop tokens are withheld.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFamily:
    """The architectures one plugin serves.

    ``sources`` maps an importer's kind to the architecture names of that kind which ``adapt`` understands. ``adapt``
    refuses (ArtifactError) what it cannot represent, naming the tensor or key. ``inventory(config)`` is the closed list
    of logical parameters with their shapes; a config is checked before it is used, an unknown key of an artifact
    refused. ``build`` loads torch and makes the model; everything before it is free of torch.
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
    state_layout: Callable[[Mapping[str, Any]], tuple[StatePart, ...]] = lambda config: ()
    describe: Callable[[Checkpoint], str] | None = None  # what ``ninfer inspect`` prints beside the inventory
