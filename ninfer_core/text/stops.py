"""Stop strings over one channel of text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string completes; text that may still be the start of one is held.

    Of several stops the one that ends first wins, and of those that end together the longest. The rule looks at one
    character at a time, so the cut of the text never shows. ``feed`` is one step of a Knuth-Morris-Pratt automaton per
    stop and character, whatever the stops look like.
    """

    __slots__ = ("_fails", "_held", "_states", "_stops")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("a stop string must not be empty")
        self._fails = tuple(_fail_links(stop) for stop in self._stops)
        self._states = [0] * len(self._stops)  # characters of each stop matched so far
        self._held = ""

    @property
    def never_stops(self) -> bool:
        """There is no stop string."""
        return not self._stops

    def copy(self) -> StopMatcher:
        if not self._stops:
            return self  # nothing is ever held
        twin = StopMatcher.__new__(StopMatcher)
        twin._stops, twin._fails, twin._held = self._stops, self._fails, self._held
        twin._states = self._states.copy()
        return twin

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be published, and the stop that ended the channel, if one did. The stop and what follows
        it are dropped."""
        if not self._stops:
            return text, None
        for end, char in enumerate(text, 1):
            hit = self._advance(char)
            if hit is not None:
                seen = self._held + text[:end]
                self._held = ""
                return seen[: -len(hit)], hit
        seen = self._held + text
        keep = len(seen) - max(self._states)
        self._held = seen[keep:]
        return seen[:keep], None

    def finish(self) -> str:
        """The held text: no stop will complete any more."""
        if not self._stops:
            return ""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> str | None:
        hit: str | None = None
        for i, stop in enumerate(self._stops):
            state = self._states[i]
            while state and stop[state] != char:
                state = self._fails[i][state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                if hit is None or len(stop) > len(hit):
                    hit = stop
                state = 0
            self._states[i] = state
        return hit


def _fail_links(stop: str) -> list[int]:
    """For each prefix of ``stop``, the length of its longest proper border."""
    links = [0] * len(stop)
    state = 0
    for i in range(1, len(stop)):
        while state and stop[state] != stop[i]:
            state = links[state - 1]
        state += stop[state] == stop[i]
        links[i] = state
    return links
