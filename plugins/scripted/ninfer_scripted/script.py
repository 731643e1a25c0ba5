"""The script file: what it may hold, and its replies as tokens."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ninfer_core.api import ArtifactError, Checkpoint, Source

from . import ARCHITECTURE, PREFIX
from .tokenizer import IM_END, ScriptedTokenizer, new_pieces

RESOURCE = "script.json"
MAX_BYTES = 64 << 20

Milliseconds = Annotated[float, Meta(ge=0, le=600_000)]
Index = Annotated[int, Meta(ge=0, le=1 << 30)]
Drafts = Annotated[list[Annotated[int, Meta(ge=0, le=62)]], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1)]
Piece = Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(min_length=1)]


class DefaultReply(Struct, forbid_unknown_fields=True):
    """What is said, and how. Exactly one of ``text``, ``by_turn``, ``pieces`` and ``pieces_bytes``."""

    text: str | None = None
    by_turn: Annotated[list[str], Meta(min_length=1)] | None = None
    pieces: Annotated[list[Text], Meta(min_length=1)] | None = None
    pieces_bytes: Annotated[list[Piece], Meta(min_length=1)] | None = None
    finish: Literal["stop", "never"] = "stop"
    delay_ms: Milliseconds | None = None
    logits: dict[str, Annotated[float, Meta(ge=-1e4, le=1e4)]] = {}
    draft: Drafts | None = None


class MatchedReply(DefaultReply, forbid_unknown_fields=True, kw_only=True):
    """A reply to prompts that hold ``match``; only these may fail, as warm-up plays the default reply."""

    match: Text
    fail_at: Index | None = None
    nan_at: Index | None = None


class ScriptFile(Struct, forbid_unknown_fields=True):
    name: Text = "scripted"
    replies: list[MatchedReply] = []
    default: DefaultReply = msgspec.field(default_factory=lambda: DefaultReply(text="OK."))
    delay_ms: Milliseconds = 0.0
    prefill_delay_ms: Milliseconds = 0.0
    draft: Drafts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One reply, encoded. ``turns[i]`` answers a prompt with ``i`` assistant turns; the last one also all after it."""

    match: str | None
    turns: tuple[tuple[int, ...], ...]  # without the stop token
    stops: bool  # the stop token follows; otherwise the last token repeats
    delay_seconds: float  # per decode round
    fail_at: int | None
    nan_at: int | None
    logits: Mapping[int, float]
    draft: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    name: str
    replies: tuple[Reply, ...]
    default: Reply
    prefill_delay_seconds: float
    tokenizer: ScriptedTokenizer


def open_source(path: str) -> Source:
    """Read and check ``scripted:FILE.json``; ArtifactError (one line) names what is wrong and where."""
    try:
        # without blocking: a pipe nobody writes to would hold the start for ever
        with open(os.open(path.removeprefix(PREFIX), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ArtifactError(f"{path!r}: is not a regular file")
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise ArtifactError(f"{path!r}: cannot be read ({reason})") from None
    script = parse(data, path)
    config = {"vocab_size": script.tokenizer.size}
    return Source(
        kind="scripted",
        path=path,
        architecture=ARCHITECTURE,
        config=config,
        resources={RESOURCE: data},
        name=script.name,
    )


def script_of(checkpoint: Checkpoint) -> Script:
    """The script a checkpoint carries."""
    data = checkpoint.resource(RESOURCE)
    if data is None:
        raise ArtifactError(f"{checkpoint.path}: holds no script; serve the JSON file itself as {PREFIX}FILE.json")
    return parse(data, checkpoint.path)


def parse(data: bytes, path: str) -> Script:
    """Check and encode a script; ArtifactError names the place in it."""
    if len(data) > MAX_BYTES:
        raise ArtifactError(f"{path}: longer than {MAX_BYTES >> 20} MiB")
    try:
        file = msgspec.json.decode(data, type=ScriptFile)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{path}: {explain(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path}: not JSON: {' '.join(str(error).split())}") from None
    read = {f"$.replies[{i}]": reply for i, reply in enumerate(file.replies)} | {"$.default": file.default}
    for place, reply in read.items():
        if problem := shape_problem(reply):
            raise ArtifactError(f"{path}: {problem} at {place}")
    tokenizer = ScriptedTokenizer(list(dict.fromkeys(part for reply in read.values() for part in pieces_of(reply))))
    encoded = [encode(reply, file, tokenizer, f"{path}: at {place}") for place, reply in read.items()]
    return Script(
        name=file.name,
        replies=tuple(encoded[:-1]),
        default=encoded[-1],
        prefill_delay_seconds=file.prefill_delay_ms / 1e3,
        tokenizer=tokenizer,
    )


def encode(reply: DefaultReply, file: ScriptFile, tokenizer: ScriptedTokenizer, place: str) -> Reply:
    """A reply as tokens; ArtifactError for what only shows then."""
    turns = turns_of(reply, tokenizer)
    matched = reply if isinstance(reply, MatchedReply) else None
    if reply.finish == "never" and not all(turns):
        raise ArtifactError(f'{place}: finish "never" repeats the last token, but the reply is empty')
    faults = {"fail_at": matched.fail_at, "nan_at": matched.nan_at} if matched else {}
    longest = max(len(turn) for turn in turns)
    for key, index in faults.items():
        if index is not None and index > longest and reply.finish == "stop":
            raise ArtifactError(f"{place}: {key} {index} is beyond the stop token, which is token {longest}")
    draft = reply.draft if reply.draft is not None else file.draft
    return Reply(
        match=matched.match if matched else None,
        turns=turns,
        stops=reply.finish == "stop",
        delay_seconds=(file.delay_ms if reply.delay_ms is None else reply.delay_ms) / 1e3,
        fail_at=faults.get("fail_at"),
        nan_at=faults.get("nan_at"),
        logits={one_token(text, tokenizer, place): value for text, value in reply.logits.items()},
        draft=tuple(draft or ()),
    )


def shape_problem(reply: DefaultReply) -> str | None:
    keys = ("text", "by_turn", "pieces", "pieces_bytes")
    given = [key for key in keys if getattr(reply, key) is not None]
    if len(given) == 1:
        return None
    return f"one of {', '.join(keys)} is needed, {' and '.join(given) or 'none'} given"


def pieces_of(reply: DefaultReply) -> list[bytes]:
    pieces = [piece.encode() for piece in reply.pieces or ()] + [bytes(piece) for piece in reply.pieces_bytes or ()]
    return [part for piece in pieces for part in new_pieces(piece)]


def turns_of(reply: DefaultReply, tokenizer: ScriptedTokenizer) -> tuple[tuple[int, ...], ...]:
    if reply.text is not None or reply.by_turn is not None:
        texts = [reply.text] if reply.text is not None else reply.by_turn or []
        return tuple(tuple(tokenizer.encode_with_control(text)) for text in texts)
    pieces = [piece.encode() for piece in reply.pieces or ()] + [bytes(piece) for piece in reply.pieces_bytes or ()]
    return (tuple(token for piece in pieces for token in tokenizer.piece_tokens(piece)),)


def one_token(text: str, tokenizer: ScriptedTokenizer, place: str) -> int:
    tokens = tokenizer.piece_tokens(text.encode())
    if len(tokens) != 1:
        raise ArtifactError(
            f"{place}: logits names {text!r}, which is not one token; one is a single byte, a control token such as "
            f"{IM_END} or a piece of this script"
        )
    return tokens[0]


def explain(message: str) -> str:
    """msgspec's message; an unknown key also says which are known."""
    found = re.fullmatch(r"Object contains unknown field `(.*?)`(?: - at `(\$.*)`)?", message, re.DOTALL)
    if not found:
        return " ".join(message.split())
    key, place = found[1], found[2] or "$"
    struct = {"$": ScriptFile, "$.default": DefaultReply}.get(place, MatchedReply)
    return f"unknown key {key!r} at {place}; known: {', '.join(struct.__struct_fields__)}"
