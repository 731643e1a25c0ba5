"""What a model is built from and run with. Importing this module loads torch; families import it inside ``build``.

Legend: T tokens of this step over all rows, B rows, L positions whose logits are wanted, V vocabulary, H query heads,
G KV heads, D head dimension, N pages per row (padded), P = 64 tokens a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .spec import CopySource
from .weights import EncodedTensor, Shape

PAGE_TOKENS = 64


class Linear(Protocol):
    """x: [T, K] -> [T, N], in the activations' dtype."""

    rows: int  # N
    # optional: ``weight``, the matrix itself, [N, K] in the activations' dtype, where it is held densely;
    # ``into(x, out)``, the product written to ``out`` [T, N], whose rows may be parts of longer ones;
    # ``take_rows(ids, dtype)``, rows of the matrix itself, [T] int64 -> [T, K], on the device

    def __call__(self, x: Tensor) -> Tensor: ...


class Embedding(Protocol):
    """ids: [T] int64 -> [T, H] in the activations' dtype."""

    def __call__(self, token_ids: Tensor) -> Tensor: ...


class Weights(Protocol):
    """A checkpoint's parameters as operations and tensors on the model's device, each read once."""

    def tensor(self, name: str, shape: Shape) -> Tensor:
        """A small parameter (a norm, a bias), decoded, in fp32."""

    def linear(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear:
        """A matrix, or several with one input stacked by rows into one operation."""

    def dense(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Tensor:
        """The same as one matrix in the activations' dtype, decoded whatever it is stored as: for a kernel that reads
        no stored form."""

    def packed(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear | None:
        """The same as one operation on packed bytes; None where they are of several formats, of one without such an
        operation, or stored for a changed input."""

    def embedding(self, name: str, shape: Shape) -> Embedding:
        """A token table."""

    def parts(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        """The stored form, for a family that needs more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """Where and how a model runs."""

    device: torch.device
    dtype: torch.dtype  # of activations
    reference: bool  # --reference-ops: every op is its fp32 reference
    max_context: int  # tokens
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsOnDevice:
    """The rows of a step as tensors, [B] int64 each: what a kernel reads instead of the host's numbers.

    In a recorded step that is replayed only these hold: the host's tuples then give the shape the step was recorded
    with, and a row may be narrower than its place. Row ``b`` has tokens ``firsts[b]`` to ``firsts[b] + widths[b] - 1``.
    Logits are wanted of every token, in order.
    """

    firsts: Tensor
    widths: Tensor
    frontiers: Tensor
    state_slots: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One unit of work: a chunk of one prompt, or a decode or verify round over several rows.

    Row ``b`` feeds tokens ``starts[b]:starts[b+1]`` at positions ``frontiers[b], frontiers[b]+1, ...``; everything
    before its frontier is in the cache.
    """

    token_ids: Tensor  # [T] int64, device
    positions: Tensor  # [T] int64, device; also the cache ordinal of each token
    starts: tuple[int, ...]  # [B+1], host
    frontiers: tuple[int, ...]  # [B] tokens cached before this step, host
    page_table: Tensor  # [B, N] int64, device; page of position p is page_table[b, p // 64]
    cache_slots: Tensor  # [T] int64, device; page * 64 + offset of each token
    state_slots: tuple[int, ...]  # [B] slot of each row's recurrent state
    logit_index: Tensor  # [L] int64, device; the tokens whose logits are wanted
    provisional: bool  # True: state slots must not change before ``fold``; False: advance them in place
    prompt_tokens: tuple[int, ...] = ()  # [B] tokens of each row's prompt, host; () where nobody knows
    on_device: RowsOnDevice | None = None

    @property
    def rows(self) -> int:
        return len(self.frontiers)


class Cache(Protocol):
    """The paged KV pool, in the chosen storage. Attention reads what was stored, this step's tokens included."""

    def store(self, layer: int, k_TGD: Tensor, v_TGD: Tensor, step: Step) -> None:
        """Encode this step's keys and values into their pages."""

    def attend(self, layer: int, q_THD: Tensor, step: Step, scale: float) -> Tensor:
        """Causal attention of every row over its stored history, this step included: [T, H, D] like ``q``."""

    def gather(self, layer: int, step: Step, row: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Stored keys and values of positions [start, end) of one row, decoded: two [end - start, G, D] fp32,
        rotations of the storage undone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    logits: Tensor  # [L, V] bf16 or fp32, V at least the public tokens
    records: Any = None  # what ``fold`` needs; None when the model has no recurrent state


class Model(Protocol):
    """A built model. Called by the engine thread only.

    All it keeps of a sequence is in the pages and the state slot that a step names: the core begins one sequence with
    another's full pages and a copy of its state.

    ``draft_source`` is a proposer of the model's own, consulted after the chosen ones; usually None.
    """

    draft_source: CopySource | None
    # an optional ``records_steps = True``: on a GPU a provisional forward and its fold read nothing of a step but its
    # tensors and its shape, so they can be recorded once and replayed (CUDA graphs); ``kept`` may then be a tensor

    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        """Run one step. ``state``: the parts of ``state_layout`` as [slots, ...] tensors."""

    def fold(self, step: Step, records: Any, kept: Sequence[int] | Tensor, state: Mapping[str, Tensor]) -> None:
        """After a provisional step: advance row ``b``'s state over its first ``kept[b]`` tokens (0: leave it)."""
