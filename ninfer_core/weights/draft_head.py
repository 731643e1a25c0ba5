"""What ``ninfer convert --draft-head-ranking`` adds: head rows of the tokens seen most (``spec/artifact.md`` §6)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ninfer_core.api import EncodedTensor, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .formats import LAYOUT as DIRECT
from .mapped import reason
from .names import quoted
from .proposal import HEAD, OUTPUT, TOKEN_IDS
from .resources import check_tokens, special_tokens
from .stored import Piece, StoredCheckpoint, encoded_size

FORMAT = "q4_g64_fp16"
"""What rows of a plain head are stored as; rows of any other are taken as they are."""

COUNT_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftHead:
    """Token ids in the order of the rows, and where head and ids are read from."""

    token_ids: Sequence[int]
    pieces: Mapping[str, tuple[Piece, ...]]  # by parameter
    shapes: Mapping[str, tuple[int, ...]]
    wanted: Mapping[str, str]  # parameter -> format to store it in
    proposal: Mapping[str, object]  # what the text component says of it


def draft_head(
    checkpoint: StoredCheckpoint,
    formats: Registry[WeightFormat],
    shape: tuple[int, ...],
    ranking: str,
    rows: int,
) -> DraftHead:
    """A head of ``rows`` rows out of the output head of this shape, by the counts in the file ``ranking``."""
    vocab_size, hidden = shape
    public = public_tokens(checkpoint, vocab_size)
    if rows > public:
        raise ArtifactError(f"{checkpoint.path}: a draft head of {rows} rows; the tokenizer has {public} tokens")
    counts = read_counts(ranking, vocab_size)[:public]
    ids = shortlist(counts, special_tokens(_resources(checkpoint), checkpoint.path), rows)
    found = checkpoint.pieces(OUTPUT, shape)
    if len(found) != 1:
        raise ArtifactError(f"{checkpoint.path}: {quoted(OUTPUT)} has {len(found)} parts; a draft head needs one")
    (head,) = found
    form = formats[head.format]
    taken = Piece(
        key=("draft head", head.key),
        origin=head.origin,
        format=head.format,
        layout=head.layout,
        shape=(rows, hidden),
        bytes=encoded_size(form, checkpoint.path, HEAD, (rows, hidden)),
        read=partial(_rows, head, form, ids),
    )
    words = array("i", ids)
    listed = Piece(
        key=("draft head", "ids"),
        origin=ranking,
        format="int32",
        layout=DIRECT,
        shape=(rows,),
        bytes=len(words) * words.itemsize,
        read=partial(_words, words),
    )
    return DraftHead(
        token_ids=ids,
        pieces={HEAD: (taken,), TOKEN_IDS: (listed,)},
        shapes={HEAD: (rows, hidden), TOKEN_IDS: (rows,)},
        wanted={HEAD: FORMAT} if head.layout == DIRECT else {},
        proposal={"proposal": {"domain": "indexed", "rows": rows}},
    )


def public_tokens(checkpoint: StoredCheckpoint, vocab_size: int) -> int:
    """How many tokens the tokenizer has; ArtifactError without a sound one."""
    return check_tokens(_resources(checkpoint), vocab_size, checkpoint.path)


def _resources(checkpoint: StoredCheckpoint) -> dict[str, bytes]:
    found = {role: data for role in checkpoint.resources() if (data := checkpoint.resource(role)) is not None}
    if "tokenizer.json" not in found:
        raise ArtifactError(f"{checkpoint.path}: a draft head needs the tokenizer, and there is no tokenizer.json")
    return found


def shortlist(counts: Sequence[int], forced: Iterable[int], rows: int) -> list[int]:
    """``rows`` token ids, most counted first; ``forced`` ones are in, as far as there is room. Sorts are stable."""
    kept = set(forced)
    wanted = sorted(kept)

    def by_count(ids: Iterable[int]) -> list[int]:
        return sorted(ids, key=lambda token: -counts[token])

    if len(wanted) >= rows:
        return by_count(wanted)[:rows]
    others = [token for token in by_count(range(len(counts))) if token not in kept]
    return by_count([*others[: rows - len(wanted)], *wanted])


def read_counts(path: str, vocab_size: int) -> list[int]:
    """The first ``vocab_size`` counts, int64 each; ArtifactError for a file of another size."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: {reason(error)}") from None
    table = COUNT_BYTES * vocab_size
    if not data or len(data) % table:
        raise ArtifactError(f"{path}: {len(data)} bytes are not tables of {vocab_size} counts of {COUNT_BYTES} bytes")
    return array("q", data[:table]).tolist()


def _rows(head: Piece, form: WeightFormat, ids: Sequence[int]) -> EncodedTensor:
    return form.take_rows(head.read(), ids)


def _words(words: array[int]) -> EncodedTensor:
    import torch

    data = torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)
    return EncodedTensor(format="int32", layout=DIRECT, shape=(len(words),), data=data)
