"""Ctrl+C: the first asks, a second within five seconds stops, one during the stop abandons it."""

from __future__ import annotations

import io

import pytest
from live_server import Live, eventually

from ninfer_core.serve import run
from ninfer_core.serve.interrupts import Interrupts, Prompt


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.contract("stop.confirmed")
def test_the_second_press_within_five_seconds_stops():
    clock = Clock()
    presses = Interrupts(clock)
    assert presses.press("ready") == "ask"
    clock.now += 5.0
    assert presses.press("ready") == "stop"


@pytest.mark.contract("stop.unconfirmed")
def test_a_press_after_five_seconds_asks_again():
    clock = Clock()
    presses = Interrupts(clock)
    assert presses.press("ready") == "ask"
    clock.now += 5.01
    assert presses.press("ready") == "ask"
    clock.now += 1
    assert presses.press("ready") == "stop"


def test_a_press_before_ready_ends_the_start_and_one_during_the_stop_abandons_it():
    assert Interrupts(Clock()).press("loading") == "end_startup"
    assert Interrupts(Clock()).press("stopping") == "abandon"
    assert Interrupts(Clock()).press("failed") == "abandon"


def test_without_a_terminal_nothing_is_drawn():
    out = io.StringIO()
    prompt = Prompt(out)
    prompt.show()
    prompt.clear()
    assert out.getvalue() == ""


class Console(Prompt):
    """What a terminal would show."""

    shown, taken_away = 0, 0

    def show(self) -> None:
        self.shown += 1

    def clear(self) -> None:
        self.taken_away += 1


@pytest.mark.contract("stop.unconfirmed")
def test_a_press_that_is_not_confirmed_is_taken_back_and_serving_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "CONFIRM_SECONDS", 0.05)
    live = Live({"default": {"text": "Hello."}}, tmp_path)
    console = live.server._prompt = Console()
    live.press()
    eventually(lambda: console.shown == console.taken_away == 1, "shown and taken away")
    assert b"Hello." in live.answer("/completion", {"prompt": "x"})
    assert live.stop() == 0
