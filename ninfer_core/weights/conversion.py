"""A checkpoint in another suit: everything ``ninfer convert`` decides, before a byte is written.

``uses`` stays empty: without one a parameter is read with 16-bit activations, which is all these formats ask for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ninfer_core.api import EncodedTensor, ModelFamily, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .directory import elements
from .imported import encode
from .layout_plan import NewArtifact, NewResource, NewTensor
from .resources import ROLES, check_resource, check_tokens
from .stored import Piece, StoredCheckpoint

KEEP = "keep"


def new_artifact(
    family: ModelFamily,
    checkpoint: StoredCheckpoint,
    formats: Registry[WeightFormat],
    *,
    weights: str = KEEP,
    name: str | None = None,
    origin: str = "",
) -> NewArtifact:
    """The artifact of a checkpoint that ``bind`` found complete.

    ``weights``: "keep", or a direct format for every matrix; vectors and whole numbers stay as they are. Parameters
    that are the same bytes (a tied head) share one object. ``origin`` is the source's name, for the record. Raises
    ArtifactError for resources that do not belong to the model.
    """
    config = msgspec.to_builtins(dict(checkpoint.config))
    if list(config.get("architectures") or ()) != [checkpoint.architecture]:
        # a reader finds the family by this name
        raise ArtifactError(f"{checkpoint.path}: models of the {family.name} family have no artifact form")
    objects: dict[Hashable, NewTensor] = {}
    bindings: dict[str, Any] = {}
    for parameter, shape in family.inventory(checkpoint.config).items():
        pieces = checkpoint.pieces(parameter, tuple(shape))
        stored = [_stored(objects, piece, formats, weights, checkpoint.path) for piece in pieces]
        if len(stored) == 1:
            bindings[parameter] = {"object": stored[0].id}
        else:
            parts = [{"object": tensor.id, "range": [0, elements(tensor.shape)]} for tensor in stored]
            bindings[parameter] = {"parts": parts}
    resources = _resources(checkpoint)
    public_name = name or checkpoint.name
    return NewArtifact(
        components={
            "text": {
                "config": config,
                "resources": {role: f"resource/text/{role}" for role in resources},
            }
        },
        resources=[NewResource(id=f"resource/text/{role}", data=data) for role, data in resources.items()],
        tensors=list(objects.values()),
        bindings=bindings,
        metadata={"name": public_name} if public_name else {},
        provenance={"converter": "ninfer-v3", "recipe": weights, "sources": {"text": {"path": origin}}},
    )


def _stored(
    objects: dict[Hashable, NewTensor], piece: Piece, formats: Registry[WeightFormat], weights: str, path: str
) -> NewTensor:
    """The object that holds a piece, made the first time it is met."""
    if piece.key not in objects:
        recoded = weights != KEEP and len(piece.shape) > 1 and piece.format not in (weights, "int32")
        form = formats[weights if recoded else piece.format]
        objects[piece.key] = NewTensor(
            id=f"weight/{len(objects):06d}",
            shape=piece.shape,
            format=form.name,
            layout=form.layout,
            bytes=form.encoded_bytes(piece.shape),
            read=partial(_read, piece, formats[piece.format], form if recoded else None, path),
        )
    return objects[piece.key]


def _read(piece: Piece, source: WeightFormat, target: WeightFormat | None, path: str) -> Sequence[memoryview]:
    found: EncodedTensor = piece.read()
    if target is not None:
        found = encode(target, source.decode(found), f"{path}: {piece.origin}")
    return [found.data.contiguous().numpy().data]


def _resources(checkpoint: StoredCheckpoint) -> Mapping[str, bytes]:
    """Role -> content, the known roles first and checked."""
    roles = sorted(checkpoint.resources(), key=lambda role: (ROLES.index(role) if role in ROLES else len(ROLES), role))
    found: dict[str, bytes] = {}
    for role in roles:
        data = checkpoint.resource(role)
        if data:
            check_resource(role, data, f"{checkpoint.path}: text")
            found[role] = data
    vocab_size = checkpoint.config.get("vocab_size")
    if "tokenizer.json" in found and type(vocab_size) is int:
        check_tokens(found, vocab_size, checkpoint.path)
    return found
