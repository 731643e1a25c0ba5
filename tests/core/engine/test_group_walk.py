"""Any walk over groups of judgements, generations beside them, clients that leave, clock jumps and faults keeps pages
and states accounted for, gives every judgement its score, and comes to rest with nothing held.

A call is played as the event loop plays it: at the first failure the group is given up, then the rest is cancelled.
"""

import tempfile
from pathlib import Path

import pytest
from engines import Driver, end, open_engine, text
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_scoring import NO, YES, expected, job

from ninfer_core.api import ApiError, Result
from ninfer_core.engine.scoring import Judgement, shared_prefix
from ninfer_core.errors import InternalError, Overloaded, QueueTimeout
from ninfer_core.text.prompt import PreparedPrompt

pytestmark = pytest.mark.contract("rerank.prefix")
SAID = {"panda": {YES: 20.0, NO: 17.0}, "Paris": {NO: 20.0, YES: 12.5}, "": {ord("?"): 20.0}}
REPLIES = [
    {"match": "panda", "text": "y", "logits": {"n": 17.0}},
    {"match": "Paris", "text": "n", "logits": {"y": 12.5}},
    {"match": "talk", "text": "word " * 12},
]
documents = st.lists(st.tuples(st.sampled_from(sorted(SAID)), st.integers(0, 150)), min_size=2, max_size=6)


class Call:
    """One group: its prefix, and each judgement with what the model says to it."""

    def __init__(self, prefix, judgements):
        self.prefix, self.judgements = prefix, judgements
        self.left = False

    def leave(self):
        self.left = True
        if self.prefix is not None:
            self.prefix.given_up = True
        for generation, _ in self.judgements:
            generation.cancel()


class Walk(RuleBasedStateMachine):
    @initialize(
        lanes=st.integers(1, 3),
        chunk=st.sampled_from(["64", "128"]),
        capacity=st.sampled_from(["512", "576", "1024"]),
        concurrent=st.booleans(),
        window=st.sampled_from([None, None, 40]),
    )
    def open(self, lanes, chunk, capacity, concurrent, window):
        self.folder = tempfile.TemporaryDirectory()
        flags = ["--max-context", "512", "--kv-capacity", capacity, "--max-concurrency", str(lanes)]
        flags += ["--prefill-chunk", chunk, "--max-pending-requests", "30", *["--concurrent-prefill"] * concurrent]
        flags += ["--kv-lease-growth"] * (window is not None)
        script = {"replies": REPLIES, "default": {"text": "?"}}
        self.driver = Driver(open_engine(Path(self.folder.name), script, *flags))
        self.lanes = self.driver.worker.lanes
        self.lanes._window = window
        self.calls, self.asked, self.faults = [], [], 0

    @rule(shared=st.sampled_from([63, 64, 70, 130, 200]), texts=documents, patience=st.sampled_from([0.05, 1e9]))
    def judge(self, shared, texts, patience):
        self.call(shared, texts, patience)

    def call(self, shared, texts, patience):
        encode = self.driver.engine.format.tokenizer.encode_with_control
        prompts = ["." * shared + word + "x" * padding + "." for word, padding in texts]
        prefix = shared_prefix([Judgement.of(job("d"), _prepared(encode(prompt))) for prompt in prompts])
        call = Call(prefix, [])
        self.calls.append(call)
        for prompt, (word, _) in zip(prompts, texts, strict=True):
            try:
                generation = self.driver.submit(
                    prompt, max_tokens=1, scored=(YES, NO), prefix=prefix, patience=patience
                )
            except Overloaded:
                call.leave()
                return
            generation._unit.done("consumer")
            call.judgements.append((generation, SAID[word]))

    @rule(shared=st.sampled_from([64, 130]), texts=documents)
    def judge_more(self, shared, texts):
        self.call(shared, texts, 1e9)

    @rule(padding=st.integers(0, 300), limit=st.integers(1, 200))
    def talk(self, padding, limit):
        try:
            generation = self.driver.submit("talk" + "." * padding, max_tokens=limit)
        except Overloaded:
            return
        generation._unit.done("consumer")
        self.asked.append(generation)

    @rule(steps=st.integers(1, 12))
    def step(self, steps):
        self.steps(steps)

    def steps(self, count):
        for _ in range(count):
            self.driver.step()
            self.notice()

    @rule()
    def step_on(self):
        self.steps(15)

    def notice(self):
        for call in self.calls:
            if not call.left and any(isinstance(end(one), ApiError) for one, _ in call.judgements):
                call.leave()

    @rule(data=st.data(), one_of_many=st.booleans())
    def leave(self, data, one_of_many):
        """A client goes: that of a call, or that of a generation."""
        if one_of_many and self.calls:
            data.draw(st.sampled_from(self.calls)).leave()
        elif self.asked:
            data.draw(st.sampled_from(self.asked)).cancel()

    @rule(seconds=st.sampled_from([0.01, 1.0]))
    def time_passes(self, seconds):
        self.driver.now += seconds

    @precondition(lambda self: self.driver.survives_faults)
    @rule(where=st.sampled_from(["unit", "admission", "copy"]))
    def run_out_of_memory(self, where):
        self.faults += 1
        if where == "unit":
            self.driver.run_out_of_memory_in_the_next_unit()
        elif where == "admission":
            self.driver.run_out_of_memory_in_the_next_admission()
        else:
            self.run_out_of_memory_in_the_next_copy()

    def run_out_of_memory_in_the_next_copy(self):
        """Of a state: a lane is to begin with it, or it is to be held."""
        states = self.driver.worker.program.states

        def broken(source, target):
            del states.copy
            raise MemoryError

        states.copy = broken

    @invariant()
    def pages_and_states_are_accounted_for(self):
        if not hasattr(self, "driver"):
            return
        self.lanes.check()
        for lane in self.lanes.active:
            assert tuple(lane.ledger[: lane.prompt_tokens]) == lane.request.prompt_ids
            assert lane.reused in (0, len(lane.request.prefix.ids) if lane.request.prefix else 0)
            assert lane.frontier >= lane.space.shared * 64 >= lane.reused

    @invariant()
    def every_judgement_has_its_score(self):
        for call in getattr(self, "calls", []):
            for generation, logits in call.judgements:
                result = end(generation)
                if isinstance(result, Result) and result.finish != "cancelled":
                    wanted = [expected(self.driver.engine, logits, token) for token in (YES, NO)]
                    assert result.scores == pytest.approx(wanted, abs=1e-9)
                elif isinstance(result, ApiError):
                    assert isinstance(result, QueueTimeout) or (isinstance(result, InternalError) and self.faults)

    @invariant()
    def every_answer_is_the_reply(self):
        for generation in getattr(self, "asked", []):
            assert ("word " * 12).startswith(text(generation))

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        for _ in range(3000):
            if self.driver.worker.idle and not len(self.driver.worker.queue):
                break
            self.steps(1)
        # what nobody left has let go of its beginning by itself
        self.driver.check_at_rest()
        for call in self.calls:
            assert all(end(generation) is not None for generation, _ in call.judgements)
        assert all(end(generation) is not None for generation in self.asked)
        assert self.driver.engine.capacity.held == 0
        self.folder.cleanup()


def _prepared(ids):
    return PreparedPrompt(ids=tuple(ids), in_reasoning=False, thinking=False, reasoning=None, tool_texts=())


TestWalk = Walk.TestCase
# a failing walk is short enough to read, and shrinking one costs minutes
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
TestWalk.settings = settings(max_examples=25, stateful_step_count=25, deadline=None, phases=PHASES)
