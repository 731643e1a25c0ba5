"""Whole files mapped into memory: opening one of any size reads nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat

from ninfer_core.errors import ArtifactError

# a private mapping counts against the commit limit unless it is told not to; python 3.11 lacks the name
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class MappedFile:
    """A regular file as a ``memoryview``. Raises ArtifactError when there is none or it cannot be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        try:
            # without O_NONBLOCK, opening a named pipe waits for a writer
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise ArtifactError(f"{path}: {reason(error)}") from None
        except ValueError:
            raise ArtifactError(f"{path!r}: not a file name") from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(f"{path}: not a regular file")
            self.size = status.st_size
            if self.size:
                self._map = _private_map(fd, self.size)
        except (OSError, ValueError):
            raise ArtifactError(f"{path}: cannot map {self.size} bytes") from None
        finally:
            os.close(fd)
        self.view = memoryview(self._map if self._map is not None else b"")

    def drop_pages(self) -> None:
        """Give back the memory of the pages read so far; a view reads them again. Nobody writes into a map."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap now, or when the last tensor that looks into the file goes."""
        self.view.release()
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None


def _private_map(fd: int, size: int) -> mmap.mmap:
    """Copy on write: torch takes only writable buffers without complaint, and the file stays as it is."""
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE | _NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def reason(error: OSError) -> str:
    """What the system says, in lower case: "no such file or directory"."""
    text = error.strerror or type(error).__name__
    return text[0].lower() + text[1:]
