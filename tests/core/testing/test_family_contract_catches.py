"""The family contract on a small recurrent model with attention, and on broken versions of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ninfer_core.api import KVGeometry, StatePart
from ninfer_core.api.nn import Cache, Step, StepOutput
from ninfer_core.testing import ModelFamilyContract
from ninfer_core.testing.family import Built

GEOMETRY = KVGeometry(heads=(1, 2), head_dims=(64, 64))
VOCAB = 50


class Decaying:
    """Two attention layers over token features and a decaying sum of them as its state."""

    draft_source = None

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCAB, 64, generator=g)
        self.head = torch.randn(64, VOCAB, generator=g) / 8

    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        x_TD = self.table[step.token_ids]
        for layer, heads in enumerate(GEOMETRY.heads):
            k_TGD = x_TD[:, None].expand(-1, heads, -1) * (layer + 1)
            cache.store(layer, k_TGD, k_TGD.flip(-1), step)
            x_TD = x_TD + cache.attend(layer, x_TD[:, None].expand(-1, 4, -1), step, 0.125).mean(1)
        records = []
        for b in range(step.rows):
            own = slice(step.starts[b], step.starts[b + 1])
            trail = self.trail(state["sum"][step.state_slots[b]], x_TD[own])
            x_TD[own] += trail
            records.append(trail)
        if not step.provisional:
            self.fold(step, records, [len(trail) for trail in records], state)
        return StepOutput(logits=x_TD[step.logit_index] @ self.head, records=records)

    def trail(self, before: Tensor, x_TD: Tensor) -> Tensor:
        out = []
        for x in x_TD:
            before = before * 0.5 + x
            out.append(before)
        return torch.stack(out)

    def fold(self, step: Step, records: Any, kept: Sequence[int], state: Mapping[str, Tensor]) -> None:
        for b, count in enumerate(kept):
            if count:
                state["sum"][step.state_slots[b]] = records[b][count - 1]


class FoldsEverything(Decaying):
    def fold(self, step: Step, records: Any, kept: Sequence[int], state: Mapping[str, Tensor]) -> None:
        super().fold(step, records, [len(trail) for trail in records], state)


class AdvancesAlways(Decaying):
    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        out = super().forward(step, cache, state)
        self.fold(step, out.records, [1] * step.rows, state)
        return out


class ForgetsItsState(Decaying):
    def trail(self, before: Tensor, x_TD: Tensor) -> Tensor:
        return super().trail(torch.zeros_like(before), x_TD)


class LooksAtTheFirstRow(Decaying):
    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        out = super().forward(step, cache, state)
        return StepOutput(logits=out.logits + out.logits[:1] * 0.1, records=out.records)


class ClearsEverySlot(Decaying):
    def fold(self, step: Step, records: Any, kept: Sequence[int], state: Mapping[str, Tensor]) -> None:
        state["sum"].zero_()
        super().fold(step, records, kept, state)


class StoresOneLayer(Decaying):
    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        x_TD = self.table[step.token_ids]
        cache.store(0, x_TD[:, None], x_TD[:, None], step)
        return StepOutput(logits=x_TD[step.logit_index] @ self.head, records=None)


class Contract(ModelFamilyContract):
    vocab_tokens = VOCAB


def built(model: type[Decaying]) -> Built:
    layout = (StatePart(name="sum", dtype="float32", shape=(64,)),)
    return Built(family=None, checkpoint=None, model=model(), geometry=GEOMETRY, layout=layout)  # type: ignore[arg-type]


CHECKS: list[tuple[str, tuple[Any, ...]]] = [
    ("test_logits_have_one_row_per_wanted_token", ()),
    ("test_wanting_fewer_logits_does_not_change_them", ()),
    ("test_every_layer_stores_the_tokens_of_the_step_and_nothing_else", ()),
    ("test_chunks_of_a_prompt_equal_the_whole", ((63, 65),)),
    ("test_token_by_token_equals_the_whole", ()),
    ("test_a_batch_equals_its_rows_alone_in_any_order", ()),
    ("test_a_step_leaves_the_state_of_other_rows_alone", ()),
    ("test_a_provisional_step_changes_no_state", ()),
    ("test_provisional_and_fold_equal_feeding_what_was_kept", (2,)),
    ("test_provisional_and_fold_equal_feeding_what_was_kept", (0,)),
]


@pytest.mark.parametrize(("check", "args"), CHECKS, ids=[f"{check}{args}" for check, args in CHECKS])
def test_a_right_model_passes(check: str, args: tuple[Any, ...]) -> None:
    getattr(Contract(), check)(built(Decaying), *args)


CAUGHT = [
    (FoldsEverything, "test_provisional_and_fold_equal_feeding_what_was_kept", (2,)),
    (AdvancesAlways, "test_a_provisional_step_changes_no_state", ()),
    (ForgetsItsState, "test_chunks_of_a_prompt_equal_the_whole", ((63, 65),)),
    (ForgetsItsState, "test_token_by_token_equals_the_whole", ()),
    (LooksAtTheFirstRow, "test_a_batch_equals_its_rows_alone_in_any_order", ()),
    (LooksAtTheFirstRow, "test_wanting_fewer_logits_does_not_change_them", ()),
    (ClearsEverySlot, "test_a_step_leaves_the_state_of_other_rows_alone", ()),
    (StoresOneLayer, "test_every_layer_stores_the_tokens_of_the_step_and_nothing_else", ()),
]


@pytest.mark.parametrize(("model", "check", "args"), CAUGHT, ids=[f"{m.__name__}-{check}" for m, check, _ in CAUGHT])
def test_a_wrong_model_is_caught(model: type[Decaying], check: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(AssertionError):
        getattr(Contract(), check)(built(model), *args)
