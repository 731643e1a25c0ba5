import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import StatePart
from ninfer_core.errors import InvariantError
from ninfer_core.kv.state import StatePool, image_size

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
    # each part begins at a multiple of 256 bytes, and the image ends at one
    assert StatePool(LAYOUT, 1, torch.device("cpu")).image_bytes == 256 + 256
    assert StatePool((), 1, torch.device("cpu")).image_bytes == 0


MIXED = (
    StatePart(name="conv", dtype="bfloat16", shape=(3, 50), layer=0),
    StatePart(name="delta", dtype="float32", shape=(2, 4, 33), layer=0),
    StatePart(name="nothing", dtype="float32", shape=(0, 7)),
    StatePart(name="half", dtype="float16", shape=(5,)),
    StatePart(name="hidden", dtype="bfloat16", shape=(64,)),
)


def filled(slots: int = 4) -> StatePool:
    """Every byte random, NaN patterns included."""
    pool = StatePool(MIXED, slots, torch.device("cpu"))
    g = torch.Generator().manual_seed(1)
    for part in pool.parts.values():
        raw = part.view(-1).view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, generator=g, dtype=torch.uint8))
    return pool


def raw(pool: StatePool, slot: int) -> list[bytes]:
    return [part[slot].reshape(-1).view(torch.uint8).numpy().tobytes() for part in pool.parts.values()]


def test_an_image_holds_the_parts_in_order_at_their_places():
    pool = filled()
    image = pool.to_host(2)
    assert image.numel() == pool.image_bytes == 512 + 1280 + 0 + 256 + 256
    assert [region.offset for region in pool.regions] == [0, 512, 1792, 1792, 2048]
    for region, part in zip(pool.regions, raw(pool, 2), strict=True):
        assert image[region.offset : region.offset + region.bytes].numpy().tobytes() == part


def test_the_registered_models_have_the_published_image_sizes():
    # spec/kv-dtypes.md §7
    def layout(layers: int, heads: int, channels: int, hidden: int, dtype: str) -> tuple[StatePart, ...]:
        conv = [StatePart(name=f"c{i}", dtype="bfloat16", shape=(3, channels)) for i in range(layers)]
        delta = [StatePart(name=f"d{i}", dtype=dtype, shape=(heads, 128, 128)) for i in range(layers)]
        return (*conv, *delta, StatePart(name="hidden", dtype="bfloat16", shape=(hidden,)))

    assert image_size(layout(48, 48, 10240, 5120, "float32")) == 153_954_304
    assert image_size(layout(48, 48, 10240, 5120, "float16")) == 78_456_832
    assert image_size(layout(30, 32, 8192, 2048, "float32")) == 64_393_216
    assert image_size(layout(30, 32, 8192, 2048, "float16")) == 32_935_936


def test_an_image_restores_every_bit_into_any_slot_and_no_other():
    pool = filled()
    image, others = pool.to_host(1), [raw(pool, slot) for slot in (0, 1, 2)]
    pool.from_host(3, image)
    assert raw(pool, 3) == others[1]
    assert [raw(pool, slot) for slot in (0, 1, 2)] == others
    assert torch.equal(pool.to_host(3), image)


def test_a_copy_forks_a_slot():
    pool = filled()
    source = raw(pool, 0)
    pool.copy(0, 2)
    assert raw(pool, 2) == source
    pool.parts["conv"][0] = 0
    assert raw(pool, 2) == source


def test_a_buffer_of_the_callers_is_filled_in_place():
    pool = filled()
    buffer = torch.zeros(pool.image_bytes, dtype=torch.uint8)
    assert pool.to_host(1, buffer) is buffer
    assert torch.equal(buffer, pool.to_host(1))


@pytest.mark.parametrize("image", [torch.zeros(8, dtype=torch.uint8), torch.zeros(2304)], ids=["size", "dtype"])
def test_an_image_of_another_layout_is_refused(image):
    with pytest.raises(InvariantError, match=r"an image is \[2304\] uint8"):
        filled().from_host(0, image)


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_that_does_not_exist_is_refused(slot):
    pool = filled()
    for use in (lambda: pool.to_host(slot), lambda: pool.copy(0, slot), lambda: pool.give_back(slot)):
        with pytest.raises(InvariantError, match="no slot"):
            use()


@given(st.lists(st.tuples(st.sampled_from(["take", "unset", "give", "copy", "save", "load"]), st.integers(0, 3))))
def test_any_walk_keeps_slots_and_contents_accounted_for(moves):
    """Every slot holds what was last put there: a number per slot stands for its content."""
    pool = StatePool(LAYOUT, 4, torch.device("cpu"))
    held: dict[int, int] = {}
    saved: list[tuple[int, torch.Tensor]] = []
    for count, (move, pick) in enumerate(moves, start=1):
        mine = sorted(held)
        chosen = mine[pick % len(mine)] if mine else None
        if move in ("take", "unset") and pool.available:
            slot = pool.take() if move == "take" else pool.take_unset()
            assert slot not in held
            if move == "take":
                assert pool.parts["hash"][slot].tolist() == [0, 0]
            pool.parts["hash"][slot] = count
            held[slot] = count
        elif move == "give" and chosen is not None:
            pool.give_back(chosen)
            del held[chosen]
        elif move == "copy" and chosen is not None:
            pool.copy(mine[0], chosen)
            held[chosen] = held[mine[0]]
        elif move == "save" and chosen is not None:
            saved.append((held[chosen], pool.to_host(chosen)))
        elif move == "load" and chosen is not None and saved:
            content, image = saved[pick % len(saved)]
            pool.from_host(chosen, image)
            held[chosen] = content
        assert pool.available == 4 - len(held)
        assert {slot: pool.parts["hash"][slot].tolist() for slot in held} == {s: [n, n] for s, n in held.items()}
