"""The named sizes against what is published of those models."""

from __future__ import annotations

import math

import pytest

from ninfer_core.api import ArtifactError
from ninfer_llama import LLAMA
from ninfer_llama.config import read


@pytest.mark.parametrize(("name", "parameters"), [("smollm2-135m", 134_515_008), ("llama-8b", 8_030_261_248)])
def test_a_size_has_the_published_number_of_parameters(name, parameters):
    config = LLAMA.geometries[name](None)
    inventory = dict(LLAMA.inventory(config))
    if read(config).tie_word_embeddings:
        del inventory["text/output_head"]
    assert sum(map(math.prod, inventory.values())) == parameters


def test_a_size_can_be_cut_short_and_not_made_longer():
    assert read(LLAMA.geometries["llama-8b"](2)).num_hidden_layers == 2
    with pytest.raises(ArtifactError, match="llama-8b has 32 layers; --layers 33 is not among 1 to 32"):
        LLAMA.geometries["llama-8b"](33)
