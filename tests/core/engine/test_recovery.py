"""What a fault costs: the requests that were running, never the queue or the server."""

import pytest
import torch
from engines import Driver, end, open_engine

from ninfer_core.api import InvariantError, Unavailable
from ninfer_core.errors import InternalError

SCRIPT = {"replies": [{"match": "long", "text": "word " * 20}], "default": {"text": "Hello."}}


def fail_next(driver, error, times=1):
    """The next ``times`` forwards raise after they ran, as a device that runs out of memory does."""
    model = driver.worker.program.model
    forward = type(model).forward
    left = [times]

    def broken(step, cache, state):
        out = forward(model, step, cache, state)
        if left[0]:
            left[0] -= 1
            raise error
        return out

    model.forward = broken


@pytest.mark.contract("ready.memory")
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("no room"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["host", "gpu", "cpu"],
)
@pytest.mark.parametrize("phase", ["prefilling", "decoding"])
def test_out_of_memory_fails_what_ran_and_keeps_the_queue(tmp_path, error, phase):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2"))
    running = [driver.submit("long"), driver.submit("long two")]
    waiting = driver.submit("hi")
    for _ in range(0 if phase == "prefilling" else 6):
        driver.step()
    fail_next(driver, error)
    driver.run()
    failed = [isinstance(end(generation), InternalError) for generation in running]
    assert failed == ([True, False] if phase == "prefilling" else [True, True])
    assert end(waiting).content == "Hello."
    assert driver.worker.snapshot.counters.engine_recoveries == 1
    driver.check_at_rest()


@pytest.mark.contract("ready.recovered")
def test_after_a_recovery_answers_equal_a_fresh_servers(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    failed = driver.submit("long")
    driver.step()
    fail_next(driver, MemoryError())
    driver.run()
    assert isinstance(end(failed), InternalError)
    again = driver.submit("long")
    driver.run()
    fresh = Driver(open_engine(tmp_path, SCRIPT))
    want = fresh.submit("long")
    fresh.run()
    assert end(again).token_ids == end(want).token_ids


@pytest.mark.contract("ready.eight")
def test_eight_recoveries_in_a_row_are_survived_and_the_ninth_is_not(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-pending-requests", "20"))
    fail_next(driver, MemoryError(), times=8)
    for _ in range(9):
        driver.submit("hi")
    driver.run()
    assert driver.worker.snapshot.counters.engine_recoveries == 8
    fail_next(driver, MemoryError(), times=9)
    for _ in range(9):
        driver.submit("hi")
    with pytest.raises(InvariantError, match="8 recoveries"):
        driver.run()


def test_a_completed_unit_ends_the_streak(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-pending-requests", "40"))
    for _ in range(12):
        fail_next(driver, MemoryError())
        driver.submit("hi")
        driver.run()
        good = driver.submit("hi")
        driver.run()
        assert end(good).content == "Hello."
    assert driver.worker.snapshot.counters.engine_recoveries == 12


@pytest.mark.contract("ready.invariants")
def test_a_broken_invariant_is_the_engines_end_unless_asked_otherwise(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    fail_next(driver, InvariantError("broken"))
    driver.submit("hi")
    with pytest.raises(InvariantError):
        driver.run()
    driver = Driver(open_engine(tmp_path, SCRIPT, "--recover-invariant-failures"))
    fail_next(driver, InvariantError("broken"))
    broken, good = driver.submit("hi"), driver.submit("hi")
    driver.run()
    assert isinstance(end(broken), InternalError)
    assert end(good).content == "Hello."


def test_a_plugins_exception_is_the_engines_end(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)
    driver = Driver(engine)
    fail_next(driver, ValueError("a plugin's bug"))
    running, waiting = driver.submit("hi"), driver.submit("hi")
    driver.worker._run()  # what the engine's thread does
    assert isinstance(end(running), InternalError)
    assert isinstance(end(waiting), Unavailable)
    assert engine.failed == "ValueError"
    with pytest.raises(Unavailable):
        driver.submit("late")
