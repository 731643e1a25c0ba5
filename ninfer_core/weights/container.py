"""The ``.ninfer`` container, version 3: header, directory, and byte ranges of one payload over one or more files.

Framing: ``spec/artifact.md`` §2; refusals: §20 rows 1-6, 14, 29-32. Opening maps the entry file and reads its
directory; a part file is opened when something in it is asked for, so one that is not needed may be absent. There is no
checksum.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate
from types import TracebackType

from ninfer_core.errors import ArtifactError

from .directory import Directory, ResourceObject, TensorObject
from .directory_parser import parse_directory
from .mapped import MappedFile, reason
from .names import plain, quoted

MAGIC = b"NINFER\x00\x03"
PART_MAGIC = b"NINPRT\x00\x03"
HEADER_BYTES = 32
ALIGNMENT = 4096  # of payload slices in their files, in bytes
MAX_DIRECTORY_BYTES = 1 << 30
RAW = "raw_bytes_v1"


class Container:
    """An open artifact. ``directory`` is fixed; ranges are views of the mapped files wherever they lie in one file."""

    def __init__(self, path: str) -> None:
        """Open and check the entry file; ArtifactError with what is wrong."""
        self.path = path
        entry = MappedFile(path)
        try:
            directory_bytes = check_header(entry.view, path)
            self.artifact_id = bytes(entry.view[16:32])
            text = bytes(entry.view[HEADER_BYTES : HEADER_BYTES + directory_bytes])
            self.directory: Directory = parse_directory(text, path, entry_name=os.path.basename(path))
            start = aligned(HEADER_BYTES + directory_bytes)
            expected = start + self.directory.files[0].payload_bytes
            if entry.size != expected:
                raise ArtifactError(
                    f"{path}: file has {entry.size} bytes, directory requires {expected} "
                    "(truncated or damaged download?)"
                )
        except BaseException:
            entry.close()
            raise
        sizes = [file.payload_bytes for file in self.directory.files]
        self._firsts = [0, *accumulate(sizes)]  # payload offset of each file's slice, and the end
        self._slices: dict[int, memoryview] = {0: entry.view[start:]}
        self._files = [entry]

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def payload_bytes(self) -> int:
        return self._firsts[-1]

    def read_range(self, offset: int, size: int, *, holds: str = "the range") -> memoryview:
        """Payload bytes ``[offset, offset + size)``: a view, or a copy when the range straddles files.

        ``holds`` names what is read, for the message about a missing part.
        """
        if offset < 0 or size < 0 or offset + size > self.payload_bytes:
            raise ArtifactError(f"{self.path}: cannot read {size} bytes at payload offset {offset}")
        if size == 0:
            return memoryview(b"")
        first = bisect_right(self._firsts, offset) - 1
        last = bisect_right(self._firsts, offset + size - 1) - 1
        # every part is checked before anything is allocated
        slices = [self._slice(i, holds) for i in range(first, last + 1)]
        if first == last:
            begin = offset - self._firsts[first]
            return slices[0][begin : begin + size]
        joined = bytearray(size)
        for i, part in enumerate(slices, first):
            a, b = max(offset, self._firsts[i]), min(offset + size, self._firsts[i + 1])
            joined[a - offset : b - offset] = part[a - self._firsts[i] : b - self._firsts[i]]
        return memoryview(joined)

    def object_bytes(self, name: str) -> memoryview:
        """The stored bytes of an object, tensor or resource."""
        item = self.directory.objects[name]
        return self.read_range(item.offset, item.bytes, holds=plain(name))

    def tensor_object(self, name: str) -> TensorObject:
        """The directory's entry of a tensor; bindings name no other objects."""
        item = self.directory.objects[name]
        assert isinstance(item, TensorObject)
        return item

    def resource(self, component: str, role: str) -> bytes | None:
        """A resource's content, or None when the component is absent or lists no such role."""
        found = self.directory.components.get(component)
        if found is None or role not in found.resources:
            return None
        item = self.directory.objects[found.resources[role]]
        assert isinstance(item, ResourceObject)
        if item.encoding != RAW:
            raise ArtifactError(
                f"{self.path}: {plain(item.id)}: resource encoding {quoted(item.encoding)} is not supported"
            )
        return bytes(self.object_bytes(item.id))

    def damaged_parts(self) -> list[str]:
        """What is wrong with the part files, one line each."""
        problems = []
        for first in self._firsts[1:-1]:
            try:
                self.read_range(first, 1)
            except ArtifactError as error:
                problems.append(str(error))
        return problems

    def drop_pages(self) -> None:
        """Give back the memory of what was read so far; views stay readable."""
        for file in self._files:
            file.drop_pages()

    def close(self) -> None:
        """Give the maps back; tensors already handed out stay readable."""
        for view in self._slices.values():
            view.release()
        for file in self._files:
            file.close()
        self._slices, self._files = {}, []

    def _slice(self, index: int, holds: str) -> memoryview:
        """The payload slice of one file, opened and checked the first time."""
        if index not in self._slices:
            self._slices[index] = self._open_part(index, holds)
        return self._slices[index]

    def _open_part(self, index: int, holds: str) -> memoryview:
        entry = self.directory.files[index]
        path = os.path.join(os.path.dirname(self.path), entry.path or "")
        if not os.path.exists(path):
            raise ArtifactError(f"{self.path}: part {quoted(entry.path)} (index {index}) is missing; it holds {holds}")
        part = MappedFile(path)
        try:
            self._check_part(part, index)
        except BaseException:
            part.close()
            raise
        self._files.append(part)
        return part.view[ALIGNMENT:]

    def _check_part(self, part: MappedFile, index: int) -> None:
        head, shown = bytes(part.view[:HEADER_BYTES]), plain(part.path)
        if head[:8] != PART_MAGIC:
            raise ArtifactError(f"{shown}: not a part of a NInfer artifact")
        if (stated := int.from_bytes(head[8:16], "little")) != index:
            raise ArtifactError(f"{shown}: part index {stated}, expected {index}")
        if head[16:32] != self.artifact_id:
            raise ArtifactError(
                f"{shown}: belongs to another artifact (id {head[16:32].hex()}, expected {self.artifact_id.hex()})"
            )
        expected = ALIGNMENT + self.directory.files[index].payload_bytes
        if part.size != expected:
            raise ArtifactError(f"{shown}: {part.size} bytes, expected {expected}")


def aligned(offset: int, to: int = ALIGNMENT) -> int:
    """``offset`` rounded up to a multiple of ``to``."""
    return -(-offset // to) * to


def check_header(view: memoryview, path: str) -> int:
    """The length of the directory in bytes; ArtifactError (rows 1-6) when this is no version 3 entry file."""
    head, size = bytes(view[:HEADER_BYTES]), len(view)
    if size < HEADER_BYTES:
        raise ArtifactError(f"{path}: not a NInfer artifact ({size} bytes; the v3 header needs {HEADER_BYTES})")
    if head[:8] == PART_MAGIC:
        raise ArtifactError(f"{path}: this is a continuation part; open its entry file")
    if head[:7] != MAGIC[:7]:
        raise ArtifactError(f"{path}: not a NInfer artifact")
    version = head[7]
    if version in (1, 2):
        raise ArtifactError(f"{path}: container version {version}; upgrade it to version 3 first")
    if version != MAGIC[7]:
        raise ArtifactError(f"{path}: unsupported container version {version} (this reader supports 3)")
    length = int.from_bytes(head[8:16], "little")
    if not 0 < length <= min(size - HEADER_BYTES, MAX_DIRECTORY_BYTES):
        raise ArtifactError(f"{path}: directory length {length} is impossible for a file of {size} bytes")
    return length


def looks_like_artifact(path: str) -> bool:
    """Whether a regular file begins like an artifact of any version or one of its parts, or is named like one."""
    if not os.path.isfile(path):
        return False
    if path.endswith(".ninfer"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(6) in (MAGIC[:6], PART_MAGIC[:6])
    except OSError as error:
        raise ArtifactError(f"{path}: {reason(error)}") from None
