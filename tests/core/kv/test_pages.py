"""Page accounting: conservation after every step of any walk."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ninfer_core.errors import InvariantError
from ninfer_core.kv.pages import PagePool, pages_for

TOTAL = 24


class AnyWalk(RuleBasedStateMachine):
    """Address spaces open, grow, shrink and close in any order."""

    spaces = Bundle("spaces")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(TOTAL)
        self.open = {}

    @rule(target=spaces, entitlement=st.integers(0, 12))
    def open_space(self, entitlement):
        before = self.pool.available
        space = self.pool.open(entitlement)
        assert (space is not None) == (entitlement <= before)  # all or nothing
        if space is None:
            return None
        self.open[space] = entitlement
        return space

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
        if space in self.open:
            had = list(space.pages)
            space.trim(tokens)
            assert space.pages == had[: pages_for(tokens)]

    @rule(space=consumes(spaces))
    def close(self, space):
        if space in self.open:
            del self.open[space]
            space.close()
            with pytest.raises(InvariantError):
                space.close()

    @invariant()
    def every_page_is_accounted_for(self):
        self.pool.check()
        mapped = sum(len(space.pages) for space in self.open)
        assert self.pool.leased == mapped
        assert self.pool.available == TOTAL - sum(self.open.values())


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


def test_check_notices_a_page_mapped_twice():
    pool = PagePool(4)
    space = pool.open(3)
    space.cover(64)
    space.pages.append(space.pages[0])
    with pytest.raises(InvariantError, match="partition"):
        pool.check()


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (8192, 128)])
def test_pages_for_rounds_up(tokens, pages):
    assert pages_for(tokens) == pages
