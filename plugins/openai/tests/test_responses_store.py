"""The store of Responses: two bounds, least recently used first, conversations shared and counted once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ninfer_core.api import ApiError, NotFound
from ninfer_openai.responses.store import Link, Record, Store

contract = pytest.mark.contract


def record(id: str, parent: Record | None = None, *, body: int = 10, items: tuple[int, ...] = (5, 5)) -> Record:
    link = Link(parent.link if parent else None, tuple(b"x" * size for size in items))
    return Record(id=id, body=b"b" * body, link=link, inputs=1, session_key=None, preserve_thinking=None)


def links(records: list[Record]) -> set[Link]:
    """All that these need, by walking."""
    found: set[Link] = set()
    for one in records:
        link: Link | None = one.link
        while link is not None:
            found.add(link)
            link = link.parent
    return found


def needed(records: list[Record]) -> int:
    return sum(one.size for one in records) + sum(link.size for link in links(records))


@pytest.mark.parametrize("thread", [pytest.param(0, id="vllm-48275")])
@contract("responses.store.lru")
def test_the_least_recently_used_makes_room(thread):
    store = Store(max_records=3, max_bytes=1 << 20)
    for at in range(3):
        store.add(record(str(at)))
    store.find("0")
    for at in range(3, 5):
        store.add(record(str(at)))
    assert [store.find(id).id for id in ("0", "3", "4")] == ["0", "3", "4"]
    for gone in ("1", "2", "never"):
        with pytest.raises(NotFound) as caught:
            store.find(gone, param="previous_response_id")
        assert (caught.value.code, caught.value.param, caught.value.status) == (
            "response_not_found",
            "previous_response_id",
            404,
        )


@contract("responses.store.capacity")
def test_one_that_cannot_be_kept_is_refused_and_nothing_is_lost():
    store = Store(max_records=10, max_bytes=20_000)
    store.add(record("a", body=5_000))
    before = store.bytes
    for big in (record("b", body=21_000), record("b", items=(21_000,)), record("b", record("p", items=(19_000,)))):
        with pytest.raises(ApiError) as caught:
            store.add(big)
        assert (caught.value.code, caught.value.status) == ("response_store_capacity_exceeded", 400)
        assert "20000" in caught.value.message and "store" in caught.value.message
    assert store.find("a") and (len(store), store.bytes) == (1, before)


@contract("responses.store.bytes")
def test_bytes_are_bounded_too():
    store = Store(max_records=1000, max_bytes=50_000)
    for at in range(100):
        store.add(record(str(at), body=9_000))
        assert store.bytes <= 50_000
    assert len(store) == 4
    assert store.find("99")


@contract("responses.store.descendants")
def test_a_conversation_outlives_the_responses_it_was_made_of():
    store = Store(max_records=10, max_bytes=1 << 20)
    first = record("1")
    second = record("2", first)
    third = record("3", second)
    for one in (first, second, third):
        store.add(one)
    store.delete("1")
    store.delete("2")
    assert list(store.find("3").link.history()) == [b"xxxxx"] * 6
    assert store.bytes == needed([third])
    # a child that was being made while its parent was forgotten
    store.delete("3")
    assert (len(store), store.bytes) == (0, 0)
    fourth = record("4", third)
    store.add(fourth)
    assert store.bytes == needed([fourth])
    with pytest.raises(NotFound):
        store.delete("3")


def test_a_conversation_is_counted_once_however_many_continue_it():
    store = Store(max_records=100, max_bytes=1 << 20)
    root = record("root", items=(10_000,))
    store.add(root)
    for at in range(50):
        store.add(record(str(at), root))
    assert store.bytes < 10_000 + 60 * 1_500


def test_a_long_chain_is_kept_and_let_go_without_recursion():
    store = Store(max_records=5, max_bytes=1 << 30)
    last = None
    for at in range(20_000):
        last = record(str(at), last, items=(1,))
        store.add(last)
    assert len(list(last.link.history())) == 20_000
    for at in range(19_995, 20_000):
        store.delete(str(at))
    assert store.bytes == 0
    del last


@settings(max_examples=60, stateful_step_count=40, deadline=None)
class StoreMachine(RuleBasedStateMachine):
    """The store against a plain list, least recently used first, whose bytes are counted anew each time."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(max_records=6, max_bytes=16_000)
        self.kept: list[Record] = []
        self.made = 0

    def ids(self) -> list[str]:
        return [one.id for one in self.kept]

    @rule(target=known, body=st.sampled_from([10, 900, 6_000]), size=st.sampled_from([10, 4_000, 17_000]))
    def add_root(self, body: int, size: int) -> Record:
        return self.add(None, body, size)

    @rule(target=known, parent=known, body=st.sampled_from([10, 3_000]), size=st.sampled_from([10, 2_500]))
    def add_child(self, parent: Record, body: int, size: int) -> Record:
        """Of one that is kept, or was when the child was begun."""
        return self.add(parent, body, size)

    def add(self, parent: Record | None, body: int, size: int) -> Record:
        self.made += 1
        one = record(f"r{self.made}", parent, body=body, items=(size, 20))
        if needed([one]) > self.store.max_bytes:
            with pytest.raises(ApiError, match="response needs"):
                self.store.add(one)
            return one
        self.store.add(one)
        self.kept.append(one)
        while len(self.kept) > 6 or needed(self.kept) > self.store.max_bytes:
            self.kept.pop(0)
        return one

    @rule(one=known)
    def find(self, one: Record) -> None:
        if one in self.kept:
            assert self.store.find(one.id) is one
            self.kept.append(self.kept.pop(self.kept.index(one)))
        else:
            with pytest.raises(NotFound):
                self.store.find(one.id)

    @rule(one=consumes(known))
    def delete(self, one: Record) -> None:
        if one in self.kept:
            self.store.delete(one.id)
            self.kept.remove(one)
        else:
            with pytest.raises(NotFound):
                self.store.delete(one.id)

    @invariant()
    def same(self) -> None:
        assert list(self.store._records) == self.ids()
        assert self.store.bytes == needed(self.kept) <= self.store.max_bytes
        for one in self.kept:
            assert len(list(one.link.history())) % 2 == 0


TestStoreMachine = StoreMachine.TestCase
