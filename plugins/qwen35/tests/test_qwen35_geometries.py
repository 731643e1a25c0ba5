"""The named sizes against what is published of those models."""

from __future__ import annotations

import math

import pytest

from ninfer_core.api import ArtifactError
from ninfer_qwen35 import QWEN35
from ninfer_qwen35.config import read

GEOMETRIES = QWEN35.geometries


def multiplied(config: dict, tokens_share: bool) -> float:
    """Weights a token is multiplied by, the head included."""
    inventory = QWEN35.inventory(config)
    return sum(
        math.prod(inventory[name]) * (QWEN35.token_share(config, name) if tokens_share else 1.0)
        for name in QWEN35.uses(config)
        if name in inventory
    )


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_size_is_a_config_of_its_own_that_can_be_cut_short(name):
    whole, two = GEOMETRIES[name](None), GEOMETRIES[name](2)
    assert read(whole).num_hidden_layers > 2
    assert read(two).layer_types == ("linear_attention", "linear_attention")
    assert read(GEOMETRIES[name](8)).attention_layers == (3, 7)
    two["hidden_size"] = 1
    assert GEOMETRIES[name](2)["hidden_size"] != 1, "a caller's change is its own"


@pytest.mark.parametrize("layers", [0, -1, 65])
def test_more_layers_than_there_are_is_refused_with_the_bound(layers):
    with pytest.raises(ArtifactError, match="27b has 64 layers"):
        GEOMETRIES["27b"](layers)


def test_the_27b_multiplies_the_published_number_of_weights():
    assert multiplied(GEOMETRIES["27b"](None), tokens_share=True) == 25_621_954_560


def test_the_35b_multiplies_the_published_number_of_active_weights():
    config = GEOMETRIES["35b-a3b"](None)
    assert multiplied(config, tokens_share=True) == 2_945_269_760
    assert 34e9 < multiplied(config, tokens_share=False) < 36e9


@pytest.mark.parametrize(("name", "low", "high"), [("4b", 3.9e9, 4.4e9), ("9b", 7.5e9, 9.5e9)])
def test_the_small_ones_are_about_what_their_names_say(name, low, high):
    assert low < multiplied(GEOMETRIES[name](None), tokens_share=True) < high
