"""Every fault in every phase of a request: the lanes come back, the others are untouched, the next answer is fresh.

The phases are reached boundary by boundary. A neighbour runs beside the victim; afterwards a new request must equal the
same request on an engine that saw no fault.
"""

import functools

import pytest
from engines import Driver, end, events, open_engine

from ninfer_core.api import Delta, Result, Unavailable
from ninfer_core.errors import InternalError, QueueTimeout

NEXT = "a word about what comes next"
SCRIPT = {
    "replies": [
        {"match": "victim", "text": "abcdefgh"},
        {"match": "poisoned at once", "text": "abcdefgh", "nan_at": 0},
        {"match": "poisoned late", "text": "abcdefgh", "nan_at": 4},
        {"match": "poisoned last", "text": "abcdefgh", "nan_at": 8},
        {"match": "neighbour", "text": "neighbourly " * 8},
    ],
    "default": {"text": NEXT},
    "draft": [2, 0],
}
PHASES = ("queued", "prefilling", "decoding", "finishing")
FLAGS = ("--prefill-chunk", "64", "--max-concurrency", "2", "--concurrent-prefill")


@functools.cache
def fresh(folder):
    driver = Driver(open_engine(folder, SCRIPT, *FLAGS))
    generation = driver.submit("next")
    driver.run()
    return end(generation).token_ids


def bring_to(driver, phase, word="victim", patience=1e9):
    """A victim in ``phase``, its neighbour, and what else runs."""
    neighbour = driver.submit("neighbour")
    driver.step()
    driver.step()
    blocker = driver.submit("neighbour two") if phase == "queued" else None
    for _ in range(2 if blocker else 0):
        driver.step()
    victim = driver.submit(word + "." * 200, patience=patience)
    if phase == "queued":
        driver.step()
        assert not events(victim)
        return victim, [neighbour, blocker]
    lane = None
    for _ in range(400):
        driver.step()
        lane = next((x for x in driver.worker.lanes.active if x.request.generation is victim), lane)
        if (
            lane is not None
            and {
                "prefilling": lane.frontier > 0 and lane.prefill_remaining,
                "decoding": lane.decoding,
                "finishing": len(lane.session.token_ids) >= 7,
            }[phase]
        ):
            break
    return victim, [neighbour]


def check_afterwards(driver, others, folder):
    driver.run()
    for other in others:
        assert end(other).content == "neighbourly " * 8
    driver.check_at_rest()
    again = driver.submit("next")
    driver.run()
    assert end(again).token_ids == fresh(folder)
    driver.check_at_rest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("script")


@pytest.fixture
def driver(folder):
    return Driver(open_engine(folder, SCRIPT, *FLAGS))


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_goes_away(driver, folder, phase):
    victim, others = bring_to(driver, phase)
    victim.cancel()
    driver.step()
    driver.step()
    assert end(victim).finish in ("cancelled", "stop_token")
    check_afterwards(driver, others, folder)


@pytest.mark.contract("ready.memory")
@pytest.mark.parametrize("phase", PHASES)
def test_out_of_memory(driver, folder, phase):
    victim, others = bring_to(driver, phase)
    model = driver.worker.program.model
    forward = type(model).forward

    def broken(step, cache, state):
        model.forward = functools.partial(forward, model)
        raise MemoryError

    model.forward = broken
    driver.step()
    lost = [generation for generation in [victim, *others] if isinstance(end(generation), InternalError)]
    assert len(lost) == 2  # what held the two lanes
    if phase == "queued":
        assert victim not in lost
    driver.run()
    if victim not in lost:
        assert end(victim).content == "abcdefgh"
    check_afterwards(driver, [other for other in others if other not in lost], folder)


@pytest.mark.contract("ready.memory")
@pytest.mark.parametrize("phase", ["admitting", "ending"])
def test_out_of_memory_between_two_phases(driver, folder, phase):
    """Being admitted it takes the victim alone; where its answer is put together, what ran, and still everybody is
    told."""
    place = {"admitting": (driver.worker.lanes, "_open_session"), "ending": (driver.worker._publisher, "finished")}
    owner, name = place[phase]
    neighbour = driver.submit("neighbour")
    driver.step()
    driver.step()
    victim = driver.submit("victim")
    real = getattr(owner, name)

    def broken(*arguments):
        setattr(owner, name, real)
        raise MemoryError

    setattr(owner, name, broken)
    driver.run()
    assert isinstance(end(victim), InternalError)
    if phase == "admitting":
        assert driver.worker.counters.engine_recoveries == 0
        check_afterwards(driver, [neighbour], folder)
    else:
        assert isinstance(end(neighbour), InternalError)
        check_afterwards(driver, [], folder)


@pytest.mark.contract("ready.eight")
def test_memory_that_stays_short_of_every_admission_ends_the_engine_in_the_end(driver):
    def broken(request):
        raise MemoryError

    driver.worker.lanes._open_session = broken
    waiting = [driver.submit(f"{n}") for n in range(12)]
    driver.worker._run()
    assert driver.engine.failed == "InvariantError"
    failed = [isinstance(end(generation), InternalError) for generation in waiting]
    assert failed == [True] * 9 + [False] * 3
    assert all(isinstance(end(generation), Unavailable) for generation in waiting[9:])
    driver.check_at_rest()


@pytest.mark.parametrize("word", ["poisoned at once", "poisoned late", "poisoned last"])
def test_a_row_of_nan(driver, folder, word):
    victim, others = bring_to(driver, "prefilling", word)
    driver.run()
    assert isinstance(end(victim), InternalError)
    seen = "".join(event.text for event in events(victim) if isinstance(event, Delta))
    assert seen == {"poisoned at once": "", "poisoned late": "abcd", "poisoned last": "abcdefgh"}[word]
    check_afterwards(driver, others, folder)


def test_a_row_of_nan_beside_a_request_in_each_phase(tmp_path, folder):
    """The neighbour's logits turn bad at one token after the other, so that every phase of the victim is met."""
    replies = [{"match": f"bad {n}.", "text": "neighbourly " * 8, "nan_at": n} for n in range(2, 60)]
    driver = Driver(open_engine(tmp_path, {**SCRIPT, "replies": [*SCRIPT["replies"], *replies]}, *FLAGS))
    met = set()
    for n in range(2, 60):
        bad = driver.submit(f"bad {n}.")
        driver.step()
        driver.step()
        other = driver.submit("neighbour two", max_tokens=4)
        victim = driver.submit("victim" + "." * 200)
        before = "queued"
        while not isinstance(end(bad), InternalError):
            lane = next((x for x in driver.worker.lanes.active if x.request.generation is victim), None)
            if lane is not None:
                done = len(lane.session.token_ids)
                before = "prefilling" if lane.prefill_remaining else "decoding" if done < 7 else "finishing"
            driver.step()
        if end(victim) is None or before == "finishing":
            met.add(before)
        driver.run()
        assert end(victim).content == "abcdefgh"
        assert end(other).content == "neig"
        driver.check_at_rest()
        for generation in (bad, other, victim):
            generation._unit.done("consumer")
        if met == set(PHASES):
            break
    assert met == set(PHASES)
    check_afterwards(driver, [], folder)


@pytest.mark.parametrize("seconds", [-500.0, 500.0])
@pytest.mark.parametrize("phase", PHASES)
def test_a_clock_that_jumps(driver, folder, phase, seconds):
    victim, others = bring_to(driver, phase, patience=100.0)
    driver.now += seconds
    driver.run()
    outcome = end(victim)
    if phase == "queued" and seconds > 0:
        assert isinstance(outcome, QueueTimeout)
    else:
        assert outcome.content == "abcdefgh"  # a deadline ends with admission
        assert outcome.timings.to_json()["predicted_per_second"] >= 0
    check_afterwards(driver, others, folder)


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop(driver, phase):
    victim, others = bring_to(driver, phase)
    driver.engine.stop()
    driver.step()
    for generation in (victim, *others):
        outcome = end(generation)
        assert isinstance(outcome, Unavailable) or (isinstance(outcome, Result) and outcome.finish == "stop_token")
    driver.check_at_rest()
    assert not len(driver.worker.queue)


@pytest.mark.contract("stop.failure")
@pytest.mark.parametrize("phase", PHASES)
def test_a_plugin_that_raises_ends_the_engine_and_every_request(driver, phase):
    victim, others = bring_to(driver, phase)

    def broken(step, cache, state):
        raise KeyError("a bug of the model's")

    driver.worker.program.model.forward = broken
    driver.worker._run()
    assert driver.engine.failed == "KeyError"
    for generation in (victim, *others):
        assert isinstance(end(generation), InternalError | Unavailable)
    assert driver.engine.capacity.held == len(others) + 1  # until the consumers let go
    for generation in (victim, *others):
        generation._unit.done("consumer")
    assert driver.engine.capacity.held == 0
