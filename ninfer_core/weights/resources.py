"""What a text model's resources have to be (``spec/artifact.md`` §4; §20 rows 44, 45)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ninfer_core.errors import ArtifactError

from .names import plain, quoted

ROLES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def check_resource(role: str, data: bytes, where: str) -> None:
    """Known roles are non-empty UTF-8 and, by their names, a JSON object; ArtifactError beginning with ``where``."""
    if role not in ROLES:
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{where}: resource {quoted(role)} is not UTF-8 (byte {error.start})") from None
    if not data:
        raise ArtifactError(f"{where}: resource {quoted(role)} is empty")
    if role.endswith(".json"):
        try:
            msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            raise ArtifactError(f"{where}: resource {quoted(role)} is not a JSON object") from None


def check_tokens(resources: Mapping[str, bytes], vocab_size: int, where: str) -> int:
    """The number of public tokens: the union of the tokenizer's vocabularies, ids contiguous and below ``vocab_size``.

    ArtifactError beginning with ``where`` when two entries disagree or an id is out of place.
    """
    spelling: dict[int, str] = {}
    number: dict[str, int] = {}
    for token_id, text in _entries(resources, where):
        if spelling.setdefault(token_id, text) != text or number.setdefault(text, token_id) != token_id:
            raise ArtifactError(f"{where}: the tokenizer's vocabularies disagree about token {token_id} {quoted(text)}")
    count = len(spelling)
    if not spelling or min(spelling) != 0 or max(spelling) != count - 1 or count > vocab_size:
        raise ArtifactError(
            f"{where}: tokenizer ids must be contiguous and below vocab_size "
            f"({count} tokens, highest id {max(spelling, default=-1)}, vocab_size {vocab_size})"
        )
    return count


def special_tokens(resources: Mapping[str, bytes], where: str) -> set[int]:
    """The ids whose entries are flagged ``special``, of a tokenizer that ``check_tokens`` found sound."""
    entries = list(_object(resources["tokenizer.json"], "tokenizer.json", where).get("added_tokens") or ())
    found = {entry["id"] for entry in entries if entry.get("special")}
    config = resources.get("tokenizer_config.json")
    if config:
        decoder = _object(config, "tokenizer_config.json", where).get("added_tokens_decoder") or {}
        found |= {int(token_id) for token_id, entry in decoder.items() if entry.get("special")}
    return found


def _entries(resources: Mapping[str, bytes], where: str) -> Iterator[tuple[int, str]]:
    tokenizer = _object(resources["tokenizer.json"], "tokenizer.json", where)
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    try:
        if isinstance(vocab, dict):
            yield from ((_id(token_id), text) for text, token_id in vocab.items())
        elif isinstance(vocab, list):
            yield from ((i, str(piece[0])) for i, piece in enumerate(vocab))
        else:
            raise ArtifactError(f"{where}: resource {quoted('tokenizer.json')} has no vocabulary")
        for entry in tokenizer.get("added_tokens") or ():
            yield _id(entry["id"]), str(entry["content"])
        config = resources.get("tokenizer_config.json")
        if config:
            decoder = _object(config, "tokenizer_config.json", where).get("added_tokens_decoder") or {}
            for token_id, entry in decoder.items():
                yield _id(int(token_id)), str(entry["content"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: the tokenizer's vocabulary cannot be read ({plain(error)})") from None


def _object(data: bytes, role: str, where: str) -> dict[str, Any]:
    check_resource(role, data, where)
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"token id {value!r}")
    return value
