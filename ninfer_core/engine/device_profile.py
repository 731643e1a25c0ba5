"""``--device-profile``: where block sizes of kernels come from, and the search for them at a start.

Nothing that is found here stops a start: a profile that cannot be used, a search that fails and a file that cannot be
written are told and gone without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import structlog
import torch

from ninfer_core.api import OptionValues, Refusal
from ninfer_core.engine.progress import Progress
from ninfer_core.errors import ArtifactError
from ninfer_kernels import linear, tuning
from ninfer_kernels.tuning import Choice, Key, Measured, Table

from . import profile_file
from .profile_file import Profile, Unusable

log = structlog.get_logger()
AUTO, OFF, CALIBRATE = MODES = ("auto", "off", "calibrate")
SEARCH_SECONDS = {AUTO: 20.0, CALIBRATE: 120.0}
"""The longest search at a start: one nobody asked for, and one somebody did."""
NO_HOME = "there is no home folder to keep it in; name a file with --device-profile-path"
NOT_OURS = "the file there is no profile of this device; remove it or name another with --device-profile-path"


class DeviceProfile:
    """The block sizes of one device, for one start."""

    def __init__(self, values: OptionValues, device: torch.device, table: Table | None) -> None:
        """``table``: of the device, None where no kernels are launched."""
        self.mode: str = values["device_profile"]
        if self.mode == OFF and values["device_profile_path"] is not None:
            raise Refusal("--device-profile-path has no effect with --device-profile off")
        self._told = "device_profile" in values.given or "device_profile_path" in values.given
        self._device, self._table = device, table
        self._known: Profile | None = None
        self._before: frozenset[Key] = frozenset()
        named = values["device_profile_path"]
        self._named = named is not None
        self._path = Path(named) if named is not None else None
        self._may_write = True
        if table is not None:
            self._identity = profile_file.of_device(table.facts)
            self._software = profile_file.of_software()
            self._path = self._path or profile_file.default_path(self._identity)

    def install(self) -> None:
        """Before anything runs on the device: take what is stored."""
        if self._table is None:
            if self._told:
                log.info(
                    "device_profile", mode=self.mode, source="none", detail="no GPU here has kernels to choose for"
                )
            return
        self._table.uses_built_in = self.mode != OFF
        self._before = frozenset(self._table.taken)
        if self.mode != OFF:
            self._known = self._read()
        if self._known is not None and self.mode == AUTO:
            self._table.store(self._known.blocks())
        source = self._source(self._table)
        stored = len(self._known.entries) if source == "profile" and self._known is not None else 0
        path = str(self._path) if self.mode != OFF else "not read"
        log.info("device_profile", mode=self.mode, source=source, device=self._identity.name, shapes=stored, path=path)

    def calibrate(self, progress: Progress) -> None:
        """After a rehearsal: search what it asked for, as far as the mode wants it, and store what was found."""
        if self._table is None:
            return
        wanted = self._wanted()
        obstacle = self._obstacle() if wanted else None
        if obstacle is not None:  # before the wait, so that nobody waits for nothing
            self._unsaved(obstacle)
        found = self._search(self._table, wanted, progress) if wanted else {}
        if found and obstacle is None:
            self._save(found)
        if self.mode == CALIBRATE:
            self._keep(self._table, found)

    def _search(self, table: Table, wanted: Mapping[Key, Choice], progress: Progress) -> Mapping[Key, Measured]:
        progress.stage("calibrating kernels")
        begin = time.monotonic()
        try:
            found: Mapping[Key, Measured] = tuning.search(
                wanted.items(),
                table.facts,
                self._device,
                deadline=begin + SEARCH_SECONDS[self.mode],
                neighbour=linear.neighbour,
                advance=progress.advance,
            )
        except Exception as error:
            log.warning("device_calibration_failed", error=type(error).__name__, detail=str(error)[:200])
            return {}
        changed = sum(one.blocks != wanted[key].blocks for key, one in found.items())
        table.replace({key: one.blocks for key, one in found.items()})
        log.info(
            "device_calibration",
            device=self._identity.name,
            shapes=len(found),
            changed=changed,
            undecided=len(wanted) - len(found),
            seconds=round(time.monotonic() - begin, 1),
        )
        return found

    def _keep(self, table: Table, found: Mapping[Key, Measured]) -> None:
        """Shapes that were not measured anew run with what the file has of them: so does the next start."""
        if self._known is not None:
            kept = self._known.blocks().items()
            table.replace({key: blocks for key, blocks in kept if key not in found and key not in self._before})

    def _wanted(self) -> Mapping[Key, Choice]:
        """What a search is for: shapes of this start, and without being asked only those that have nothing better than
        the default on a device without a table of its own."""
        if self._table is None or self.mode == OFF or (self.mode == AUTO and self._table.has_built_in):
            return {}
        return {
            key: choice
            for key, choice in self._table.taken.items()
            if key not in self._before and (self.mode == CALIBRATE or choice.origin == "default")
        }

    def _source(self, table: Table) -> str:
        if self.mode == OFF:
            return "default"
        if self.mode == AUTO and self._known is not None:
            return "profile"
        return "built-in" if table.has_built_in else "default"

    def _read(self) -> Profile | None:
        if self._path is None:
            return None
        try:
            return profile_file.read(self._path, self._identity, self._software)
        except Unusable as error:
            # a file somebody named may be anything; those of the cache are this server's own
            self._may_write = error.ours or not self._named
            log.warning("device_profile_ignored", path=str(self._path), reason=str(error))
            return None

    def _obstacle(self) -> str | None:
        """Why nothing can be stored, as far as it shows before a search."""
        if self._path is None:
            return NO_HOME
        return profile_file.obstacle(self._path) or (None if self._may_write else NOT_OURS)

    def _save(self, found: Mapping[Key, Measured]) -> None:
        assert self._path is not None
        try:
            self._known = profile_file.add(self._path, self._identity, self._software, found, own=not self._named)
        except Unusable:
            self._unsaved(NOT_OURS)
        except ArtifactError as error:
            self._unsaved(str(error))

    def _unsaved(self, why: str) -> None:
        log.warning("device_profile_unsaved", path=str(self._path), reason=why)
