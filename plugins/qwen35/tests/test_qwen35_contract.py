"""The kit's contract for model families, on tiny random checkpoints: dense with a vision tower, and experts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

import tiny_qwen35 as tiny

from ninfer_core.testing import ModelFamilyContract
from ninfer_qwen35 import ninfer_model_families


class TestDense(ModelFamilyContract):
    family = ninfer_model_families()[0]
    only = frozenset({"qwen35"})
    vocab_tokens = tiny.VOCAB
    tolerance = 2e-4

    def write_model(self, directory: Path) -> str:
        return tiny.write(directory, tiny.config())


class TestExperts(TestDense):
    def write_model(self, directory: Path) -> str:
        return tiny.write(directory, tiny.config(moe=True))


class TestDeltaNetAlone(TestDense):
    """No layer keeps anything per token."""

    def write_model(self, directory: Path) -> str:
        c = tiny.config(layer_types=["linear_attention"] * 4)
        return tiny.write(directory, c, mtp=False)

    def test_every_layer_stores_the_tokens_of_the_step_and_nothing_else(self, built) -> None:
        assert self.family.kv_geometry(built.checkpoint.config).heads == ()


class TestAttentionAlone(TestDense):
    """Nothing but the hidden row is kept beside the cache."""

    def write_model(self, directory: Path) -> str:
        return tiny.write(directory, tiny.config(layer_types=["full_attention"] * 4))
