"""Any walk over submissions, cancellations, clock jumps, faults and boundaries keeps the engine's promises.

The scripted family's pages and states hold hashes of the tokens consumed, so a wrong page, slot or frontier is a wrong
text. Checked after every step: pages and states are conserved, what is visible is a prefix of the reply, requests start
in the order they came, a capacity unit is held exactly as long as somebody needs it.
"""

import tempfile
from pathlib import Path

import pytest
from engines import Driver, end, events, open_engine, text
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ninfer_core.api import ApiError, Result, SamplingRequest
from ninfer_core.errors import InternalError, Overloaded, QueueTimeout

pytestmark = pytest.mark.contract("run.order", "run.entitlement")
REPLIES = {"aa": "short", "bb": "A reply of some length, with words and words and words in it.", "cc": "tick " * 30}


class Walk(RuleBasedStateMachine):
    @initialize(
        lanes=st.integers(1, 4),
        chunk=st.sampled_from(["64", "128"]),
        drafts=st.lists(st.integers(0, 4), min_size=1, max_size=3),
        dtype=st.sampled_from(["bf16", "int8"]),
        ngram=st.booleans(),
        capacity=st.sampled_from(["512", "768", "1024"]),
        rounds=st.sampled_from(["0", "1", "3"]),
        concurrent=st.booleans(),
        window=st.sampled_from([None, None, 40, 100]),
    )
    def open(self, lanes, chunk, drafts, dtype, ngram, capacity, rounds, concurrent, window):
        self.folder = tempfile.TemporaryDirectory()
        script = {"replies": [{"match": m, "text": t} for m, t in REPLIES.items()], "draft": drafts}
        flags = ["--max-context", "512", "--kv-capacity", capacity, "--max-concurrency", str(lanes)]
        flags += ["--prefill-chunk", chunk, "--kv-dtype", dtype, "--max-pending-requests", "6"]
        flags += ["--decode-rounds-per-prefill", rounds, *(["--spec", "ngram"] if ngram else [])]
        flags += ["--concurrent-prefill"] * concurrent + ["--kv-lease-growth"] * (window is not None)
        self.driver = Driver(open_engine(Path(self.folder.name), script, *flags))
        self.driver.worker.lanes._window = window
        self.leases = window is not None
        self.faults = 0
        self.asked = []  # (generation, reply), in submission order
        self.patience = {}

    @rule(
        word=st.sampled_from(sorted(REPLIES)),
        padding=st.integers(0, 300),
        limit=st.one_of(st.none(), st.integers(1, 200)),
        patience=st.sampled_from([0.05, 5.0, 1e9]),
    )
    def submit(self, word, padding, limit, patience):
        held = self.driver.engine.capacity.held
        try:
            generation = self.driver.submit(
                word + "." * padding,
                max_tokens=limit,
                sampling=SamplingRequest(seed=len(self.asked), temperature=1.0),
                patience=patience,
            )
        except Overloaded:
            assert held == self.driver.engine.capacity.bound
            return
        self.asked.append((generation, REPLIES[word]))

    @rule(steps=st.integers(1, 12))
    def step(self, steps):
        for _ in range(steps):
            self.driver.step()

    @rule(data=st.data())
    def cancel(self, data):
        if self.asked:
            data.draw(st.sampled_from(self.asked))[0].cancel()

    @rule(data=st.data())
    def let_go(self, data):
        """The consumer leaves, before or after the end."""
        if self.asked:
            generation = data.draw(st.sampled_from(self.asked))[0]
            generation.cancel()
            generation._unit.done("consumer")

    @rule(seconds=st.sampled_from([0.01, 1.0, 100.0]))
    def time_passes(self, seconds):
        self.driver.now += seconds

    @precondition(lambda self: self.driver.survives_faults)
    @rule()
    def run_out_of_memory(self):
        self.driver.run_out_of_memory_in_the_next_unit()
        self.faults += 1

    @precondition(lambda self: self.driver.survives_faults)
    @rule()
    def run_out_of_memory_in_an_admission(self):
        self.driver.run_out_of_memory_in_the_next_admission()
        self.faults += 1

    @invariant()
    def pages_and_states_are_conserved(self):
        if not hasattr(self, "driver"):
            return
        worker = self.driver.worker
        worker.lanes.pool.check()
        running = len(worker.lanes.active)
        assert worker.program.states.available == worker.program.states.slots - running
        assert len({lane.state_slot for lane in worker.lanes.active}) == running
        for lane in worker.lanes.active:
            assert len(lane.space.pages) <= lane.space.entitlement <= lane.request.entitlement
            assert self.leases or lane.space.entitlement == lane.request.entitlement
            assert lane.frontier <= len(lane.ledger)
            assert tuple(lane.ledger[: lane.prompt_tokens]) == lane.request.prompt_ids

    @invariant()
    def what_is_visible_is_a_prefix_of_the_reply(self):
        for generation, reply in getattr(self, "asked", []):
            seen = text(generation)
            assert reply.startswith(seen)
            result = end(generation)
            if isinstance(result, Result) and result.finish in ("stop_token", "output_limit"):
                whole = reply[: generation.max_tokens]
                assert result.content == seen
                # an answer whose pages could not grow ends early, and says so
                assert seen == whole or (self.leases and result.finish == "output_limit" and whole.startswith(seen))
            elif isinstance(result, InternalError):
                assert self.faults
            elif isinstance(result, ApiError):
                assert isinstance(result, QueueTimeout)
                assert not seen

    @invariant()
    def requests_start_in_the_order_they_came(self):
        ran = [bool(events(g)) for g, _ in getattr(self, "asked", []) if not (g.cancelled or _expired(g))]
        assert ran == sorted(ran, reverse=True)

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        self.driver.check_at_rest()
        for generation, _ in self.asked:
            assert end(generation) is not None
            generation._unit.done("consumer")
        assert self.driver.engine.capacity.held == 0
        self.folder.cleanup()


def _expired(generation):
    return isinstance(end(generation), QueueTimeout)


TestWalk = Walk.TestCase
# a failing walk is short enough to read, and shrinking one costs minutes
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
TestWalk.settings = settings(max_examples=20, stateful_step_count=30, deadline=None, phases=PHASES)
