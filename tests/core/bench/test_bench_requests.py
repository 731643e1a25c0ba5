"""Requests that run together: whose tokens count from when to when, and which runs and rows are left out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ninfer_core.api import Delta, Done
from ninfer_core.api.jobs import Timings
from ninfer_core.cli.bench.requests import Measured, Requests, _measure, _rows
from ninfer_core.cli.bench.work import Work
from ninfer_core.engine.generation import LocalGeneration, Outbox

PASSES = 6  # of the event loop, between two boundaries
WORK = Work(bytes_by_share={1.0: 1000}, elements_by_share={1.0: 1}, head_elements=1, state_bytes=0, token_bytes=0.0)
SUBJECT = SimpleNamespace(label="tiny", work=WORK)


class Scripted:
    """An engine of one boundary a second, each bringing its requests as many tokens as ``boundaries`` says."""

    def __init__(self, boundaries: list[str]) -> None:
        self.boundaries = boundaries  # a character a request: how many tokens, and "." for no event
        self.seconds = 0.0
        self.rows: list[LocalGeneration] = []
        self.info = SimpleNamespace(vocab_tokens=9)
        self.format = SimpleNamespace(tokenizer=SimpleNamespace(control_tokens={}))

    async def complete(self, job) -> LocalGeneration:
        unit = SimpleNamespace(done=lambda side: None)
        self.rows.append(LocalGeneration(sampling={}, max_tokens=job.max_tokens, unit=unit))
        if len(self.rows) == len(self.boundaries[0]):
            self.task = asyncio.create_task(self._run())
        return self.rows[-1]

    def perf_counter(self) -> float:
        """No two readings are the same."""
        self.seconds += 1e-6
        return self.seconds

    async def _run(self) -> None:
        outbox = Outbox()
        outbox.loop = asyncio.get_running_loop()
        ends = [max(at for at, one in enumerate(column) if one != ".") for column in zip(*self.boundaries, strict=True)]
        for at, counts in enumerate(self.boundaries):
            for _ in range(PASSES):
                await asyncio.sleep(0)
            self.seconds += 1
            for row, count in enumerate(counts):
                if count != ".":
                    tokens = (1,) * int(count)
                    last = Done(result=None, token_ids=tokens)
                    delta = Delta(channel="content", text="x", token_ids=tokens, timings=Timings())
                    outbox.put(self.rows[row], last if at == ends[row] else delta)
            outbox.flush()


@pytest.fixture
def measured(monkeypatch):
    def one(*boundaries: str) -> Measured:
        engine = Scripted(list(boundaries))
        monkeypatch.setattr("ninfer_core.cli.bench.requests.time", engine)
        shown = SimpleNamespace(first_token=lambda: None, tokens=lambda done, total: None)
        requests = Requests(rows=len(boundaries[0]), prompt_tokens=3, decode_tokens=9)
        return asyncio.run(_measure(engine, requests, 0, shown, []))

    return one


@pytest.mark.parametrize(
    ("boundaries", "decoded", "rounds"),
    [
        (("1", "1", "1"), 2, 2),
        (("111", "111", "111", "111"), 9, 3),
        # the first to begin is the first to end; its last round brings tokens to the others too
        (("1..", "11.", "111", "111", "111", ".11", "..1"), 6, 2),
        # so it is when the last to begin comes first in a round
        (("..1", ".11", "111", "111", "111", "11.", "1.."), 6, 2),
        # a draft was right: rows advance at their own pace
        (("11", "41", "41", ".1", ".1"), 10, 2),
        # text that is not whole yet brings its tokens later
        (("11", "1.", "12", "1.", "12", ".1"), 8, 4),
    ],
)
def test_all_tokens_of_a_round_count_with_its_time(measured, boundaries, decoded, rounds):
    found = measured(*boundaries)
    assert found.decoded == decoded
    assert found.decode_ms == pytest.approx(1e3 * rounds, abs=1)


def test_a_request_that_ends_before_the_last_begins_leaves_nothing_to_count(measured):
    found = measured("1.", "1.", ".1", ".1")
    assert (found.decoded, found.decode_ms) == (0, 0.0)
    assert found.prefill_ms > 0


def run(decoded: int, decode_ms: float) -> Measured:
    return Measured(prefill_ms=5.0, decode_ms=decode_ms, decoded=decoded, boundaries=[])


def test_runs_that_decoded_nothing_do_not_count_beside_those_that_did():
    requests = Requests(rows=2, prompt_tokens=3, decode_tokens=9)
    rows, missing = _rows(SUBJECT, requests, [run(0, 0.0), run(8, 4.0), run(8, 6.0)])
    assert [one.op for one in rows] == ["prefill", "decode"]
    assert (rows[1].tokens, rows[1].median_ms) == (8, 5.0)
    assert rows[1].bytes_moved == 4 * 1000, "four rounds of two rows"
    assert [one.partition(":")[0] for one in missing] == ["no decode_host row for R2-P3-D9"]


@pytest.mark.parametrize(
    ("rows", "why"), [(2, "the first request ended before the last began"), (1, "all its tokens came at once")]
)
def test_a_decode_row_that_is_left_out_is_told_with_the_way_out(rows, why):
    made, missing = _rows(SUBJECT, Requests(rows=rows, prompt_tokens=3, decode_tokens=9), [run(0, 0.0)])
    assert [one.op for one in made] == ["prefill"]
    assert missing[0] == f"no decode row for R{rows}-P3-D9: {why}; use a larger --decode-tokens"


def test_a_prompt_measured_alone_is_missing_nothing():
    made, missing = _rows(SUBJECT, Requests(rows=1, prompt_tokens=3, decode_tokens=1), [run(0, 0.0)])
    assert ([one.op for one in made], missing) == (["prefill"], [])
