"""Beginnings that several prompts share: processed once, held for those to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.kv.pages import AddressSpace, PagePool, PageRun

if TYPE_CHECKING:
    from ninfer_core.kv.state import StatePool


@dataclass(kw_only=True, slots=True, eq=False)
class Prefix:
    """What the prompts of one group begin with.

    Made on the event loop. From the first submission on it is the engine thread's, but for ``given_up``, which the
    event loop sets when no request of the group follows.
    """

    ids: tuple[int, ...]  # whole pages of tokens, and less than any prompt of the group
    coming: int  # requests of the group that are not admitted yet
    given_up: bool = False

    @property
    def wanted(self) -> bool:
        """Whether a request that begins with it may still be admitted."""
        return self.coming > 0 and not self.given_up


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Held:
    """A prefix as the model left it."""

    run: PageRun
    state_slot: int | None  # the state exactly at its end; None for a model without any


class PrefixTable:
    """The prefixes that are held, the oldest first.

    Holding is optional and gives way: no request waits, and no running one is cut short, for what is held here. A lane
    that begins with a prefix shares its pages and has a copy of its state, so that dropping one never touches a lane.
    """

    def __init__(self, pool: PagePool, states: StatePool) -> None:
        self._pool = pool
        self._states = states
        self._held: dict[Prefix, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, prefix: Prefix) -> bool:
        return prefix in self._held

    @property
    def state_slots(self) -> list[int]:
        return [held.state_slot for held in self._held.values() if held.state_slot is not None]

    @property
    def can_hold(self) -> bool:
        """Whether there is a place for one more: its pages exist, its state needs a slot."""
        return not self._states.parts or self._states.available > 0

    def find(self, prefix: Prefix | None, prompt_ids: Sequence[int]) -> Held | None:
        """What is held of a prompt's beginning: all tokens of it are the same, or nothing is."""
        if prefix is None or tuple(prompt_ids[: len(prefix.ids)]) != prefix.ids:
            return None
        return self._held.get(prefix)

    def hold(self, prefix: Prefix, space: AddressSpace, state_slot: int) -> bool:
        """Keep the beginning of a sequence that has processed exactly the prefix; False when there is no place."""
        if prefix in self._held or not self.can_hold:
            return False
        image = self._states.take_unset() if self._states.parts else None
        self._held[prefix] = Held(run=space.share(len(prefix.ids)), state_slot=image)
        if image is not None:
            # last: a copy that fails leaves nothing that is not accounted for
            self._states.copy(state_slot, image)
        return True

    def could_free(self, keep: Held | None = None) -> int:
        """Pages that would be available without what is held, ``keep`` apart."""
        return self._pool.would_free([held.run for held in self._held.values() if held is not keep])

    def give_way(self, pages: int, keep: Held | None = None) -> None:
        """Drop what has to be dropped for so many pages to be available, as far as that helps."""
        for prefix, held in list(self._held.items()):
            if self._pool.available >= pages:
                return
            if held is not keep and self._pool.would_free([held.run]):
                self.drop(prefix)

    def give_state_way(self, keep: Held | None = None) -> None:
        """Have a state slot free, where one is held that is not ``keep``'s."""
        for prefix, held in list(self._held.items()):
            if self._states.available:
                return
            if held is not keep and held.state_slot is not None:
                self.drop(prefix)

    def drop(self, prefix: Prefix) -> None:
        held = self._held.pop(prefix)
        held.run.close()
        if held.state_slot is not None:
            self._states.give_back(held.state_slot)

    def drop_unwanted(self) -> None:
        """Those whose last request has been admitted, or whose group is given up."""
        for prefix in [one for one in self._held if not one.wanted]:
            self.drop(prefix)

    def drop_all(self) -> None:
        for prefix in list(self._held):
            self.drop(prefix)
