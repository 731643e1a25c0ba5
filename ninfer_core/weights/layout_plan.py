"""Where everything of a new artifact goes: object offsets, the directory's bytes, the cut into files.

Algorithm: ``spec/artifact.md`` §9, steps 1-4.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_core.errors import ArtifactError

from .container import ALIGNMENT, HEADER_BYTES, RAW, aligned

TENSOR_ALIGNMENT = 256  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NewTensor:
    """``read`` gives exactly ``bytes`` bytes in one or more buffers; it is called once, when its turn comes."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    bytes: int
    read: Callable[[], Sequence[memoryview]]
    divisors: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class NewResource:
    id: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NewArtifact:
    """Components, bindings and uses as the directory spells them; resources are stored before tensors."""

    components: Mapping[str, Any]
    resources: Sequence[NewResource]
    tensors: Sequence[NewTensor]
    bindings: Mapping[str, Any]
    uses: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPlan:
    directory: bytes  # JSON padded with spaces; header and directory end on a 4096-byte boundary
    slices: tuple[int, ...]  # payload bytes of each file
    offsets: tuple[int, ...]  # of the resources, then of the tensors

    def file_size(self, index: int) -> int:
        start = HEADER_BYTES + len(self.directory) if index == 0 else ALIGNMENT
        return start + self.slices[index]


def plan_layout(new: NewArtifact, entry_name: str, max_file_bytes: int | None = None) -> LayoutPlan:
    """The whole layout; ArtifactError when ``max_file_bytes`` cannot hold the directory and one page of payload."""
    offsets, payload = place_objects(new)

    def encode(slices: Sequence[int]) -> bytes:
        return encode_directory(new, offsets, slices, entry_name)

    reserve = aligned(HEADER_BYTES + len(encode([payload]))) - HEADER_BYTES
    while True:
        slices = cut(payload, HEADER_BYTES + reserve, max_file_bytes)
        text = encode(slices)
        if len(text) <= reserve:
            return LayoutPlan(directory=text.ljust(reserve, b" "), slices=tuple(slices), offsets=tuple(offsets))
        # part names made it longer
        reserve = aligned(HEADER_BYTES + len(text)) - HEADER_BYTES


def place_objects(new: NewArtifact) -> tuple[list[int], int]:
    """Payload offsets of resources and tensors, and the end of the last."""
    cursor, offsets = 0, []
    for resource in new.resources:
        offsets.append(cursor)
        cursor += len(resource.data)
    for tensor in new.tensors:
        cursor = aligned(cursor, TENSOR_ALIGNMENT)
        offsets.append(cursor)
        cursor += tensor.bytes
    return offsets, cursor


def cut(payload: int, start: int, limit: int | None) -> list[int]:
    """Payload bytes of each file when the entry's slice begins at ``start`` and no file may exceed ``limit`` bytes."""
    if limit is None or start + payload <= limit:
        return [payload]
    first = (limit - start) // ALIGNMENT * ALIGNMENT
    other = (limit - ALIGNMENT) // ALIGNMENT * ALIGNMENT
    if first <= 0 or other <= 0:
        raise ArtifactError(
            f"maximum file size cannot hold the directory ({limit} bytes; it needs {start + ALIGNMENT})"
        )
    slices, left = [first], payload - first
    while left > 0:
        slices.append(min(other, left))
        left -= slices[-1]
    return slices


def part_name(entry_name: str, index: int) -> str:
    return f"{entry_name}.part-{index:04d}"


def encode_directory(new: NewArtifact, offsets: Sequence[int], slices: Sequence[int], entry_name: str) -> bytes:
    """The directory as UTF-8 JSON without spaces, not yet padded."""
    objects: list[dict[str, Any]] = []
    for resource, offset in zip(new.resources, offsets, strict=False):
        record: dict[str, Any] = {"id": resource.id, "kind": "resource", "encoding": RAW}
        objects.append({**record, "offset": offset, "bytes": len(resource.data)})
    for tensor, offset in zip(new.tensors, offsets[len(new.resources) :], strict=True):
        record = {"id": tensor.id, "kind": "tensor", "shape": tensor.shape, "format": tensor.format}
        record |= {"layout": tensor.layout, "offset": offset, "bytes": tensor.bytes}
        objects.append({**record, "divisors": tensor.divisors} if tensor.divisors > 1 else record)
    root: dict[str, Any] = {
        "components": new.components,
        "objects": objects,
        "bindings": new.bindings,
        "uses": new.uses,
        "files": [
            {"path": part_name(entry_name, i) if i else None, "payload_bytes": size} for i, size in enumerate(slices)
        ],
    }
    if new.metadata:
        root["metadata"] = new.metadata
    if new.provenance:
        root["provenance"] = new.provenance
    return json.dumps(root, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
