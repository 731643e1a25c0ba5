"""The JSON texts of prompts as values: arguments of past calls and definitions of tools, which come back every turn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ninfer_core.api import ApiError

from .json_text import NotJson, read_object
from .provenance import Marks
from .tojson import ClientObject

LIMIT_CHARACTERS = 1 << 20  # of the texts remembered; what is made of them takes some twenty times that in bytes


class JsonObject:
    """An object a client wrote. It is shared between requests; nobody changes what it returns."""

    __slots__ = ("_marked", "strings", "value")

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.strings = "\n".join(strings(value))  # all text in it, names included
        self._marked: tuple[Marks, ClientObject] | None = None

    def marked(self, marks: Marks) -> ClientObject:
        """The object with every string as the client's."""
        known = self._marked
        if known is None or known[0] is not marks:
            known = self._marked = (marks, ClientObject(wrapped(self.value, marks.text)))
        return known[1]


class PromptJson:
    """Reads JSON objects and remembers them, the least recently used forgotten first. Any thread may use it."""

    def __init__(self, limit: int = LIMIT_CHARACTERS) -> None:
        self._limit = limit
        self._held = 0
        self._known: OrderedDict[str, JsonObject] = OrderedDict()
        self._lock = threading.Lock()

    def object(self, text: str, place: str) -> JsonObject:
        """The object ``text`` spells; ApiError ``invalid_value`` with ``place`` when it spells none."""
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        try:
            value = JsonObject(read_object(text))
        except NotJson as error:
            message = f"'{place}' must be a JSON object, as text; this {error}."
            raise ApiError("invalid_value", message, param=place) from None
        self._keep(text, value)
        return value

    def _keep(self, text: str, value: JsonObject) -> None:
        with self._lock:
            if text in self._known or len(text) > self._limit // 4:
                return
            self._known[text] = value
            self._held += len(text)
            while self._held > self._limit:
                self._held -= len(self._known.popitem(last=False)[0])


def strings(value: Any) -> list[str]:
    """Every string in a value, keys included."""
    found: list[str] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str):
                found.append(key)
            _collect(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def wrapped(value: Any, text: Callable[[str], str]) -> Any:
    """The value with ``text`` made of every string, keys included."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {wrapped(key, text): wrapped(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [wrapped(item, text) for item in value]
    return value
