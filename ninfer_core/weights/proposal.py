"""The optimized proposal head: head rows that drafts are chosen from (``spec/artifact.md`` §6, §20 row 42).

The directory says whether one is stored and how many rows it has; its ids are read when a head is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.errors import ArtifactError

from .artifact import ArtifactCheckpoint
from .directory import TensorObject, binding_of
from .names import quoted

if TYPE_CHECKING:
    from torch import Tensor

HEAD, TOKEN_IDS, OUTPUT = "proposal/head", "proposal/token_ids", "text/output_head"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedHead:
    """What the directory says of a proposal head, nothing of it read."""

    rows: int
    hidden: int  # columns
    indexed: bool  # rows have token ids of their own; False: row i is token i


def stated_head(checkpoint: ArtifactCheckpoint) -> StatedHead | None:
    """The declared head, or None; ArtifactError when a parameter of it is missing or misshapen."""
    directory = checkpoint.container.directory
    stated = directory.components["text"].proposal
    if stated is None:
        return None
    output = directory.bindings.get(OUTPUT)
    parent = directory.objects[output.parts[0].object] if output is not None else None
    if output is None or not isinstance(parent, TensorObject) or len(parent.shape) != 2:
        raise ArtifactError(f"{checkpoint.path}: a proposal head needs the matrix {quoted(OUTPUT)}")
    hidden = parent.shape[1]
    indexed = stated["domain"] == "indexed"
    head = StatedHead(rows=stated["rows"] if indexed else output.elements // hidden, hidden=hidden, indexed=indexed)
    binding_of(directory, checkpoint.path, HEAD, (head.rows, hidden))
    if indexed:
        binding_of(directory, checkpoint.path, TOKEN_IDS, (head.rows,))
    return head


def require_head(checkpoint: ArtifactCheckpoint) -> StatedHead:
    """The declared head; ArtifactError without one (row 42)."""
    head = stated_head(checkpoint)
    if head is None:
        raise ArtifactError(f"{checkpoint.path}: no proposal head stored")
    return head


def token_ids(checkpoint: ArtifactCheckpoint, public_tokens: int) -> Tensor:
    """The token of each row of the head, [rows] int64; ArtifactError (rows 37, 42) for ids that are none."""
    import torch

    head = require_head(checkpoint)
    if not head.indexed:
        return torch.arange(min(head.rows, public_tokens))
    if head.rows > public_tokens:
        raise ArtifactError(
            f"{checkpoint.path}: the proposal head has {head.rows} rows, the tokenizer {public_tokens} tokens"
        )
    parts = checkpoint.parameter(TOKEN_IDS, (head.rows,))
    for part in parts:
        if part.format != "int32":
            raise ArtifactError(
                f"{checkpoint.path}: parameter {quoted(TOKEN_IDS)}: expected int32, found {part.format}"
            )
    ids = torch.cat([part.data.clone().view(torch.int32) for part in parts]).long()
    if len(set(ids.tolist())) != len(ids) or int(ids.min()) < 0 or int(ids.max()) >= public_tokens:
        raise ArtifactError(f"{checkpoint.path}: proposal token ids must be unique and in [0,{public_tokens})")
    return ids
