"""``tokenizer.json`` made ready: added tokens completed and checked, and a twin that knows none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ninfer_core.errors import ArtifactError

Document = dict[str, Any]


def read(tokenizer_json: bytes, tokenizer_config: bytes | None) -> Document:
    """The document with the added tokens of ``tokenizer_config.json`` completed; ArtifactError when it is not one."""
    document = _object(tokenizer_json, "tokenizer.json")
    if not isinstance(document.get("model"), dict):
        raise ArtifactError("tokenizer.json: no object 'model'; expected a tokenizer of the tokenizers library")
    added = document.get("added_tokens") or []
    if not isinstance(added, list) or not all(_is_token(entry) for entry in added):
        raise ArtifactError("tokenizer.json: 'added_tokens' must be a list of objects with 'id' and 'content'")
    by_id = {entry["id"]: entry for entry in added}
    for entry in _configured(tokenizer_config):
        known = by_id.setdefault(entry["id"], entry)
        if known["content"] != entry["content"]:
            raise ArtifactError(
                f"tokenizer_config.json: added_tokens_decoder[{entry['id']}] is {entry['content']!r}, "
                f"but tokenizer.json has {known['content']!r} under that id"
            )
    document["added_tokens"] = [_plain(by_id[token_id]) for token_id in sorted(by_id)]
    document["truncation"] = document["padding"] = None
    return document


def control_tokens(document: Document) -> dict[str, Document]:
    """The added tokens by spelling, but for those that only spell white space: these are how the model writes it."""
    return {
        entry["content"]: entry
        for entry in document["added_tokens"]
        if entry["special"] or entry["content"].replace("▁", " ").strip()
    }


def has_flagged_tokens(document: Document) -> bool:
    """Whether an added token is matched otherwise than as it is spelled, wherever that is."""
    flags = ("single_word", "lstrip", "rstrip")
    return any(entry[flag] for entry in document["added_tokens"] for flag in flags)


def without_control(document: Document, control: dict[str, Document]) -> Document:
    """A document whose tokenizer writes a control token's spelling with ordinary tokens.

    Besides leaving the added tokens out, the model must not reach them by itself: a BPE model through a merge or a
    whole-word look-up, a Unigram model through a good score.
    """
    spelled = set(control) | {to_byte_level(spelling) for spelling in control}
    model = dict(document["model"])
    if "merges" in model:
        unknown = model.get("unk_token")
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, spelled)]
        kept = {name: number for name, number in model["vocab"].items() if name not in spelled or name == unknown}
        # what is left of the added tokens has its number from the vocabulary, so that none is renumbered
        kept.update({e["content"]: e["id"] for e in document["added_tokens"] if e["content"] not in control})
        model["vocab"] = kept
    elif isinstance(model.get("vocab"), list):
        worst = min((score for _, score in model["vocab"]), default=0.0) - 1e6
        model["vocab"] = [[name, worst if name in spelled else score] for name, score in model["vocab"]]
    rest = [entry for entry in document["added_tokens"] if entry["content"] not in control]
    return {**document, "model": model, "added_tokens": rest}


def continuing(document: Document) -> Document | None:
    """A document for text that does not begin the prompt, where it differs: no word-start space is put before it."""
    later = _without_first_space(document.get("pre_tokenizer"))
    return None if later == document.get("pre_tokenizer") else {**document, "pre_tokenizer": later}


def kind(document: Document) -> str:
    """How tokens spell bytes: "byte_level" (the GPT-2 alphabet) or "sentencepiece" (``▁`` and ``<0xXX>``)."""
    steps = {name for part in ("pre_tokenizer", "decoder", "normalizer") for name in _steps(document.get(part))}
    model = document["model"]
    if model.get("type", "BPE") in ("BPE", "Unigram"):
        if "ByteLevel" in steps:
            return "byte_level"
        if model.get("byte_fallback") or "Metaspace" in steps or "▁" in steps:
            return "sentencepiece"
    raise ArtifactError(
        f"tokenizer.json: model {model.get('type')!r} with decoder {_steps_text(document)} is not supported; "
        "byte-level BPE and SentencePiece-style BPE or Unigram are"
    )


BYTE_OF = {chr(b): b for b in (*range(33, 127), *range(161, 173), *range(174, 256))}
BYTE_OF |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in set(BYTE_OF.values()))}
"""The byte each character of the byte-level alphabet stands for."""
CHAR_OF = {b: char for char, b in BYTE_OF.items()}


def to_byte_level(text: str) -> str:
    return "".join(CHAR_OF[b] for b in text.encode("utf-8", "surrogatepass"))


def _object(data: bytes, name: str) -> Document:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ArtifactError(f"{name}: not valid JSON") from None
    if not isinstance(document, dict):
        raise ArtifactError(f"{name}: expected a JSON object")
    return document


def _configured(tokenizer_config: bytes | None) -> Iterator[Document]:
    if tokenizer_config is None:
        return
    table = _object(tokenizer_config, "tokenizer_config.json").get("added_tokens_decoder") or {}
    if not isinstance(table, dict):
        raise ArtifactError("tokenizer_config.json: 'added_tokens_decoder' must be an object")
    for number, value in table.items():
        entry = {**value, "id": int(number)} if isinstance(value, dict) and number.isdecimal() else None
        if not _is_token(entry):
            raise ArtifactError(
                f"tokenizer_config.json: added_tokens_decoder[{number!r}] must map an id to an object with 'content'"
            )
        assert entry is not None
        yield entry


def _is_token(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    number, content = entry.get("id"), entry.get("content")
    return type(number) is int and number >= 0 and isinstance(content, str) and content != ""


def _plain(entry: Document) -> Document:
    """Matched as it is spelled, never as the normalizer rewrites it: NFKC must not turn text into a token."""
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "special")}
    return {"id": entry["id"], "content": entry["content"], **flags, "normalized": False}


def _touches(merge: Any, spelled: set[str]) -> bool:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
    return left + right in spelled or left in spelled or right in spelled


def _without_first_space(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
        return {**part, "prepend_scheme": "never"}
    if isinstance(part.get("pretokenizers"), list):
        return {**part, "pretokenizers": [_without_first_space(step) for step in part["pretokenizers"]]}
    return part


def _steps(part: Any) -> Iterator[str]:
    """The names of a component and of those inside it; a replacement between ``▁`` and a space counts as ``▁``."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        if part.get("type") == "Replace" and "▁" in (part.get("content"), (part.get("pattern") or {}).get("String")):
            yield "▁"
        for inner in ("pretokenizers", "decoders", "normalizers"):
            for step in part.get(inner) or ():
                yield from _steps(step)


def _steps_text(document: Document) -> str:
    return "+".join(_steps(document.get("decoder"))) or "none"
