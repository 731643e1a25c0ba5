"""The choices of one device: stored ones, built-in ones, defaults.

There is one table per device and process, because kernels are launched from several engines and know only where their
tensors lie. A choice that a launch has taken stays for the life of the process, so that recorded and later rounds of
one engine, and those of an engine loaded beside it, agree; loading an engine only adds choices for shapes nobody has
asked for yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from .facts import Facts, device_facts

if TYPE_CHECKING:
    from .tunable import Tunable

Blocks = Mapping[str, int]
Shape = Mapping[str, int]
Key = tuple[str, tuple[tuple[str, int], ...]]  # name of the launch, its shape

BUILT_IN = frozenset({"NVIDIA H200"})
"""Devices this package was measured on."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What one shape runs with, and where that comes from: ``profile``, ``built-in`` or ``default``."""

    tunable: Tunable
    shape: Shape
    blocks: Blocks
    origin: str


class Table:
    """The choices of one device."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.uses_built_in = True
        self._stored: dict[Key, Blocks] = {}
        self._taken: dict[Key, Choice] = {}

    @property
    def has_built_in(self) -> bool:
        return self.facts.name in BUILT_IN

    @property
    def taken(self) -> Mapping[Key, Choice]:
        """Every shape a launch has asked for."""
        return MappingProxyType(self._taken)

    def blocks(self, tunable: Tunable, shape: tuple[tuple[str, int], ...]) -> Blocks:
        key = (tunable.name, shape)
        choice = self._taken.get(key)
        if choice is None:
            choice = self._taken[key] = self._choose(tunable, key)
        return choice.blocks

    def store(self, stored: Mapping[Key, Blocks]) -> None:
        """Add choices of a profile; shapes that were asked for keep what they have."""
        self._stored.update({key: frozen(blocks) for key, blocks in stored.items() if key not in self._taken})

    def replace(self, found: Mapping[Key, Blocks]) -> None:
        """Put what a search found in place of what the launches of a rehearsal took. Only while nothing is running
        that was recorded with it."""
        for key, blocks in found.items():
            self._stored[key] = frozen(blocks)
            self._taken.pop(key, None)

    def forget(self, keys: Iterable[Key]) -> None:
        """Shapes that only a rehearsal asked for are chosen anew. On the same condition."""
        for key in keys:
            self._taken.pop(key, None)

    def _choose(self, tunable: Tunable, key: Key) -> Choice:
        shape = MappingProxyType(dict(key[1]))
        default = frozen(tunable.default(shape, self.facts))
        stored = self._stored.get(key)
        if stored is not None:
            if stored == default or stored in tunable.candidates(shape, self.facts):
                return Choice(tunable=tunable, shape=shape, blocks=stored, origin="profile")
            log.warning("%s %s: the profile's %s are no blocks of this kernel", tunable.name, dict(shape), dict(stored))
        built_in = tunable.built_in.get(self.facts.name) if self.uses_built_in else None
        if built_in is not None:
            return Choice(tunable=tunable, shape=shape, blocks=frozen(built_in(shape, self.facts)), origin="built-in")
        return Choice(tunable=tunable, shape=shape, blocks=default, origin="default")


def frozen(blocks: Blocks) -> Blocks:
    return MappingProxyType(dict(blocks))


_TABLES: dict[int, Table] = {}  # by CUDA index, -1 for the interpreter


def table(device: torch.device) -> Table:
    """The table of a device, made when it is first asked for."""
    index = -1
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
    found = _TABLES.get(index)
    if found is None:
        found = _TABLES.setdefault(index, Table(device_facts(device)))
    return found
