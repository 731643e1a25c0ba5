"""Responses that are kept for retrieval and continuation: the least recently used go first.

Two bounds hold, of records and of bytes. A conversation's Items are shared by all Responses of its chain and counted
once, for as long as one of them is kept.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ninfer_core.api import ApiError, NotFound
from ninfer_core.api.http import quoted

RECORD_BYTES = 1024  # what a record costs beside the bytes it keeps


@dataclass(eq=False, slots=True)
class Link:
    """The Items one Response added to a conversation, after those of ``parent``. ``items``: each encoded."""

    parent: Link | None
    items: tuple[bytes, ...]
    size: int = field(init=False)  # bytes of its own
    chain_size: int = field(init=False)  # with every link before it
    holders: int = 0  # kept Responses, and links of kept ones, that need it

    def __post_init__(self) -> None:
        self.size = sys.getsizeof(self.items) + sum(map(sys.getsizeof, self.items))
        self.chain_size = self.size + (self.parent.chain_size if self.parent is not None else 0)

    def history(self) -> Iterator[bytes]:
        """Every Item of the conversation up to here, in order."""
        links: list[Link] = []
        link: Link | None = self
        while link is not None:
            links.append(link)
            link = link.parent
        for link in reversed(links):
            yield from link.items


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A kept Response. ``body``: its JSON. The first ``inputs`` Items of ``link`` are those of its request."""

    id: str
    body: bytes
    link: Link
    inputs: int
    session_key: str | None
    preserve_thinking: bool | None

    @property
    def input_items(self) -> tuple[bytes, ...]:
        return self.link.items[: self.inputs]

    @property
    def size(self) -> int:
        """Bytes it keeps beside its link."""
        return sys.getsizeof(self.body) + RECORD_BYTES


class Store:
    """Used from the event loop only."""

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        self.max_records, self.max_bytes = max_records, max_bytes
        self.bytes = 0
        self._records: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def find(self, id: str, *, param: str | None = None) -> Record:
        """The Response of this id, now the most recently used. NotFound ``response_not_found``."""
        record = self._records.get(id)
        if record is None:
            text = f"No response {quoted(id)} is kept: it was not stored, was deleted, or made room for later ones."
            raise NotFound("response_not_found", text, param=param)
        self._records.move_to_end(id)
        return record

    def check_room(self, size: int) -> None:
        """ApiError ``response_store_capacity_exceeded`` when this many bytes can never be kept."""
        if size > self.max_bytes:
            text = (
                f"The response needs {size} bytes with its conversation, and {self.max_bytes} can be kept "
                "(--response-store-max-mib); send 'store' false."
            )
            raise ApiError("response_store_capacity_exceeded", text, param="store")

    def add(self, record: Record) -> None:
        """Keep it, in the place of those used longest ago. Raises as ``check_room``, with nothing changed."""
        self.check_room(record.size + record.link.chain_size)
        if record.id in self._records:
            self._drop(record.id)
        self._records[record.id] = record
        self.bytes += record.size
        self._hold(record.link)
        while len(self._records) > self.max_records or self.bytes > self.max_bytes:
            self._drop(next(iter(self._records)))

    def delete(self, id: str) -> None:
        """Forget it; Responses that continued it keep its Items. NotFound ``response_not_found``."""
        self.find(id)
        self._drop(id)

    def _drop(self, id: str) -> None:
        record = self._records.pop(id)
        self.bytes -= record.size
        self._release(record.link)

    def _hold(self, link: Link | None) -> None:
        while link is not None:
            link.holders += 1
            if link.holders > 1:
                return
            self.bytes += link.size
            link = link.parent

    def _release(self, link: Link | None) -> None:
        while link is not None:
            link.holders -= 1
            if link.holders:
                return
            self.bytes -= link.size
            link = link.parent
