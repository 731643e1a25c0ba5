"""What is held of prompts' beginnings: it is exact, gives way, and is accounted for after every step of any walk."""

import random

import pytest
import torch

from ninfer_core.api import StatePart
from ninfer_core.kv.pages import PagePool
from ninfer_core.kv.prefix import Prefix, PrefixTable
from ninfer_core.kv.state import StatePool

STATE = (StatePart(name="hash", dtype="int64", shape=(2,)),)


def pools(pages=12, slots=3, layout=STATE):
    pool, states = PagePool(pages), StatePool(layout, slots, torch.device("cpu"))
    return pool, states, PrefixTable(pool, states)


def prefix(pages=1, coming=5, first=0):
    return Prefix(ids=tuple(range(first, first + 64 * pages)), coming=coming)


def processed(pool, pages, extra=1):
    """A sequence that is ``pages`` whole pages long, and may grow by ``extra``."""
    space = pool.open(pages + extra)
    space.cover(64 * pages)
    return space


def test_a_held_prefix_is_the_pages_and_a_copy_of_the_state_at_its_end():
    pool, states, table = pools()
    one, space, slot = prefix(2), processed(pool, 2), states.take()
    states.parts["hash"][slot] = torch.tensor([7, 128])
    assert table.find(one, one.ids) is None
    assert table.hold(one, space, slot)
    states.parts["hash"][slot] = torch.tensor([8, 129])  # the sequence goes on
    held = table.find(one, [*one.ids, 1, 2, 3])
    assert held.run.pages == tuple(space.pages[:2])
    assert states.parts["hash"][held.state_slot].tolist() == [7, 128]
    assert not table.hold(one, space, slot), "once"
    space.close()
    states.give_back(slot)
    assert pool.leased == 2
    table.drop(one)
    assert (pool.available, states.available) == (12, 3)


@pytest.mark.parametrize("at", [0, 63, 64, 127])
def test_a_prompt_with_another_beginning_finds_nothing(at):
    pool, states, table = pools()
    one = prefix(2)
    table.hold(one, processed(pool, 2), states.take())
    assert table.find(one, one.ids) is not None
    other = list(one.ids)
    other[at] += 1
    assert table.find(one, other) is None
    assert table.find(one, one.ids[:at]) is None
    assert table.find(None, one.ids) is None
    assert table.find(prefix(2), one.ids) is None, "another group's"


def test_a_model_without_state_needs_no_slot():
    pool, states, table = pools(slots=1, layout=())
    slot = states.take()
    for _ in range(3):
        assert table.hold(prefix(), processed(pool, 1), slot)
    assert (len(table), table.state_slots) == (3, [])


def test_without_a_free_slot_nothing_is_held():
    pool, states, table = pools(slots=1)
    slot = states.take()
    assert not table.can_hold
    assert not table.hold(prefix(), processed(pool, 1), slot)
    assert len(table) == 0
    pool.check()


def test_the_oldest_gives_way_first_and_only_while_that_helps():
    pool, states, table = pools(pages=8, slots=4)
    held = []
    for pages in (2, 1, 1):
        one, space = prefix(pages), processed(pool, pages, extra=0)
        table.hold(one, space, states.available - 1)
        space.close()
        held.append(one)
    assert (pool.available, table.could_free()) == (4, 4)
    assert table.could_free(keep=table.find(held[0], held[0].ids)) == 2
    table.give_way(4)
    assert len(table) == 3, "there was room"
    table.give_way(5)
    assert [one in table for one in held] == [False, True, True]
    reader = pool.open(2, table.find(held[1], held[1].ids).run)
    table.give_way(8)
    assert [one in table for one in held] == [False, True, False], "dropping what a lane reads frees nothing"
    reader.close()
    table.give_way(8)
    assert pool.available == 8


def test_what_nobody_will_ask_for_again_is_dropped():
    pool, states, table = pools(slots=4)
    spent, left, wanted = prefix(), prefix(), prefix()
    for one in (spent, left, wanted):
        table.hold(one, processed(pool, 1), 3)
    spent.coming = 0
    left.given_up = True
    table.drop_unwanted()
    assert [one in table for one in (spent, left, wanted)] == [False, False, True]
    table.drop_all()
    assert (len(table), states.available) == (0, 4)


@pytest.mark.parametrize("seed", range(20))
def test_any_walk_keeps_pages_and_slots_accounted_for(seed):
    """Sequences of several groups come, reach the end of what they share, are kept and leave, under pressure."""
    rng = random.Random(seed)
    layout = STATE if seed % 4 else ()
    lanes = 3
    pool, states, table = pools(pages=10, slots=lanes + bool(layout), layout=layout)
    groups = [prefix(rng.randint(1, 3), coming=10**9, first=at) for at in range(4)]
    running = []  # (space, slot, group)
    for _ in range(400):
        step, group = rng.random(), rng.choice(groups)
        if step < 0.5 and len(running) < lanes:
            held = table.find(group, group.ids)
            table.give_state_way(keep=held)
            lease = len(group.ids) // 64 + rng.randint(1, 4)
            missing = lease - (len(held.run.pages) if held else 0)
            room = pool.available + table.could_free(keep=held)
            if room >= missing:
                table.give_way(missing, keep=held)
            space = pool.open(lease, held.run if held else None)
            assert (space is not None) == (room >= missing), "what is held is never in the way"
            assert held is None or group in table, "a prompt's own beginning is not given away for it"
            if space is not None:
                running.append((space, states.take(), group))
        elif step < 0.7 and running:
            space, slot, group = rng.choice(running)
            space.cover(len(group.ids))
            table.hold(group, space, slot)
        elif step < 0.9 and running:
            space, slot, _ = running.pop(rng.randrange(len(running)))
            space.close()
            states.give_back(slot)
        elif step < 0.95 and group in table:
            table.drop(group)
        else:
            group.given_up = rng.random() < 0.5
            table.drop_unwanted()
        pool.check()
        used = [*(slot for _, slot, _ in running), *table.state_slots]
        assert len(set(used)) == len(used) == states.slots - states.available
        assert states.available or len(running) + len(table.state_slots) == states.slots
        assert pool.available >= 0
    for space, slot, _ in running:
        space.close()
        states.give_back(slot)
    table.drop_all()
    assert (pool.available, states.available) == (pool.total, states.slots)
