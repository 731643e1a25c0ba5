"""Scores of first tokens: the log-softmax of the logits, whatever the row samples with."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.sampling.params import SamplingParams
from ninfer_core.sampling.sampler import Column, sample
from ninfer_kernels.sampling import PREFILL

logits = st.lists(st.floats(-60, 60, width=32), min_size=24, max_size=24)


def column(scored: tuple[int, ...], temperature: float = 1.0, presence: float = 0.0) -> Column:
    params = SamplingParams(
        temperature=temperature,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        presence_penalty=presence,
        frequency_penalty=0.0,
        seed=1,
    )
    return Column(params=params, position=5, purpose=PREFILL, counts=Counter({0: 2}), scored=scored)


@settings(deadline=None)
@given(
    row=logits,
    scored=st.lists(st.integers(0, 19), min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 0.1, 1.0, 2.0]),
    presence=st.sampled_from([0.0, 2.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@pytest.mark.contract("rerank.exact")
def test_scores_are_exact_over_the_public_vocabulary(row, scored, temperature, presence, dtype):
    z = torch.tensor([row, row], dtype=dtype)
    told = z[0, :20].double().tolist()
    best = max(told)
    mass = best + math.log(math.fsum(math.exp(value - best) for value in told))
    silent = column((), temperature, presence)
    drawn, other = sample(z, [column(tuple(scored), temperature, presence), silent], 20)
    assert drawn.scores == pytest.approx([told[token] - mass for token in scored], abs=1e-9)
    assert all(math.isfinite(value) for value in drawn.scores)
    assert drawn.token == other.token, "asking changes no draw"
    assert other.scores == ()
