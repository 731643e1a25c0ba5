"""Which block sizes a launch takes, and how better ones are found."""

import importlib
import itertools
import logging
import pkgutil
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ninfer_kernels
from ninfer_kernels import tiled_linear
from ninfer_kernels.tuning import Facts, Table, Tunable, search, stages_that_fit, table

CPU = torch.device("cpu")
SMALL = Facts(
    name="NVIDIA Unheard Of", capability=(8, 6), multiprocessors=28, shared_bytes=99 << 10, cache_bytes=3 << 20
)
LARGE = Facts(name="NVIDIA H200", capability=(9, 0), multiprocessors=132, shared_bytes=227 << 10, cache_bytes=50 << 20)
SECONDS = {1: 3.0, 8: 1.0, 16: 0.5, 32: 0.9, 64: 0.1, 128: 0.4}
BESIDE = {}  # further seconds of a run that follows a neighbour
NEIGHBOUR = 1
SHAPE = (("N", 7),)
KEY = ("test.double", SHAPE)


class Doubling(Tunable):
    """A launch that doubles: 64 doubles wrongly, 128 does not run."""

    def __init__(self, **changes):
        given = {
            "name": "test.double",
            "default": lambda shape, facts: {"BN": 8},
            "candidates": lambda shape, facts: ({"BN": size} for size in SECONDS if size != NEIGHBOUR),
            "inputs": lambda shape, device, generator: (torch.rand(shape["N"], generator=generator) + 1,),
            "run": self._run,
        }
        super().__init__(**{**given, **changes})

    @staticmethod
    def _run(inputs, blocks):
        if blocks["BN"] == 128:
            raise RuntimeError("too much shared memory")
        Doubling.ran.append(blocks["BN"])
        return inputs[0] * (3 if blocks["BN"] == 64 else 2)

    ran: ClassVar[list[int]] = []


class Stopwatch:
    """Says of every run what SECONDS has for the blocks it ran with, and what BESIDE adds after a neighbour's."""

    def seconds(self, work):
        Doubling.ran.clear()
        work()
        assert len(set(Doubling.ran) - {NEIGHBOUR}) <= 1
        waits = sum(BESIDE.get(size, 0) for one, size in itertools.pairwise(Doubling.ran) if one == NEIGHBOUR)
        return waits + sum(SECONDS[size] for size in Doubling.ran)


def asked(tunable=None, facts=SMALL, **changes):
    """A table that was asked for one shape, and its choice."""
    chosen = Table(facts)
    chosen.blocks(tunable or Doubling(**changes), SHAPE)
    return chosen


def found(chosen, deadline=1.0, clock=lambda: 0.0, **rest):
    return search(chosen.taken.items(), chosen.facts, CPU, deadline=deadline, timer=Stopwatch(), clock=clock, **rest)


def test_the_fastest_right_candidate_is_found():
    measured = found(asked())[KEY]
    assert measured.blocks == {"BN": 16}
    assert measured.microseconds == pytest.approx(5e5)
    assert measured.default_microseconds == pytest.approx(1e6)
    assert (measured.tried, measured.failed) == (2, 2)


def test_a_candidate_that_waits_for_the_launch_before_it_is_not_the_fastest(monkeypatch):
    monkeypatch.setitem(BESIDE, 16, 1.2)
    alone = found(asked())[KEY]
    assert (alone.blocks, alone.microseconds) == ({"BN": 16}, pytest.approx(5e5))
    measured = found(asked(), neighbour=beside)[KEY]
    assert (measured.blocks, measured.microseconds) == ({"BN": 32}, pytest.approx(9e5))
    assert measured.default_microseconds == pytest.approx(1e6)
    assert (measured.tried, measured.failed) == (2, 2)


def test_nothing_is_made_for_a_search_of_nothing():
    assert found(Table(SMALL), neighbour=lambda device: pytest.fail("a neighbour was made")) == {}


def test_a_gain_within_the_noise_of_the_neighbour_changes_nothing(monkeypatch):
    monkeypatch.setitem(SECONDS, 16, 0.96)  # 4 % faster, a bit more than a hundredth of the neighbour's three seconds
    monkeypatch.setitem(SECONDS, 32, 0.945)
    assert found(asked())[KEY].blocks == {"BN": 32}
    assert found(asked(), neighbour=beside)[KEY].blocks == {"BN": 8}
    monkeypatch.setitem(SECONDS, 32, 0.935)
    assert found(asked(), neighbour=beside)[KEY].blocks == {"BN": 32}


def beside(device):
    """A neighbour that the stopwatch knows."""
    return lambda: Doubling.ran.append(NEIGHBOUR)


def test_a_device_that_slows_down_between_two_shapes_is_measured_as_well(monkeypatch):
    """The neighbour's own time is that of the same shape."""

    def slower(shape, device, generator):
        monkeypatch.setitem(SECONDS, NEIGHBOUR, 40.0)
        return (torch.ones(shape["N"]),)

    chosen = asked()
    chosen.blocks(Doubling(name="test.slower", inputs=slower), SHAPE)
    for measured in found(chosen, neighbour=beside).values():
        assert measured.blocks == {"BN": 16}
        assert measured.microseconds == pytest.approx(5e5)
        assert measured.default_microseconds == pytest.approx(1e6)


def no_room(*_):
    raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("neighbour", [no_room, lambda device: no_room], ids=["made", "launched"])
def test_without_room_for_a_neighbour_launches_are_timed_alone(neighbour):
    measured = found(asked(), neighbour=neighbour)[KEY]
    assert (measured.blocks, measured.tried) == ({"BN": 16}, 2)


def test_a_candidate_that_gains_less_than_the_noise_changes_nothing(monkeypatch):
    monkeypatch.setitem(SECONDS, 16, 0.98)
    monkeypatch.setitem(SECONDS, 32, 0.975)
    assert found(asked())[KEY].blocks == {"BN": 8}


def test_a_result_that_is_not_finite_never_wins(monkeypatch):
    def run(inputs, blocks):
        out = Doubling._run(inputs, blocks)
        return out * float("nan") if blocks["BN"] == 16 else out

    assert found(asked(run=run))[KEY].blocks == {"BN": 32}


def test_a_shape_the_time_does_not_suffice_for_is_left_undecided():
    ticks = itertools.count()
    assert found(asked(), deadline=3.0, clock=lambda: float(next(ticks))) == {}


def test_what_was_decided_before_the_time_ran_out_is_kept():
    chosen = asked()
    chosen.blocks(Doubling(), (("N", 9),))
    ticks = itertools.count()
    assert list(found(chosen, deadline=8.0, clock=lambda: float(next(ticks)))) == [KEY]


@pytest.mark.parametrize("broken", ["inputs", "candidates"])
def test_a_shape_that_cannot_be_searched_stops_no_other(broken):
    chosen = asked(Doubling(name="test.broken", **{broken: no_room}))
    chosen.blocks(Doubling(), SHAPE)
    assert list(found(chosen)) == [KEY]


def test_blocks_are_tried_once_however_often_they_are_named():
    sizes = [8, 16, 16, 32, 8, 16]
    measured = found(asked(candidates=lambda shape, facts: ({"BN": size} for size in sizes)))[KEY]
    assert (measured.tried, measured.failed) == (2, 0)


def test_a_search_tells_how_far_it_is():
    heard = []
    chosen = asked()
    chosen.blocks(Doubling(), (("N", 9),))
    found(chosen, advance=lambda done, total: heard.append((done, total)))
    assert heard == [(0, 2), (1, 2), (2, 2)]


def test_copies_of_the_inputs_overfill_the_cache():
    seen = []

    def inputs(shape, device, generator):
        seen.append(torch.rand(1 << 16, generator=generator))
        return (seen[-1],)

    facts = replace(SMALL, cache_bytes=1 << 20)
    found(asked(facts=facts, inputs=inputs))
    assert sum(one.numel() * 4 for one in seen) >= 1 << 20
    assert not torch.equal(seen[0], seen[1])


def test_a_choice_comes_from_the_profile_then_the_built_in_table_then_the_default():
    built_in = {"NVIDIA H200": lambda shape, facts: {"BN": 32}}
    assert asked(facts=SMALL, built_in=built_in).taken[KEY].origin == "default"
    chosen = asked(facts=LARGE, built_in=built_in).taken[KEY]
    assert (chosen.origin, chosen.blocks) == ("built-in", {"BN": 32})
    known = Table(LARGE)
    known.store({KEY: {"BN": 16}})
    assert known.blocks(Doubling(built_in=built_in), SHAPE) == {"BN": 16}
    assert known.taken[KEY].origin == "profile"


def test_without_the_built_in_table_the_default_is_taken():
    plain = Table(LARGE)
    plain.uses_built_in = False
    assert plain.blocks(Doubling(built_in={"NVIDIA H200": lambda shape, facts: {"BN": 32}}), SHAPE) == {"BN": 8}


@pytest.mark.parametrize("stored", [{"BN": 24}, {"BM": 16}, {"BN": 16, "num_warps": 4}, {}], ids=str)
def test_stored_blocks_that_are_no_candidate_are_told_and_left_alone(stored, caplog):
    known = Table(SMALL)
    known.store({KEY: stored})
    with caplog.at_level(logging.WARNING):
        assert known.blocks(Doubling(), SHAPE) == {"BN": 8}
    assert "test.double {'N': 7}" in caplog.text


def test_what_a_launch_has_taken_stays_whatever_is_stored_later():
    chosen = asked()
    chosen.store({KEY: {"BN": 16}})
    assert chosen.blocks(Doubling(), SHAPE) == {"BN": 8}
    chosen.replace({KEY: {"BN": 16}})
    assert chosen.blocks(Doubling(), SHAPE) == {"BN": 16}


def test_nobody_can_change_what_others_have_been_given():
    blocks = asked().taken[KEY].blocks
    with pytest.raises(TypeError):
        blocks["BN"] = 16


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "store", "replace"]), st.integers(1, 3), st.sampled_from([8, 16, 32])))
)
def test_a_shape_is_answered_alike_until_it_is_replaced(walk):
    """Against a model: what is stored counts until it is asked for, what replaces counts always."""
    chosen, tunable = Table(SMALL), Doubling()
    answers: dict[int, int] = {}
    stored: dict[int, int] = {}
    for what, n, size in walk:
        key = ("test.double", (("N", n),))
        if what == "ask":
            expected = answers.setdefault(n, stored.get(n, 8))
            assert chosen.blocks(tunable, key[1]) == {"BN": expected}
        elif what == "store":
            chosen.store({key: {"BN": size}})
            if n not in answers:
                stored[n] = size
        else:
            chosen.replace({key: {"BN": size}})
            stored[n] = size
            answers.pop(n, None)


def test_loads_in_flight_are_as_many_as_shared_memory_holds():
    assert stages_that_fit(6, 20 << 10, 0, SMALL) == 4
    assert stages_that_fit(6, 20 << 10, 20 << 10, SMALL) == 3
    assert stages_that_fit(3, 20 << 10, 0, LARGE) == 3
    assert stages_that_fit(3, 200 << 10, 0, SMALL) == 1


SHAPES = {
    "linear.few_rows": [{"N": 34816, "K": 5120}, {"N": 70, "K": 300}],
    **{f"tiled_linear.{name}": [{"N": 34816, "K": 5120}, {"N": 70, "K": 300}] for name in tiled_linear.FORMATS},
    "paged_attention.attend": [
        *({"H": 24, "G": 4, "D": 256, "BQ": BQ, "bytes": 2} for BQ in (16, 64, 128)),
        {"H": 8, "G": 2, "D": 64, "BQ": 16, "bytes": 4},
    ],
    "moe.few_choose": [{"N": 2048, "E": 256, "C": 8}],
    "moe.few_gate_up": [{"N": 2048, "F": 512, "F_SHARED": 512, "C": 8}],
    "moe.few_down": [{"N": 2048, "F": 512, "F_SHARED": 512, "C": 8}],
    "moe.many_gate_up": [{"N": 2048, "F": 512, "BM": 128, "bytes": 2}, {"N": 48, "F": 20, "BM": 64, "bytes": 4}],
    "moe.many_down": [{"N": 2048, "F": 512, "BM": 128, "bytes": 2}, {"N": 48, "F": 20, "BM": 64, "bytes": 4}],
}
"""What every launch that chooses is asked for in some model."""


def launches():
    """All of this package, found where they are made."""
    found = {}
    for module in pkgutil.walk_packages(ninfer_kernels.__path__, "ninfer_kernels."):
        if module.name.rpartition(".")[2] in ("gpu", "blocks", "few_blocks", "many_blocks"):
            values = vars(importlib.import_module(module.name)).values()
            found.update({one.name: one for one in values if isinstance(one, Tunable)})
    return found


def asked_for():
    for name, tunable in launches().items():
        for shape in SHAPES[name]:
            yield tunable, shape


def test_every_launch_that_chooses_is_tested(device):
    assert sorted(launches()) == sorted(SHAPES)


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=["small", "large"])
def test_candidates_are_of_the_form_of_the_default_and_other_than_it(facts, device):
    for tunable, shape in asked_for():
        default = tunable.default(shape, facts)
        candidates = [dict(one) for one in tunable.candidates(shape, facts)]
        assert all(list(one) == list(default) for one in candidates), tunable.name
        assert any(one != default for one in candidates), tunable.name
        for make in tunable.built_in.values():
            assert list(make(shape, facts)) == list(default)


def test_programs_share_inputs_only_where_outputs_are_few_and_inputs_enough():
    from ninfer_kernels.linear.gpu import FEW_ROWS_BLOCKS, SPLIT_OUTPUTS

    def splits(N, K):
        return {one["SPLITS"] for one in FEW_ROWS_BLOCKS.candidates({"N": N, "K": K}, LARGE)}

    assert splits(2048, 4096) == splits(SPLIT_OUTPUTS, 4096) == {1, 2, 3, 4, 6, 8}
    assert splits(SPLIT_OUTPUTS + 1, 4096) == {1}
    assert splits(2048, 300) == {1, 2, 3, 4}
    assert splits(70, 100) == {1}


def test_a_profile_stored_before_programs_shared_inputs_is_told_and_left_alone(caplog):
    from ninfer_kernels.linear.gpu import FEW_ROWS_BLOCKS, few_rows_h200

    shape = {"N": 2048, "K": 4096}
    before = {"GROUPS": 8, "BN": 32, "BK": 64, "num_warps": 8, "num_stages": 3}
    known = Table(LARGE)
    known.store({("linear.few_rows", tuple(shape.items())): before})
    with caplog.at_level(logging.WARNING):
        assert known.blocks(FEW_ROWS_BLOCKS, tuple(shape.items())) == few_rows_h200(shape, LARGE)
    assert "linear.few_rows {'N': 2048, 'K': 4096}: the profile's" in caplog.text
    shared = Table(LARGE)
    shared.store({("linear.few_rows", tuple(shape.items())): before | {"SPLITS": 1}})
    assert shared.blocks(FEW_ROWS_BLOCKS, tuple(shape.items())) == before | {"SPLITS": 1}


@given(st.integers(1, 40000), st.integers(1, 20000))
def test_what_is_built_in_for_a_product_is_a_candidate(N, K):
    from ninfer_kernels.linear.gpu import few_rows_candidates, few_rows_h200

    shape = {"N": N, "K": K}
    assert few_rows_h200(shape, LARGE) in list(few_rows_candidates(shape, LARGE))


def test_a_search_may_record_a_product_by_a_matrix_it_has_just_made(device, monkeypatch):
    from ninfer_kernels.linear import gpu, tickets

    _, weight = gpu.few_rows_inputs({"N": 70, "K": 300}, device, torch.Generator(device).manual_seed(0))
    monkeypatch.setattr(tickets, "is_recorded", lambda weight: True)
    assert not tickets.tickets(weight).any()


def test_every_candidate_of_the_few_row_product_gives_its_result(device):
    """A search through the interpreter, in fp16: a product of bf16 is wrong there."""
    from ninfer_kernels.linear.gpu import FEW_ROWS_BLOCKS

    tunable = FEW_ROWS_BLOCKS

    def inputs(shape, device, generator):
        return tuple(one.to(torch.float16) for one in tunable.inputs(shape, device, generator))

    class Any:
        def seconds(self, work):
            work()
            return 1.0

    shape = (("N", 70), ("K", 1100))
    chosen = Table(replace(LARGE, cache_bytes=1))
    chosen.blocks(replace(tunable, inputs=inputs), shape)
    measured = search(chosen.taken.items(), chosen.facts, device, deadline=1.0, timer=Any(), clock=lambda: 0.0)
    (one,) = measured.values()
    assert one.failed == 0
    assert one.tried >= 20


def test_the_neighbour_of_a_search_is_a_product(device, monkeypatch):
    from ninfer_kernels.linear import gpu

    monkeypatch.setattr(gpu, "NEIGHBOUR", {"N": 70, "K": 300})
    product = gpu.neighbour(device)()
    assert product.shape == (8, 70)
    assert torch.isfinite(product).all()


def test_attention_can_be_searched(device, monkeypatch):
    from ninfer_kernels.paged_attention import blocks

    monkeypatch.setattr(blocks, "SEARCHED_CONTEXT", 200)
    monkeypatch.setattr(blocks, "SEARCHED_CHUNK", 20)
    for BQ in (16, 64):
        shape = {"H": 4, "G": 2, "D": 16, "BQ": BQ, "bytes": 4}
        made = blocks.ATTEND.inputs(shape, device, torch.Generator(device).manual_seed(0))
        facts = table(device).facts
        wanted = blocks.ATTEND.run(made, blocks.ATTEND.default(shape, facts))
        last = list(blocks.ATTEND.candidates(shape, facts))[-1]
        assert torch.isfinite(wanted).all()
        torch.testing.assert_close(blocks.ATTEND.run(made, last), wanted, rtol=0, atol=1e-5)
