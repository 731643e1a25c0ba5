"""A file that does not exist until it is whole.

Where the system can, it is written without a name and linked into its folder at the end, so that even a killed process
leaves nothing. Elsewhere it has a hidden temporary name, which every ordinary failure removes.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from ninfer_core.errors import ArtifactError

from .mapped import reason


class StagedFile:
    """Bytes on their way to ``target``. ``publish`` makes them appear; ``discard`` forgets them."""

    def __init__(self, target: Path) -> None:
        """ArtifactError when the folder cannot be written."""
        self.target = target
        self.size = 0
        self._temporary: Path | None = None
        self._fd = -1
        try:
            self._fd = self._open()
        except OSError as error:
            raise ArtifactError(f"{target}: cannot be written ({reason(error)})") from None

    def write(self, data: bytes | memoryview) -> None:
        """Append; ArtifactError for a full disk and the like."""
        rest = memoryview(data).cast("B")
        self.size += len(rest)
        try:
            while len(rest):
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise ArtifactError(f"{self.target}: cannot be written ({reason(error)})") from None

    def publish(self, *, replace: bool) -> None:
        """Make the file durable and give it its name; without ``replace`` an existing target is refused.

        What takes the place of a file of the same owner is readable for those who could read that file, no more.
        """
        try:
            if replace:
                with contextlib.suppress(FileNotFoundError):
                    there = os.stat(self.target)
                    if there.st_uid == os.geteuid():  # of another's, its mode would shut them out
                        os.fchmod(self._fd, there.st_mode & 0o777)
            os.fsync(self._fd)
            if not replace and os.path.lexists(self.target):
                raise ArtifactError(f"refusing to overwrite {self.target}")
            if self._temporary is None:
                named = self._hidden_name() if replace else self.target
                # a link made through a directory descriptor follows /proc's symlink to the nameless file
                os.link(f"/proc/self/fd/{self._fd}", named, src_dir_fd=self._fd, follow_symlinks=True)
                self._temporary = named if replace else None
            if self._temporary is not None:
                os.replace(self._temporary, self.target)
        except OSError as error:
            raise ArtifactError(f"{self.target}: cannot be written ({reason(error)})") from None
        self._temporary = None
        self._close()

    def discard(self) -> None:
        self._close()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def _open(self) -> int:
        nameless = getattr(os, "O_TMPFILE", 0)
        if nameless and os.path.isdir("/proc/self/fd"):
            # not every file system has nameless files
            with contextlib.suppress(OSError):
                return os.open(self.target.parent, nameless | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        self._temporary = self._hidden_name()
        return os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)

    def _hidden_name(self) -> Path:
        return self.target.with_name(f".{self.target.name}.{uuid.uuid4().hex}.tmp")

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
