"""Which page belongs to whom. Pages are numbers here; the bytes are the cache's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ninfer_core.errors import InvariantError

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """A fixed number of pages. Each is free, set aside unmapped for one address space, or leased: to the one that
    writes it, or to several owners that only read it. A leased page is free again when its last owner lets go."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._owners = [0] * total  # of each page
        self._spaces: set[AddressSpace] = set()
        self._runs: set[PageRun] = set()
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

    def open(self, entitlement: int, begins_with: PageRun | None = None) -> AddressSpace | None:
        """An address space that may map ``entitlement`` pages whenever it wants, or None: all or nothing.

        ``begins_with``: its first pages, some of the entitlement, which it reads and never writes.
        """
        shared = begins_with.pages if begins_with is not None else ()
        missing = entitlement - len(shared)
        if missing < 0:
            raise InvariantError(f"pages: {len(shared)} shared pages exceed an entitlement of {entitlement}")
        if missing > self.available:
            return None
        self._set_aside += missing
        self._keep(shared)
        space = AddressSpace(self, entitlement, shared)
        self._spaces.add(space)
        return space

    def would_free(self, runs: Sequence[PageRun]) -> int:
        """Pages that nobody would hold without these runs."""
        held = Counter(page for run in runs for page in run.pages)
        return sum(self._owners[page] == count for page, count in held.items())

    def _map(self, count: int) -> list[int]:
        self._set_aside -= count
        pages = [self._free.pop() for _ in range(count)]
        self._keep(pages)
        return pages

    def _unmap(self, pages: list[int]) -> None:
        """Pages of one owner, which stay reserved for it."""
        self._let_go(pages)
        self._set_aside += len(pages)

    def _keep(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._owners[page] += 1

    def _let_go(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free.append(page)

    def _share(self, space: AddressSpace, count: int) -> PageRun:
        run = PageRun(self, tuple(space.pages[:count]))
        self._keep(run.pages)
        self._runs.add(run)
        return run

    def _close_run(self, run: PageRun) -> None:
        self._runs.remove(run)
        self._let_go(run.pages)

    def _close(self, space: AddressSpace) -> None:
        self._set_aside -= space.entitlement - len(space.pages)
        self._let_go(space.pages)
        self._spaces.remove(space)

    def check(self) -> None:
        """Raise InvariantError unless every page is accounted for exactly once and has one writer at most."""
        owners = Counter(page for space in self._spaces for page in space.pages)
        owners.update(page for run in self._runs for page in run.pages)
        if sorted([*owners, *self._free]) != list(range(self.total)):
            raise InvariantError("pages: mapped and free pages are not a partition of the pool")
        if [owners[page] for page in range(self.total)] != self._owners:
            raise InvariantError("pages: the counted owners of a page differ from those that map it")
        if any(owners[page] > 1 for space in self._spaces for page in space.pages[space.shared :]):
            raise InvariantError("pages: a page that is written has a second owner")
        if self._set_aside != sum(space.entitlement - len(space.pages) for space in self._spaces):
            raise InvariantError("pages: the set-aside count differs from the address spaces' claims")
        if not 0 <= self._set_aside <= len(self._free):
            raise InvariantError(f"pages: {self._set_aside} set aside of {len(self._free)} free")


class AddressSpace:
    """The ordered pages of one sequence: position ``p`` is in ``pages[p // 64]``. The first ``shared`` of them have
    other owners too: they are full, and nobody writes them any more."""

    def __init__(self, pool: PagePool, entitlement: int, shared: Sequence[int] = ()) -> None:
        self._pool = pool
        self.entitlement = entitlement  # the most pages it may map
        self.pages: list[int] = list(shared)
        self.shared = len(shared)
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
        """Unmap pages past ``tokens``; they return to this space's own reservation. Never a shared one."""
        keep = pages_for(tokens)
        if keep < self.shared:
            raise InvariantError(f"pages: {tokens} tokens end among {self.shared} shared pages")
        if keep < len(self.pages):
            self._pool._unmap(self.pages[keep:])
            del self.pages[keep:]

    def share(self, tokens: int) -> PageRun:
        """The pages of the first ``tokens``, whole pages that are mapped, for others to begin with. This space writes
        them no more."""
        count = tokens // PAGE_TOKENS
        if tokens % PAGE_TOKENS or count > len(self.pages):
            raise InvariantError(f"pages: {tokens} tokens are not whole pages among {len(self.pages)}")
        self.shared = max(self.shared, count)
        return self._pool._share(self, count)

    def close(self) -> None:
        """Give everything back; once."""
        if self._closed:
            raise InvariantError("pages: an address space was closed twice")
        self._closed = True
        self._pool._close(self)
        self.pages = []


class PageRun:
    """Full pages that begin a sequence, kept for address spaces to come."""

    def __init__(self, pool: PagePool, pages: tuple[int, ...]) -> None:
        self._pool = pool
        self.pages = pages
        self._closed = False

    def close(self) -> None:
        """Let go of them, once; address spaces that begin with them keep them."""
        if self._closed:
            raise InvariantError("pages: a run of pages was closed twice")
        self._closed = True
        self._pool._close_run(self)
