"""What every proposer of draft tokens must do. None of it is about being right: drafts only change the speed."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from ninfer_core.api import CopySource, Draft, DraftRequest, OptionValues, SpecContext, SpeculativeBackend

CONTROL = frozenset({250, 251, 252})


class CopySourceContract:
    """Subclass with ``make_source``, which returns a fresh source."""

    vocab_tokens: ClassVar[int] = 256

    def make_source(self) -> CopySource:
        raise NotImplementedError

    def request(self, request_id: int, rng: random.Random) -> DraftRequest:
        """A request whose prompt repeats itself, with one tool text."""
        phrase = [rng.randrange(self.vocab_tokens) for _ in range(24)]
        noise = [rng.randrange(self.vocab_tokens) for _ in range(9)]
        prompt = phrase + noise + phrase + noise[:4]
        return DraftRequest(request_id=request_id, prompt_ids=tuple(prompt), tool_texts=(tuple(phrase + noise),))

    def test_the_bound_is_a_number_of_tokens(self) -> None:
        assert 0 <= self.make_source().max_drafts <= 63

    @pytest.mark.parametrize("seed", range(5))
    def test_a_proposal_keeps_to_the_maximum_asked_for(self, seed: int) -> None:
        rng, source = random.Random(seed), self.make_source()
        request = self.request(1, rng)
        handle, ledger = source.begin(request), list(request.prompt_ids)
        for _ in range(60):
            maximum = rng.randint(0, source.max_drafts + 2)
            draft = source.propose(handle, ledger, maximum)
            if draft is not None:
                self._check(draft, maximum)
                source.observe(handle, draft, rng.randint(0, len(draft.tokens)))
            ledger += self._growth(ledger, rng)
        source.finish(handle)

    def test_requests_do_not_influence_each_other(self) -> None:
        alone = [self._play(self.make_source(), [i])[i] for i in range(3)]
        source = self.make_source()
        together = self._play(source, [0, 1, 2])
        assert [together[i] for i in range(3)] == alone

    def test_the_same_request_gets_the_same_proposals(self) -> None:
        source = self.make_source()
        assert self._play(source, [4]) == self._play(source, [4]) == self._play(self.make_source(), [4])

    def test_what_it_is_given_stays_as_it_was(self) -> None:
        source = self.make_source()
        request = self.request(1, random.Random(1))
        prompt, ledger = list(request.prompt_ids), [*request.prompt_ids, 3]
        given = DraftRequest(request_id=1, prompt_ids=prompt, tool_texts=request.tool_texts)
        handle = source.begin(given)
        source.propose(handle, ledger, source.max_drafts)
        assert prompt == list(request.prompt_ids)
        assert ledger == [*request.prompt_ids, 3]
        source.finish(handle)

    @pytest.mark.parametrize("prompt", [(), (1,), (1,) * 400], ids=["empty", "one", "constant"])
    def test_odd_prompts_are_served(self, prompt: tuple[int, ...]) -> None:
        source = self.make_source()
        handle, ledger = source.begin(DraftRequest(request_id=1, prompt_ids=prompt)), [*prompt, 1]
        for _ in range(5):
            draft = source.propose(handle, ledger, source.max_drafts)
            if draft is not None:
                self._check(draft, source.max_drafts)
            ledger += [1, 1]
        source.finish(handle)

    def test_a_request_may_end_before_any_proposal(self) -> None:
        source = self.make_source()
        source.finish(source.begin(self.request(1, random.Random(1))))

    def test_a_ledger_may_grow_by_any_number_of_tokens_between_proposals(self) -> None:
        source, rng = self.make_source(), random.Random(8)
        request = self.request(1, rng)
        handle, ledger = source.begin(request), list(request.prompt_ids)
        for growth in (0, 1, 2, 64, 1, 0, 300, 5):
            ledger += [rng.randrange(self.vocab_tokens) for _ in range(growth)]
            draft = source.propose(handle, ledger, source.max_drafts)
            if draft is not None:
                self._check(draft, source.max_drafts)
        source.finish(handle)

    def test_finish_lets_go_of_the_request(self) -> None:
        source = self.make_source()
        self._play(source, list(range(10)))
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(10):
            self._play(source, list(range(10)))
        gc.collect()
        assert len(gc.get_objects()) - before < 100, "objects of 100 finished requests are still there"

    def _play(self, source: CopySource, seeds: list[int]) -> dict[int, list[Draft | None]]:
        """Twenty rounds of some requests side by side; each follows its own text, whatever was proposed."""
        runs = {}
        for seed in seeds:
            rng = random.Random(seed)
            request = self.request(seed, rng)
            runs[seed] = (rng, source.begin(request), list(request.prompt_ids))
        out: dict[int, list[Draft | None]] = {seed: [] for seed in seeds}
        for _ in range(20):
            for seed, (rng, handle, ledger) in runs.items():
                ledger += self._growth(ledger, rng)
                draft = source.propose(handle, ledger, source.max_drafts)
                if draft is not None:
                    source.observe(handle, draft, len(draft.tokens) // 2)
                out[seed].append(draft)
        for _, handle, _ in runs.values():
            source.finish(handle)
        return out

    def _growth(self, ledger: list[int], rng: random.Random) -> list[int]:
        if rng.random() < 0.6:
            at = rng.randrange(max(len(ledger) - 12, 1))
            return ledger[at : at + rng.randint(1, 12)] or [0]
        return [rng.randrange(self.vocab_tokens)]

    def _check(self, draft: Draft, maximum: int) -> None:
        assert 0 < len(draft.tokens) <= maximum, "an empty proposal is None, a long one is cut"
        assert all(isinstance(token, int) and token >= 0 for token in draft.tokens)
        assert draft.matched >= 0


class SpeculativeBackendContract(CopySourceContract):
    """Subclass with ``backend``; ``values`` overrides defaults of its options, by key."""

    backend: ClassVar[SpeculativeBackend]
    values: ClassVar[Mapping[str, Any]] = {}

    def context(self, **changes: Any) -> SpecContext:
        defaults = {option.key: option.default for option in self.backend.options}
        facts = {
            "architecture": "FakeForCausalLM",
            "max_concurrency": 2,
            "max_context": 4096,
            "control_token_ids": CONTROL,
            "options": OptionValues({**defaults, **self.values}, frozenset(self.values)),
        }
        return SpecContext(**{**facts, **changes})

    def make_source(self) -> CopySource:
        return self.backend.open(self.context())

    def test_the_descriptor_is_usable_on_the_command_line(self) -> None:
        assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.backend.name)
        assert self.backend.role == "copy"
        assert self.backend.summary
        assert "\n" not in self.backend.summary

    def test_its_options_parse_their_own_defaults(self) -> None:
        for option in self.backend.options:
            assert option.flag.startswith("--")
            assert option.help
            if option.parse is not None and option.default is not None:
                assert option.parse(str(option.default)) == option.default

    def test_sources_of_one_backend_are_independent(self) -> None:
        one, other = self.make_source(), self.make_source()
        assert one is not other
        self._play(one, [1, 2])
        assert self._play(other, [3]) == self._play(self.make_source(), [3])
