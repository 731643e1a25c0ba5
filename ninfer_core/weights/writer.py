"""Writes ``.ninfer`` artifacts, container version 3 (``spec/artifact.md`` §9): all of one, or nothing.

Every file is written beside its target and appears when all are whole: parts first, the entry last. The directory
passes the reader's own checks before the first byte is written.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from ninfer_core.errors import ArtifactError

from .container import ALIGNMENT, MAGIC, PART_MAGIC
from .directory_parser import parse_directory
from .layout_plan import LayoutPlan, NewArtifact, part_name, plan_layout
from .names import plain
from .staged import StagedFile


def write_artifact(
    path: str | os.PathLike[str],
    new: NewArtifact,
    *,
    max_file_bytes: int | None = None,
    replace: bool = False,
    artifact_id: bytes | None = None,
    wrote: Callable[[int], None] = lambda size: None,
) -> tuple[Path, ...]:
    """Write the artifact and return its files, the entry first. ``wrote`` is told of each tensor's bytes.

    Raises ArtifactError for an existing target without ``replace``, a limit too small, a full disk, or an object whose
    bytes are not what it promised. Whatever ends the work early, an interrupt included, leaves nothing behind.
    """
    entry = Path(path)
    plan = plan_layout(new, entry.name, max_file_bytes)
    parse_directory(plan.directory, str(entry), entry_name=entry.name)
    targets = [entry, *(entry.with_name(part_name(entry.name, i)) for i in range(1, len(plan.slices)))]
    check_targets(targets, replace=replace)
    staged: list[StagedFile] = []
    try:
        _stage(targets, plan, new, artifact_id or uuid.uuid4().bytes, staged, wrote)
        _publish(staged, replace=replace)
    finally:
        for file in staged:
            file.discard()
    return tuple(targets)


def check_targets(targets: Sequence[str | os.PathLike[str]], *, replace: bool) -> None:
    """ArtifactError for a target without a folder to go into, or one that exists (a folder, even with ``replace``)."""
    for target in map(Path, targets):
        if not target.parent.is_dir():
            raise ArtifactError(f"{target}: there is no folder {target.parent}")
        if target.is_dir():
            raise ArtifactError(f"refusing to overwrite {target}, which is a folder")
        if not replace and os.path.lexists(target):
            raise ArtifactError(f"refusing to overwrite {target} (--force replaces it)")


def _stage(
    targets: Sequence[Path],
    plan: LayoutPlan,
    new: NewArtifact,
    artifact_id: bytes,
    staged: list[StagedFile],
    wrote: Callable[[int], None],
) -> None:
    for i, target in enumerate(targets):
        staged.append(StagedFile(target))
        if i == 0:
            staged[0].write(MAGIC + len(plan.directory).to_bytes(8, "little") + artifact_id + plan.directory)
        else:
            staged[i].write((PART_MAGIC + i.to_bytes(8, "little") + artifact_id).ljust(ALIGNMENT, b"\0"))
    payload = _Payload(staged, plan.slices)
    for resource, offset in zip(new.resources, plan.offsets, strict=False):
        payload.put(resource.id, offset, [memoryview(resource.data)], len(resource.data))
    for tensor, offset in zip(new.tensors, plan.offsets[len(new.resources) :], strict=True):
        payload.put(tensor.id, offset, tensor.read(), tensor.bytes)
        wrote(tensor.bytes)
    for i, file in enumerate(staged):
        if file.size != plan.file_size(i):
            raise ArtifactError(f"{file.target}: output coverage is incomplete")


def _publish(staged: Sequence[StagedFile], *, replace: bool) -> None:
    """Parts first, the entry last; what appeared is taken back when a later one cannot."""
    entry = staged[0]
    shown: list[Path] = []
    try:
        if replace and len(staged) > 1:
            # the old entry must not be seen beside the new parts
            entry.target.unlink(missing_ok=True)
        for file in (*staged[1:], entry):
            file.publish(replace=replace)
            shown.append(file.target)
    except BaseException:
        for target in shown:
            with contextlib.suppress(OSError):
                target.unlink()
        raise


class _Payload:
    """One stream of payload bytes over the files' slices."""

    def __init__(self, files: Sequence[StagedFile], slices: Sequence[int]) -> None:
        self._files = files
        self._left = list(slices)
        self._index = 0
        self._offset = 0

    def put(self, name: str, offset: int, buffers: Sequence[memoryview], size: int) -> None:
        """One object at ``offset``, zeros up to there; ArtifactError unless the buffers hold exactly ``size`` bytes."""
        self._append(memoryview(bytes(offset - self._offset)))
        if sum(buffer.nbytes for buffer in buffers) != size:
            raise ArtifactError(f"{plain(name)}: output coverage is incomplete")
        for buffer in buffers:
            self._append(buffer.cast("B"))

    def _append(self, data: memoryview) -> None:
        while len(data):
            if not self._left[self._index]:
                self._index += 1
            piece = data[: self._left[self._index]]
            self._files[self._index].write(piece)
            self._left[self._index] -= len(piece)
            self._offset += len(piece)
            data = data[len(piece) :]
