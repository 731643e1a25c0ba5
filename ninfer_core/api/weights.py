"""Checkpoints and what is stored in them: encoded tensors, weight formats, importers of foreign files.

Three views of a model on disk. A ``Source`` is a foreign checkpoint under its own tensor names (a Hugging Face
folder, a
GGUF file). The family turns it into logical parameters with an ``ImportPlan``. A ``Checkpoint`` offers logical
parameters, whether they come from a ``.ninfer`` artifact or from a source through its plan; models are built from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .nn import Linear

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredInput:
    """What a stored matrix multiplies in place of its input ``x``.

    ``signs``: per 1024 elements ``(1/32) H (signs * x)``, H the Hadamard matrix. ``columns``: stored column ``c``
    multiplies ``x[columns[c]]``. Read row by row, as a token table, the matrix means what these make of its rows.
    """

    signs: Tensor | None = None  # [K] fp32, every one +1 or -1
    columns: Tensor | None = None  # [K] int64, a permutation


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedTensor:
    """A tensor as stored: ``data`` is a flat uint8 tensor (often a view of a memory-mapped file)."""

    format: str  # "bf16", "gguf_q4_1", ...
    layout: str  # "contiguous_le_v1", "gguf_blocks_v1", ...
    shape: Shape  # logical, C order; matrices are [output rows, input columns]
    data: Tensor  # [bytes] uint8, host
    divisors: int = 1
    input: StoredInput | None = None  # None: it multiplies its input as it is


Rows = Callable[[], "Iterable[Tensor]"]
"""The rows of a matrix in fp32, in order and some at a time; a call starts again with the first."""

Encoder = Callable[[Shape, Rows], EncodedTensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFormat:
    """One stored numeric format (``spec/artifact.md`` §10-12).

    ``encoded_bytes(shape)`` is the exact size, or raises ValueError saying which shapes the layout can hold.
    ``decode(tensor)`` gives fp32 of the logical shape, exactly the format's definition. ``take_rows(tensor, rows)``
    gives the encoded rows in that order. ``quantize(x)`` encodes an fp32 tensor, when the format has an encoder.
    ``encoders`` encode matrices too large to hold in fp32, each by its name, the usual one first; every encoder raises
    ValueError for a value it cannot store. ``cpu_linear(tensors)`` builds a fast CPU route over the stacked rows of
    matrices of this format, or is None where there is none for them; it multiplies by exactly the decoded weights.
    ``gpu_linear(tensors, device)`` builds the operation that keeps only packed bytes on that device, its products in
    bf16 with fp32 sums, or gives None where it cannot run; without it weights become dense there. The bytes it is given
    may lie on that device already.
    ``check(tensor)`` raises ValueError for stored bytes that would make the whole tensor meaningless; it is cheap and
    called on every read.
    """

    name: str
    layout: str
    encoded_bytes: Callable[[Shape], int]
    decode: Callable[[EncodedTensor], Tensor]
    take_rows: Callable[[EncodedTensor, Sequence[int]], EncodedTensor]
    quantize: Callable[[Tensor], EncodedTensor] | None = None
    encoders: Mapping[str, Encoder] = field(default_factory=dict)
    cpu_linear: Callable[[Sequence[EncodedTensor]], Linear | None] | None = None
    gpu_linear: Callable[[Sequence[EncodedTensor], torch.device], Linear | None] | None = None
    check: Callable[[EncodedTensor], None] | None = None
    divisor_rows: int = 0  # what the rows of a divisor's share are a multiple of; 0: the layout has no divisors
    divisor_bytes: int = 0  # what each divisor but the first adds to ``encoded_bytes``
    activations: str = "A16Only"  # the precisions of activations a converter allows beside it
    published: bool = True  # False: a name other readers of the container may not know


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTensor:
    """A tensor of a foreign checkpoint. ``format`` may also be "fp16" or "fp64", which artifacts do not store."""

    name: str
    format: str
    shape: Shape
    read: Callable[[], EncodedTensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A foreign checkpoint, opened but not read."""

    kind: str  # "huggingface", "gguf", "scripted"
    path: str  # as given by the operator
    architecture: str  # in the source's own words: "LlamaForCausalLM", "llama"
    config: Mapping[str, Any]  # config.json, or the GGUF metadata
    tensors: Mapping[str, SourceTensor] = field(default_factory=dict)
    resources: Mapping[str, bytes] = field(default_factory=dict)  # "tokenizer.json", "chat_template.jinja", ...
    name: str | None = None  # the public name the source suggests
    drop_pages: Callable[[], None] | None = None  # give back the memory of what was read; tensors stay readable


@dataclass(frozen=True, kw_only=True, slots=True)
class Importer:
    """Opens one kind of foreign checkpoint. ``claims(path)`` is cheap and never raises; the first importer that claims
    a path opens it. ``open`` raises ArtifactError for a damaged or unsupported file."""

    name: str
    summary: str
    claims: Callable[[str], bool]
    open: Callable[[str], Source]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How one logical parameter is made from source tensors.

    The tensors are concatenated by rows; ``rows`` then takes rows in that order, all of them or some (of the encoded
    bytes, so nothing is re-rounded), where a tensor of three dimensions counts as the matrix of all its rows;
    ``transform`` maps the decoded fp32 tensor and stores the result as ``store`` ("bf16" or "fp32"). ``columns`` leaves
    a matrix as it is stored and says where its columns belong: stored column ``c`` multiplies ``x[columns[c]]``.
    """

    tensors: tuple[str, ...]
    shape: Shape
    rows: Sequence[int] | None = None
    transform: Callable[[Tensor], Tensor] | None = None
    store: str | None = None  # None: as the source stores it
    columns: Sequence[int] | None = None  # a permutation; with ``tensors`` of one matrix and nothing else


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportPlan:
    """A source in the family's own words."""

    architecture: str  # the artifact's architecture name
    config: Mapping[str, Any]  # the ``text`` component's config (closed key set)
    parameters: Mapping[str, Recipe]  # logical name -> recipe
    warnings: tuple[str, ...] = ()  # what is left out, by name: unknown config keys, tensors nobody uses
    derived: Mapping[str, SourceTensor] = field(default_factory=dict)  # made from several: codes and scales
    companions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # component id -> config, beside the text


class Checkpoint(Protocol):
    """Logical parameters and resources of one model."""

    path: str
    architecture: str
    name: str | None  # the public name stored with it
    config: Mapping[str, Any]
    companions: Mapping[str, Mapping[str, Any]]  # the components beside the text: id -> config

    def names(self) -> Iterable[str]:
        """The logical parameters present."""

    def has(self, name: str) -> bool: ...

    def parameter(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        """The parts of a parameter in row order; ArtifactError when it is missing or has another shape."""

    def resource(self, role: str) -> bytes | None:
        """A resource of the text component ("tokenizer.json"), or None."""

    def close(self) -> None:
        """Give the files back."""
