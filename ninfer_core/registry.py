"""Named choices of one category, each remembered with the plugin that offered it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Generic, TypeVar

from ninfer_core.errors import PluginConflict, UnknownChoice

T = TypeVar("T")


class Registry(Generic[T]):
    """``what`` is how messages call a choice: an option ("--kv-dtype") or a noun ("model family")."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._items: dict[str, tuple[str, T]] = {}

    def add(self, name: str, item: T, *, origin: str) -> None:
        """Offer ``item`` under ``name``; PluginConflict when the name is taken."""
        if name in self._items:
            raise PluginConflict(self.what, name, self._items[name][0], origin)
        self._items[name] = (origin, item)

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name][1]
        except KeyError:
            raise UnknownChoice(self.what, name, self.names(), nearest(name, self._items)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def names(self) -> list[str]:
        return sorted(self._items)

    def origin(self, name: str) -> str:
        """The plugin that offers ``name``."""
        return self._items[name][0]


def nearest(name: str, known: object) -> str | None:
    """The known spelling a typo most likely meant; leading dashes, which all options share, do not count."""
    spelled = {str(k).lstrip("-"): str(k) for k in known}  # type: ignore[attr-defined]
    found = difflib.get_close_matches(name.lstrip("-"), spelled, n=1, cutoff=0.65)
    return spelled[found[0]] if found else None
