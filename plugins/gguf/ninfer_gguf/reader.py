"""The GGUF container: header, metadata and tensor directory (``spec/artifact.md`` §14.3).

Every count, length and offset is checked against the file before it is used, so a hostile file is refused in one line
and can neither allocate nor loop beyond its own size.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ninfer_core.api import ArtifactError

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
MAX_KEYS, MAX_TENSORS, MAX_ITEMS = 1 << 16, 1 << 20, 1 << 24
MAX_NAME_BYTES = 1 << 16

# ggml type -> (our format, values a block, bytes a block)
TYPES = {
    0: ("fp32", 1, 4),
    1: ("fp16", 1, 2),
    2: ("gguf_q4_0", 32, 18),
    3: ("gguf_q4_1", 32, 20),
    6: ("gguf_q5_0", 32, 22),
    7: ("gguf_q5_1", 32, 24),
    8: ("gguf_q8_0", 32, 34),
    12: ("gguf_q4_k", 256, 144),
    14: ("gguf_q6_k", 256, 210),
    28: ("fp64", 1, 8),
    30: ("bf16", 1, 2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """One tensor: ``shape`` in C order, ``offset`` in bytes from the start of the file."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GGUF:
    """A parsed file; ``mapping`` holds it all, copy on write."""

    path: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    mapping: mmap.mmap


def read(path: str) -> GGUF:
    """Parse and check one file; ArtifactError names what is wrong and where."""
    try:
        with open(path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError:
        raise ArtifactError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None
    return Parser(path, mapping).parse()


class Parser:
    """A cursor over the file."""

    def __init__(self, path: str, mapping: mmap.mmap) -> None:
        self.path, self.mapping = path, mapping
        self.size, self.at = len(mapping), 0
        self.what = "header"

    def fail(self, message: str) -> NoReturn:
        raise ArtifactError(f"{self.path}: {message}")

    def take(self, count: int) -> int:
        """Move over ``count`` bytes; gives where they start."""
        start = self.at
        if count > self.size - start:
            self.fail(f"truncated: {self.what} at byte {start} needs {count} more bytes, {self.size - start} are left")
        self.at = start + count
        return start

    def scalar(self, layout: str) -> Any:
        start = self.take(struct.calcsize(layout))
        return struct.unpack_from(layout, self.mapping, start)[0]

    def string(self, limit: int | None = None) -> str:
        length = self.scalar("<Q")
        if limit is not None and length > limit:
            self.fail(f"{self.what} has a name of {length} bytes; at most {limit} are accepted")
        start = self.take(length)
        try:
            return self.mapping[start : self.at].decode()
        except UnicodeDecodeError:
            self.fail(f"{self.what} at byte {start} is not UTF-8")

    def parse(self) -> GGUF:
        tensor_count, key_count = self.header()
        metadata: dict[str, Any] = {}
        for index in range(key_count):
            self.what = f"metadata entry {index} of {key_count}"
            key = self.string(MAX_NAME_BYTES)
            if key in metadata:
                self.fail(f"metadata key {key!r} occurs twice")
            self.what = f"metadata {key!r}"
            metadata[key] = self.value(self.scalar("<I"))
        if metadata.get("split.count", 1) not in (0, 1):
            self.fail(f"one of {metadata['split.count']} split files; join them first (llama-gguf-split --merge)")
        return GGUF(
            path=self.path, metadata=metadata, tensors=self.directory(metadata, tensor_count), mapping=self.mapping
        )

    def header(self) -> tuple[int, int]:
        magic, version = self.mapping[self.take(4) : self.at], self.scalar("<I")
        if magic == b"FUGG" or (magic == b"GGUF" and version & 0xFFFF == 0 and version):
            self.fail("a big-endian GGUF file; only little-endian ones can be read")
        if magic != b"GGUF":
            self.fail(f"not a GGUF file: it begins with {magic!r}")
        if version not in (2, 3):
            self.fail(f"GGUF version {version}; versions 2 and 3 can be read")
        tensor_count, key_count = self.scalar("<Q"), self.scalar("<Q")
        if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
            self.fail(f"damaged header: {tensor_count} tensors and {key_count} metadata entries")
        return tensor_count, key_count

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            self.fail(f"{self.what} has value type {kind}, which does not exist")
        return self.scalar(SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > MAX_ITEMS:
            self.fail(f"{self.what} has {count} items; at most {MAX_ITEMS} are accepted")
        if kind == STRING:
            start = self.take(8 * count)  # every string has a length: refuse now what cannot be there
            self.at = start
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            self.fail(f"{self.what} is an array of value type {kind}, which cannot be read")
        dtype = np.dtype("bool" if kind == 7 else SCALARS[kind])
        start = self.take(count * dtype.itemsize)
        return list(np.frombuffer(self.mapping, dtype, count, start).tolist())

    def directory(self, metadata: Mapping[str, Any], count: int) -> dict[str, TensorEntry]:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            self.fail(f"general.alignment is {alignment!r}; a power of two is expected")
        entries = []
        for index in range(count):
            self.what = f"tensor entry {index} of {count}"
            entries.append(self.entry(alignment))
        base = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        for entry in entries:
            if entry.name in tensors:
                self.fail(f"tensor {entry.name!r} occurs twice")
            begin = base + entry.offset
            if begin + entry.size > self.size:
                self.fail(
                    f"truncated: tensor {entry.name!r} ends at byte {begin + entry.size}, the file at {self.size}"
                )
            tensors[entry.name] = TensorEntry(
                name=entry.name, format=entry.format, shape=entry.shape, offset=begin, size=entry.size
            )
        self.no_overlap(tensors)
        return tensors

    def entry(self, alignment: int) -> TensorEntry:
        """One directory entry; its offset still counts from the start of the data."""
        name = self.string(MAX_NAME_BYTES)
        self.what = f"tensor {name!r}"
        rank = self.scalar("<I")
        if not 1 <= rank <= 4:
            self.fail(f"{self.what} has rank {rank}; 1 to 4 are possible")
        shape = tuple(self.scalar("<Q") for _ in range(rank))[::-1]
        kind, offset = self.scalar("<I"), self.scalar("<Q")
        if kind not in TYPES:
            known = ", ".join(format.removeprefix("gguf_").upper() for format, _, _ in TYPES.values())
            self.fail(f"{self.what} is stored as {type_name(kind)}, which cannot be read; known: {known}")
        format, values, block_bytes = TYPES[kind]
        elements = math.prod(shape)
        if not 0 < elements < 1 << 62:
            self.fail(f"{self.what} has the impossible shape {list(shape)}")
        if shape[-1] % values:
            self.fail(f"{self.what} has rows of {shape[-1]} values, not a whole number of blocks of {values}")
        if offset % alignment:
            self.fail(f"{self.what} begins at {offset}, which is not a multiple of the alignment {alignment}")
        return TensorEntry(name=name, format=format, shape=shape, offset=offset, size=elements // values * block_bytes)

    def no_overlap(self, tensors: Mapping[str, TensorEntry]) -> None:
        end, before = 0, ""
        for entry in sorted(tensors.values(), key=lambda entry: entry.offset):
            if entry.offset < end:
                self.fail(f"tensors {before!r} and {entry.name!r} overlap at byte {entry.offset}")
            end, before = entry.offset + entry.size, entry.name


def type_name(kind: int) -> str:
    """What ggml calls a tensor type."""
    from gguf import GGMLQuantizationType

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return f"type {kind}"
