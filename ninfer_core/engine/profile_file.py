"""The file of a device's route profile: block sizes that were measured on it, and what they were measured with.

A profile holds for one kind of device and one set of drivers, libraries and kernels. Whatever else is in the file is no
profile, and is not written over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch

import ninfer_kernels
from ninfer_core.errors import ArtifactError
from ninfer_core.weights.mapped import reason
from ninfer_core.weights.staged import StagedFile
from ninfer_kernels.tuning import Blocks, Facts, Key, Measured

MOST_BYTES = 16 << 20
LOCK_TRIES, LOCK_SECONDS = 40, 0.05  # how often a lock is asked for, and the wait between
Positive = Annotated[int, msgspec.Meta(ge=0)]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    capability: tuple[Positive, Positive]
    multiprocessors: Positive


class Software(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    driver: str  # the CUDA version of the driver
    torch: str
    triton: str
    kernels: str  # version of ninfer-kernels, and a digest of its sources


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    launch: str
    shape: dict[str, int]
    blocks: dict[str, int]
    microseconds: float
    default_microseconds: float


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal["ninfer_device_profile"] = "ninfer_device_profile"
    version: Literal[1] = 1
    device: Device
    software: Software
    entries: tuple[Entry, ...]

    def blocks(self) -> dict[Key, Blocks]:
        return {(entry.launch, tuple(entry.shape.items())): entry.blocks for entry in self.entries}


class Unusable(Exception):
    """A file that is no profile for this device. ``ours``: a profile of this device all the same, which may be written
    over."""

    def __init__(self, reason: str, *, ours: bool = False) -> None:
        super().__init__(reason)
        self.ours = ours


def read(path: Path, device: Device, software: Software) -> Profile | None:
    """The profile in a file, None where there is no file, or Unusable with the reason."""
    data = _bytes(path)
    if data is None:
        return None
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unusable(f"damaged, or no device profile: {error}") from None
    if profile.device != device:
        raise Unusable(f"of another device: {_described(profile.device)}; this is {_described(device)}")
    for name in Software.__struct_fields__:
        then, now = getattr(profile.software, name), getattr(software, name)
        if then != now:
            raise Unusable(f"stale: measured with {name} {then}; this is {now}", ours=True)
    return profile


def add(path: Path, device: Device, software: Software, found: Mapping[Key, Measured], *, own: bool) -> Profile:
    """Put what was found into the profile that is there now, and return it: another start may have stored its own since
    this one read it.

    ``own``: a file that is no profile of this device is replaced. Otherwise it is Unusable; also raises ArtifactError.
    """
    target = _target(path)
    _make(target.parent)
    with _locked(target.parent):
        try:
            there = read(target, device, software)
        except Unusable as error:
            if not (own or error.ours):
                raise
            there = None
        profile = merged(there, device, software, found)
        write(target, profile)
    return profile


def write(path: Path, profile: Profile) -> None:
    """Put the profile in place at once. Raises ArtifactError."""
    text = msgspec.json.format(msgspec.json.encode(profile), indent=1)
    target = _target(path)
    _make(target.parent)
    file = StagedFile(target)
    try:
        file.write(text + b"\n")
        file.publish(replace=True)
    finally:
        file.discard()


def obstacle(path: Path) -> str | None:
    """Why no file can be put there, as far as that shows before one is."""
    target = _target(path)
    if os.path.isdir(target):
        return f"{path}: is a folder"
    place = next(one for one in target.parents if os.path.lexists(one))
    if not os.path.isdir(place):
        return f"{place}: is no folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place}: cannot be written"
    return None


def _target(path: Path) -> Path:
    """What a link leads to, whether it is there or not: the link stays one."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):  # no working folder, or no file name at all; whoever opens it says so
        return path


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be made ({reason(error)})") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Those who store a profile in the folder do so one after the other. Where there are no locks, or somebody holds
    this one for long, it is gone without."""
    fd = -1
    try:
        with contextlib.suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _lock(fd)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(LOCK_SECONDS)


def merged(old: Profile | None, device: Device, software: Software, found: Mapping[Key, Measured]) -> Profile:
    """What was known, with what was found in place of it."""
    kept = () if old is None else old.entries
    entries = [entry for entry in kept if (entry.launch, tuple(entry.shape.items())) not in found]
    entries += [
        Entry(
            launch=launch,
            shape=dict(shape),
            blocks=dict(one.blocks),
            microseconds=round(one.microseconds, 3),
            default_microseconds=round(one.default_microseconds, 3),
        )
        for (launch, shape), one in found.items()
    ]
    return Profile(device=device, software=software, entries=tuple(entries))


def of_device(facts: Facts) -> Device:
    return Device(name=facts.name, capability=facts.capability, multiprocessors=facts.multiprocessors)


def of_software() -> Software:
    """What block sizes were, or would be, measured with here."""
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "none"
    return Software(driver=str(driver), torch=str(torch.__version__), triton=triton, kernels=kernels_version())


def kernels_version() -> str:
    """Version and digest: sources may change between versions, and any change may change what is fastest."""
    root = Path(ninfer_kernels.__file__).parent
    digest = hashlib.sha256()
    for source in sorted(root.rglob("*.py")):
        digest.update(f"{source.relative_to(root)}\n".encode())
        digest.update(source.read_bytes())
    try:
        version = metadata.version("ninfer-kernels")
    except metadata.PackageNotFoundError:
        version = "0"
    return f"{version}+{digest.hexdigest()[:12]}"


def default_path(device: Device) -> Path | None:
    """In the user's cache; None where a user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    except RuntimeError:
        return None
    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    major, minor = device.capability
    return cache / "ninfer" / "device-profiles" / f"{name}-sm{major}{minor}-{device.multiprocessors}.json"


def _bytes(path: Path) -> bytes | None:
    """The content of a regular file; a pipe or a device is never waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unusable(reason(error) if isinstance(error, OSError) else "not a file name") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable("not a regular file")
        if status.st_size > MOST_BYTES:
            raise Unusable(f"of {status.st_size} bytes; a profile has at most {MOST_BYTES}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(MOST_BYTES)
    except OSError as error:
        raise Unusable(reason(error)) from None
    finally:
        os.close(fd)


def _described(device: Device) -> str:
    major, minor = device.capability
    return f"{device.name} (sm_{major}{minor}, {device.multiprocessors} multiprocessors)"
