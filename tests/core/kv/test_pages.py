"""Page accounting: conservation after every step of any walk."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ninfer_core.errors import InvariantError
from ninfer_core.kv.pages import PagePool, pages_for

TOTAL = 24


class AnyWalk(RuleBasedStateMachine):
    """Address spaces open, grow, share, shrink and close in any order, and so do the runs they share."""

    spaces = Bundle("spaces")
    runs = Bundle("runs")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(TOTAL)
        self.open = {}
        self.kept = set()

    @rule(target=spaces, entitlement=st.integers(0, 12))
    def open_space(self, entitlement):
        return self.opened(entitlement, None)

    @rule(target=spaces, run=runs, more=st.integers(-1, 8))
    def open_behind(self, run, more):
        """A space that begins with another's pages needs only the others."""
        if run not in self.kept:
            return None
        if more < 0 and run.pages:
            with pytest.raises(InvariantError):
                self.pool.open(len(run.pages) - 1, run)
            return None
        return self.opened(len(run.pages) + max(more, 0), run)

    def opened(self, entitlement, run):
        before, shared = self.pool.available, run.pages if run is not None else ()
        space = self.pool.open(entitlement, run)
        assert (space is not None) == (entitlement - len(shared) <= before)  # all or nothing
        if space is None:
            return None
        assert self.pool.available == before - (entitlement - len(shared))
        assert (tuple(space.pages), space.shared) == (tuple(shared), len(shared))
        self.open[space] = entitlement
        return space

    @rule(target=runs, space=spaces, count=st.integers(0, 8))
    def share(self, space, count):
        if space not in self.open:
            return None
        if count > len(space.pages):
            with pytest.raises(InvariantError):
                space.share(count * 64)
            return None
        before = self.pool.available
        run = space.share(count * 64)
        assert run.pages == tuple(space.pages[:count])
        assert self.pool.available == before, "sharing costs no page"
        self.kept.add(run)
        return run

    @rule(space=spaces, tokens=st.integers(0, 13 * 64))
    def cover(self, space, tokens):
        if space not in self.open:
            return
        had = list(space.pages)
        if pages_for(tokens) > space.entitlement:
            with pytest.raises(InvariantError):
                space.cover(tokens)
            assert space.pages == had
        else:
            space.cover(tokens)
            assert space.pages[: len(had)] == had  # mapping never moves a page
            assert len(space.pages) == max(len(had), pages_for(tokens))

    @rule(space=spaces, tokens=st.integers(0, 13 * 64))
    def trim(self, space, tokens):
        if space not in self.open:
            return
        had = list(space.pages)
        if pages_for(tokens) < space.shared:
            with pytest.raises(InvariantError):
                space.trim(tokens)
            assert space.pages == had
        else:
            space.trim(tokens)
            assert space.pages == had[: pages_for(tokens)]

    @rule(space=consumes(spaces))
    def close(self, space):
        if space in self.open:
            del self.open[space]
            space.close()
            with pytest.raises(InvariantError):
                space.close()

    @rule(run=consumes(runs))
    def let_go(self, run):
        if run in self.kept:
            freed = self.pool.would_free([run])
            before = self.pool.available
            self.kept.remove(run)
            run.close()
            assert self.pool.available == before + freed
            with pytest.raises(InvariantError):
                run.close()

    @invariant()
    def every_page_is_accounted_for(self):
        self.pool.check()
        held = {page for one in (*self.open, *self.kept) for page in one.pages}
        assert self.pool.leased == len(held)
        claimed = sum(entitlement - len(space.pages) for space, entitlement in self.open.items())
        assert self.pool.set_aside == claimed
        assert self.pool.available == TOTAL - len(held) - claimed

    @invariant()
    def nobody_writes_what_another_reads(self):
        for space in self.open:
            others = [*(one for one in self.open if one is not space), *self.kept]
            assert not set(space.pages[space.shared :]) & {page for one in others for page in one.pages}

    def teardown(self):
        for one in (*self.open, *self.kept):
            one.close()
        self.pool.check()
        assert self.pool.available == TOTAL


TestAnyWalk = AnyWalk.TestCase
TestAnyWalk.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_full_pool_comes_back_after_everything_closes():
    pool = PagePool(8)
    spaces = [pool.open(2) for _ in range(4)]
    assert pool.open(1) is None
    for space in spaces:
        space.cover(128)
        space.close()
    assert pool.available == 8
    pool.check()


def spoilt(how):
    """A pool with one thing wrong in it."""
    pool = PagePool(6)
    first, second = pool.open(3), pool.open(3)
    first.cover(128)
    how(pool, first, second)
    return pool


@pytest.mark.parametrize(
    ("how", "found"),
    [
        (lambda pool, first, second: first.pages.append(first.pages[0]), "counted owners"),
        (lambda pool, first, second: second.pages.append(first.pages[0]), "counted owners"),
        (lambda pool, first, second: first.pages.pop(), "partition"),
        (lambda pool, first, second: pool._free.append(first.pages[0]), "partition"),
        (lambda pool, first, second: pool._share(first, 1), "second owner"),
        (lambda pool, first, second: setattr(second, "entitlement", 9), "set-aside"),
    ],
    ids=["mapped twice", "mapped by two", "lost", "free and mapped", "written and shared", "claims"],
)
def test_check_notices(how, found):
    with pytest.raises(InvariantError, match=found):
        spoilt(how).check()


def test_only_whole_mapped_pages_are_shared():
    pool = PagePool(4)
    space = pool.open(4)
    space.cover(100)
    for tokens in (1, 63, 65, 192):
        with pytest.raises(InvariantError):
            space.share(tokens)
    assert space.share(128).pages == tuple(space.pages)


def test_pages_stay_leased_until_the_last_owner_lets_go():
    pool = PagePool(4)
    first = pool.open(2)
    first.cover(128)
    run = first.share(64)
    second = pool.open(2, run)
    assert pool.available == 1, "the shared page counts once"
    first.close()
    run.close()
    assert pool.leased == 1
    second.close()
    assert pool.available == 4


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (8192, 128)])
def test_pages_for_rounds_up(tokens, pages):
    assert pages_for(tokens) == pages
