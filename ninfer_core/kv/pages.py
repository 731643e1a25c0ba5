"""Which page belongs to whom. Pages are numbers here; the bytes are the cache's."""

from __future__ import annotations

from ninfer_core.errors import InvariantError

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """A fixed number of pages. Each is free, leased to one address space, or set aside unmapped for one."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._spaces: set[AddressSpace] = set()
        self._set_aside = 0  # reserved by address spaces, not mapped yet

    @property
    def available(self) -> int:
        """Pages nobody holds or has set aside."""
        return len(self._free) - self._set_aside

    @property
    def leased(self) -> int:
        return self.total - len(self._free)

    @property
    def set_aside(self) -> int:
        return self._set_aside

    def open(self, entitlement: int) -> AddressSpace | None:
        """An address space that may map ``entitlement`` pages whenever it wants, or None: all or nothing."""
        if entitlement > self.available:
            return None
        self._set_aside += entitlement
        space = AddressSpace(self, entitlement)
        self._spaces.add(space)
        return space

    def _map(self, count: int) -> list[int]:
        self._set_aside -= count
        return [self._free.pop() for _ in range(count)]

    def _unmap(self, pages: list[int]) -> None:
        self._free.extend(reversed(pages))
        self._set_aside += len(pages)

    def _close(self, space: AddressSpace) -> None:
        self._unmap(space.pages)
        self._set_aside -= space.entitlement
        self._spaces.remove(space)

    def check(self) -> None:
        """Raise InvariantError unless every page is accounted for exactly once."""
        mapped = [page for space in self._spaces for page in space.pages]
        if sorted([*mapped, *self._free]) != list(range(self.total)):
            raise InvariantError("pages: mapped and free pages are not a partition of the pool")
        if self._set_aside != sum(space.entitlement - len(space.pages) for space in self._spaces):
            raise InvariantError("pages: the set-aside count differs from the address spaces' claims")
        if not 0 <= self._set_aside <= len(self._free):
            raise InvariantError(f"pages: {self._set_aside} set aside of {len(self._free)} free")


class AddressSpace:
    """The ordered pages of one sequence: position ``p`` is in ``pages[p // 64]``."""

    def __init__(self, pool: PagePool, entitlement: int) -> None:
        self._pool = pool
        self.entitlement = entitlement  # the most pages it may map
        self.pages: list[int] = []
        self._closed = False

    def cover(self, tokens: int) -> None:
        """Map pages up to ``tokens``. Mapping past the entitlement is our fault: InvariantError."""
        missing = pages_for(tokens) - len(self.pages)
        if missing <= 0:
            return
        if len(self.pages) + missing > self.entitlement:
            raise InvariantError(f"pages: {tokens} tokens exceed an entitlement of {self.entitlement} pages")
        self.pages.extend(self._pool._map(missing))

    def grow(self, pages: int) -> None:
        """Be entitled to that many pages more; they must be available."""
        if pages < 0 or pages > self._pool.available:
            raise InvariantError(f"pages: {pages} more asked of {self._pool.available} available")
        self._pool._set_aside += pages
        self.entitlement += pages

    def trim(self, tokens: int) -> None:
        """Unmap pages past ``tokens``; they return to this space's own reservation."""
        keep = pages_for(tokens)
        if keep < len(self.pages):
            self._pool._unmap(self.pages[keep:])
            del self.pages[keep:]

    def close(self) -> None:
        """Give everything back; once."""
        if self._closed:
            raise InvariantError("pages: an address space was closed twice")
        self._closed = True
        self._pool._close(self)
        self.pages = []
