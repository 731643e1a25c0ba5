"""What the garbage collector walks once a server is ready."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ninfer_core.serve.run import settle_heap


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("thread", [pytest.param(0, id="ten-thousand-tools")])
def test_a_large_request_does_not_have_everything_walked(thread):
    settle_heap()
    walked: list[int] = []

    def told(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            walked.append(info["generation"])

    gc.callbacks.append(told)
    try:
        held = [{"name": str(at), "of": [at]} for at in range(200_000)]
    finally:
        gc.callbacks.remove(told)
    assert len(held) == 200_000
    assert 1 in walked and 2 not in walked


def test_what_is_left_in_cycles_is_still_found():
    settle_heap()
    gone: list[int] = []

    class Knot:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            gone.append(1)

    for _ in range(5000):
        Knot()
    held = [[] for _ in range(5000)]
    assert len(gone) > 1000 and len(held) == 5000
