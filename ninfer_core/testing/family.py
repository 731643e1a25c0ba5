"""What every model family must do, on the smallest checkpoint its author can write."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from ninfer_core.api import Checkpoint, KVGeometry, ModelFamily, StatePart
from ninfer_core.api.nn import Model, Runtime
from ninfer_core.plugins import Plugins
from ninfer_core.weights.imported import ImportedCheckpoint
from ninfer_core.weights.stored import full_inventory

from .cache import SimpleCache
from .compose import compose
from .rig import Rig


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    family: ModelFamily
    checkpoint: Checkpoint
    model: Model
    geometry: KVGeometry
    layout: tuple[StatePart, ...]


class ModelFamilyContract:
    """Subclass with ``family``, ``write_model`` and the plugins it takes to open what that writes.

    ``only``: installed plugins by name; ``modules``: (name, module) of ones that are not. ``tolerance``: how far logits
    of one token may differ between two ways to compute them, in fp32. ``vocab_tokens`` where the checkpoint holds no
    tokenizer.
    """

    family: ClassVar[ModelFamily]
    only: ClassVar[frozenset[str]] = frozenset()
    modules: ClassVar[tuple[tuple[str, ModuleType], ...]] = ()
    tolerance: ClassVar[float] = 1e-4
    vocab_tokens: ClassVar[int | None] = None

    def write_model(self, directory: Path) -> str:
        """Write a tiny checkpoint below ``directory`` and return the path to serve."""
        raise NotImplementedError

    def prompt_ids(self, built: Built, count: int, seed: int) -> list[int]:
        """Some tokens to feed."""
        size = self.vocab_tokens or built.family.prompt(built.checkpoint).tokenizer.size
        return [random.Random(seed).randrange(size) for _ in range(count)]

    @pytest.fixture(scope="class")
    @classmethod
    def composed(cls) -> Plugins:
        return compose(cls.only, modules=cls.modules)

    @pytest.fixture(scope="class")
    @classmethod
    def built(cls, composed: Plugins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
        from ninfer_core.nn.loader import CheckpointWeights
        from ninfer_core.weights.checkpoint import open_checkpoint

        family, checkpoint = open_checkpoint(cls().write_model(tmp_path_factory.mktemp("model")), composed)
        runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=True, max_context=512, options={})
        weights = CheckpointWeights(checkpoint, composed.weight_formats, runtime)
        yield Built(
            family=family,
            checkpoint=checkpoint,
            model=family.build(checkpoint, weights, runtime),
            geometry=family.kv_geometry(checkpoint.config),
            layout=family.state_layout(checkpoint.config, runtime),
        )
        checkpoint.close()

    def rig(self, built: Built, *, rows: int = 4) -> Rig:
        return Rig(built.model, built.geometry, built.layout, rows=rows)

    def test_reading_the_descriptor_loads_no_torch(self) -> None:
        module = self.family.build.__module__.partition(".")[0]
        code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, f"import {module} loads torch"

    def test_the_descriptor_names_what_it_serves(self, built: Built) -> None:
        assert built.family is self.family, "another family serves this architecture"
        assert built.checkpoint.architecture in self.family.architectures
        assert self.family.sources
        assert self.family.summary
        assert "\n" not in self.family.summary

    def test_the_layout_is_well_formed(self, built: Built) -> None:
        assert len(built.geometry.heads) == len(built.geometry.head_dims)
        assert all(count > 0 for count in (*built.geometry.heads, *built.geometry.head_dims))
        names = [part.name for part in built.layout]
        assert len(names) == len(set(names)), "two state parts have one name"
        assert all(isinstance(getattr(torch, part.dtype), torch.dtype) for part in built.layout)
        assert self.family.context_length(built.checkpoint.config) > 0
        assert self.family.hidden_size(built.checkpoint.config) > 0

    def test_the_inventory_is_what_the_checkpoint_holds(self, built: Built) -> None:
        inventory = full_inventory(self.family, built.checkpoint)
        assert set(inventory) == set(built.checkpoint.names())
        for name, shape in inventory.items():
            parts = built.checkpoint.parameter(name, tuple(shape))
            assert sum(prod(part.shape) for part in parts) == prod(shape), name

    def test_the_import_plan_covers_the_inventory(self, composed: Plugins, tmp_path: Path) -> None:
        path = self.write_model(tmp_path)
        importer = next((importer for importer in composed.importers if importer.claims(path)), None)
        if importer is None:
            pytest.skip("the model is an artifact, not a source")
        source = importer.open(path)
        assert source.architecture in self.family.sources[source.kind]
        plan = self.family.adapt(source)
        assert plan.architecture in self.family.architectures
        checkpoint = ImportedCheckpoint(source, plan, composed.weight_formats)
        shapes = {name: tuple(recipe.shape) for name, recipe in plan.parameters.items()}
        assert shapes == full_inventory(self.family, checkpoint)
        used = {name for recipe in plan.parameters.values() for name in recipe.tensors}
        assert used <= {*source.tensors, *plan.derived}, "a recipe names a tensor the source does not have"

    def test_logits_have_one_row_per_wanted_token(self, built: Built) -> None:
        ids = self.prompt_ids(built, 5, 1)
        for wanted, count in (("all", 5), ("last", 1), ("none", 0)):
            logits = self.rig(built).feed({0: ids}, wanted=wanted)[0]  # type: ignore[arg-type]
            assert logits.shape[0] == count, wanted
            assert logits.dtype in (torch.bfloat16, torch.float32)
            if self.vocab_tokens is None:
                assert logits.shape[1] >= built.family.prompt(built.checkpoint).tokenizer.size
            assert torch.isfinite(logits).all()

    def test_wanting_fewer_logits_does_not_change_them(self, built: Built) -> None:
        ids = self.prompt_ids(built, 9, 2)
        every = self.rig(built).feed({0: ids})[0]
        last = self.rig(built).feed({0: ids}, wanted="last")[0]
        self.same(every[-1:], last)

    def test_every_layer_stores_the_tokens_of_the_step_and_nothing_else(self, built: Built) -> None:
        rig = self.rig(built)
        assert isinstance(rig.cache, SimpleCache)
        rig.feed({1: self.prompt_ids(built, 70, 3)})
        page = rig.pages[1][1]
        for layer, mark in enumerate(rig.cache.stored):
            assert mark.sum() == 70, f"layer {layer}"
            assert mark[page * 64 : page * 64 + 6].all(), f"layer {layer}"

    @pytest.mark.parametrize("cuts", [(1,), (64,), (63, 65), (3, 4, 90)], ids=str)
    def test_chunks_of_a_prompt_equal_the_whole(self, built: Built, cuts: tuple[int, ...]) -> None:
        ids = self.prompt_ids(built, 140, 4)
        whole, chunked = self.rig(built), self.rig(built)
        expected = whole.feed({0: ids})[0]
        edges = [0, *cuts, len(ids)]
        parts = [chunked.feed({0: ids[a:b]})[0] for a, b in itertools.pairwise(edges)]
        self.same(expected, torch.cat(parts))
        self.same_state(whole, 0, chunked, 0)

    def test_token_by_token_equals_the_whole(self, built: Built) -> None:
        ids = self.prompt_ids(built, 70, 5)
        whole, single = self.rig(built), self.rig(built)
        expected = whole.feed({0: ids})[0]
        self.same(expected, torch.cat([single.feed({0: [token]})[0] for token in ids]))
        self.same_state(whole, 0, single, 0)

    def test_a_batch_equals_its_rows_alone_in_any_order(self, built: Built) -> None:
        prompts = {r: self.prompt_ids(built, 3 + 31 * r, 10 + r) for r in range(3)}
        rounds = [{r: self.prompt_ids(built, 1 + r, 20 + i) for r in range(3)} for i in range(3)]
        alone = {r: self._walk(built, [prompts, *rounds], [r])[r] for r in range(3)}
        for order in ([0, 1, 2], [2, 0, 1]):
            together = self._walk(built, [prompts, *rounds], order)
            for r in range(3):
                self.same(alone[r], together[r])

    @pytest.mark.parametrize("frontier", [64, 128])
    def test_a_sequence_can_begin_with_anothers_pages_and_a_copy_of_its_state(
        self, built: Built, frontier: int
    ) -> None:
        """Between prompts that begin alike the core hands on whole pages and the state slot, and nothing else."""
        shared, own, other = (self.prompt_ids(built, n, 30 + n) for n in (frontier, 9, 70))
        rig, alone = self.rig(built), self.rig(built)
        for ids in (shared, own, other):
            alone.feed({row: ids for row, rest in ((0, own), (1, other)) if ids in (shared, rest)})
        rig.feed({0: shared}, wanted="none")
        rig.pages[1][: frontier // 64] = rig.pages[0][: frontier // 64]
        rig.frontiers[1] = frontier
        for part in rig.state.values():
            part[rig.slots[1]] = part[rig.slots[0]]
        rig.feed({0: own}, wanted="none")
        rig.feed({1: other}, wanted="none")
        after = self.prompt_ids(built, 3, 40)
        for row in (0, 1):
            self.same_state(alone, row, rig, row)
            self.same(alone.feed({row: after})[row], rig.feed({row: after})[row])
        rig.check()

    def test_a_step_leaves_the_state_of_other_rows_alone(self, built: Built) -> None:
        rig = self.rig(built)
        rig.feed({0: self.prompt_ids(built, 5, 1), 1: self.prompt_ids(built, 6, 2)})
        before = rig.image(0)
        rig.feed({1: self.prompt_ids(built, 3, 3)})
        rig.feed({1: self.prompt_ids(built, 3, 4)}, provisional=True)
        rig.fold({1: 2})
        for name, part in rig.image(0).items():
            assert torch.equal(part, before[name]), name
        rig.check()

    def test_a_provisional_step_changes_no_state(self, built: Built) -> None:
        rig = self.rig(built)
        rig.feed({0: self.prompt_ids(built, 5, 1)})
        before = {name: part.clone() for name, part in rig.state.items()}
        rig.feed({0: self.prompt_ids(built, 4, 2)}, provisional=True)
        for name, part in rig.state.items():
            assert torch.equal(part, before[name]), name

    @pytest.mark.parametrize("kept", [0, 1, 2, 4])
    def test_provisional_and_fold_equal_feeding_what_was_kept(self, built: Built, kept: int) -> None:
        prompt, drafts, after = (self.prompt_ids(built, n, n) for n in (62, 4, 3))
        rig, plain = self.rig(built), self.rig(built)
        for one in (rig, plain):
            one.feed({0: prompt, 1: prompt[:7]})
        provisional = rig.feed({1: drafts[:2], 0: drafts}, provisional=True)
        rig.fold({0: kept, 1: 1})
        if kept:
            self.same(provisional[0][:kept], plain.feed({0: drafts[:kept]})[0])
        plain.feed({1: drafts[:1]})
        for row in (0, 1):
            self.same_state(rig, row, plain, row)
        for expected, got in zip(*(one.feed({0: after, 1: after}).values() for one in (plain, rig)), strict=True):
            self.same(expected, got)
        rig.check()

    def same(self, expected: Tensor, got: Tensor) -> None:
        torch.testing.assert_close(got.float(), expected.float(), rtol=0, atol=self.tolerance)

    def same_state(self, one: Rig, row: int, other: Rig, other_row: int) -> None:
        expected, got = one.image(row), other.image(other_row)
        for name, part in expected.items():
            assert got[name].dtype == part.dtype, name
            assert (got[name].double() - part.double()).abs().max() <= self.tolerance, f"state part {name!r} differs"

    def _walk(self, built: Built, steps: Sequence[dict[int, list[int]]], order: Sequence[int]) -> dict[int, Tensor]:
        rig = self.rig(built)
        outs = [rig.feed({r: fed[r] for r in order}) for fed in steps]
        return {r: torch.cat([out[r] for out in outs]) for r in order}
