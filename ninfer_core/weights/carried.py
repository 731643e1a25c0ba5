"""What a conversion takes over from an artifact as it stands: Uses with their auxiliaries, and the proposal head."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, MutableMapping
from functools import partial
from typing import Any

from .artifact import ArtifactCheckpoint
from .container import Container
from .directory import Binding, Use
from .formats import LAYOUT as DIRECT
from .layout_plan import NewTensor
from .proposal import HEAD, TOKEN_IDS, stated_head

Shape = tuple[int, ...]


def use(checkpoint: ArtifactCheckpoint, found: Use, objects: MutableMapping[Hashable, NewTensor]) -> dict[str, Any]:
    """The Use as a directory spells it; vectors it refers to join ``objects``."""
    record: dict[str, Any] = {"parameter": found.parameter, "input": found.input}
    if found.policy is not None:
        record["activation_policy"] = found.policy
    if found.auxiliaries:
        record["auxiliaries"] = {
            role: _binding(checkpoint.container, binding, objects) for role, binding in found.auxiliaries.items()
        }
    return record


def columns(own: tuple[int, ...], objects: MutableMapping[Hashable, NewTensor]) -> dict[str, Any]:
    """The binding of an ``input_columns`` vector, which joins ``objects`` the first time it is met."""
    key = ("auxiliary", "columns", own)
    if key not in objects:
        words = array("i", own)
        objects[key] = NewTensor(
            id=_next_id(objects),
            shape=(len(own),),
            format="int32",
            layout=DIRECT,
            bytes=len(words) * words.itemsize,
            read=lambda: [memoryview(words.tobytes())],
        )
    return {"object": objects[key].id}


def proposal(checkpoint: ArtifactCheckpoint) -> tuple[dict[str, Shape], Mapping[str, Any]]:
    """The parameters of a stored proposal head, and what the text component says of it; nothing where there is none."""
    head = stated_head(checkpoint)
    if head is None:
        return {}, {}
    domain = checkpoint.container.directory.components["text"].proposal
    parameters: dict[str, Shape] = {HEAD: (head.rows, head.hidden)}
    if head.indexed:
        parameters[TOKEN_IDS] = (head.rows,)
    return parameters, {"proposal": dict(domain or {})}


def _binding(container: Container, binding: Binding, objects: MutableMapping[Hashable, NewTensor]) -> dict[str, Any]:
    parts = []
    for part in binding.parts:
        key = ("auxiliary", part.object)
        if key not in objects:
            item = container.tensor_object(part.object)
            objects[key] = NewTensor(
                id=_next_id(objects),
                shape=item.shape,
                format=item.format,
                layout=item.layout,
                bytes=item.bytes,
                read=partial(_read, container, part.object),
                divisors=item.divisors,
            )
        parts.append({"object": objects[key].id, "range": [part.begin, part.end]})
    return {"parts": parts}


def _next_id(objects: Mapping[Hashable, NewTensor]) -> str:
    return f"auxiliary/{len(objects):06d}"


def _read(container: Container, name: str) -> list[memoryview]:
    return [container.object_bytes(name)]
