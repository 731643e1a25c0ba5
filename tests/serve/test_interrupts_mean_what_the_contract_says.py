"""Ctrl+C: the first asks, a second within five seconds stops, one during the stop abandons it."""

from __future__ import annotations

import io

from ninfer_core.serve.interrupts import Interrupts, Prompt


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_second_press_within_five_seconds_stops():
    clock = Clock()
    presses = Interrupts(clock)
    assert presses.press("ready") == "ask"
    clock.now += 5.0
    assert presses.press("ready") == "stop"


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
