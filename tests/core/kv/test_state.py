import pytest
import torch

from ninfer_core.api import StatePart
from ninfer_core.errors import InvariantError
from ninfer_core.kv.state import StatePool

LAYOUT = (StatePart(name="hash", dtype="int64", shape=(2,)), StatePart(name="conv", dtype="float32", shape=(3, 4)))


def test_a_slot_starts_at_zero_whatever_it_held_before():
    pool = StatePool(LAYOUT, 2, torch.device("cpu"))
    slot = pool.take()
    pool.parts["hash"][slot] = 7
    pool.give_back(slot)
    assert pool.take() == slot
    assert pool.parts["hash"][slot].tolist() == [0, 0]


def test_slots_are_distinct_until_given_back():
    pool = StatePool(LAYOUT, 3, torch.device("cpu"))
    taken = {pool.take() for _ in range(3)}
    assert taken == {0, 1, 2}
    assert pool.available == 0
    with pytest.raises(InvariantError):
        pool.take()


def test_giving_a_slot_back_twice_is_noticed():
    pool = StatePool(LAYOUT, 1, torch.device("cpu"))
    slot = pool.take()
    pool.give_back(slot)
    with pytest.raises(InvariantError):
        pool.give_back(slot)


def test_image_bytes_follow_the_layout():
    assert StatePool(LAYOUT, 1, torch.device("cpu")).image_bytes == 2 * 8 + 12 * 4
    assert StatePool((), 1, torch.device("cpu")).image_bytes == 0
