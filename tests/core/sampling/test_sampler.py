"""The sampler against the definition of the processed distribution."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import OptionValues, Preset, SamplingRequest
from ninfer_core.sampling import sampler
from ninfer_core.sampling.params import SamplingParams, resolve
from ninfer_core.sampling.sampler import FAILED, OUTSIDE, Column
from ninfer_core.sampling.sampler import sample as sample_columns
from ninfer_kernels.sampling import DECODE, uniform


def sample(logits, columns, public_tokens):
    return [drawn.token for drawn in sample_columns(logits, columns, public_tokens)]


def params(**changes):
    plain = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 20,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 1,
    }
    return SamplingParams(**{**plain, **changes})


def column(position=7, counts=None, ahead=(), **changes):
    return Column(
        params=params(**changes), position=position, purpose=DECODE, counts=Counter(counts or {}), ahead=ahead
    )


def by_definition(row, col):
    """speculation.md §3.1 in double precision, one token at a time."""
    p = col.params
    counts = col.counts + Counter(col.ahead)
    z = [float(v) - (p.presence_penalty * (counts[i] > 0) + p.frequency_penalty * counts[i]) for i, v in enumerate(row)]
    ranked = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if p.greedy:
        return {ranked[0]: 1.0}
    ranked = ranked[: p.top_k]
    w = [math.exp((z[i] - z[ranked[0]]) / p.temperature) for i in ranked]
    kept, cum = [], 0.0
    for j, weight in enumerate(w):
        if j and p.min_p > 0 and weight < p.min_p * w[0]:
            break
        kept.append(j)
        cum += weight
        if p.top_p < 1 and cum >= p.top_p * sum(w):
            break
    mass = sum(w[j] for j in kept)
    return {ranked[j]: w[j] / mass for j in kept}


logits = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 2.25, 4.0]), min_size=3, max_size=40)


@settings(deadline=None)
@given(
    row=logits,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(1, 20),
    top_p=st.sampled_from([0.0, 0.35, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
    penalty=st.sampled_from([0.0, 0.75]),
    counts=st.dictionaries(st.integers(0, 2), st.integers(1, 3)),
    ahead=st.lists(st.integers(0, 2), max_size=2),
    seed=st.integers(-(2**63), 2**64 - 1),
)
def test_a_draw_is_the_inverse_cdf_of_the_definition(
    row, temperature, top_k, top_p, min_p, penalty, counts, ahead, seed
):
    col = column(
        counts=counts,
        ahead=tuple(ahead),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=penalty,
        frequency_penalty=penalty / 3,
        seed=seed,
    )
    drawn = sample(torch.tensor([row]), [col], len(row))[0]
    want = by_definition(row, col)
    assert drawn in want
    u = uniform(seed, 7, DECODE)
    below = 0.0
    for token, share in want.items():
        if token == drawn:
            break
        below += share
    assert below - 1e-4 <= u <= below + want[drawn] + 1e-4


def test_equal_logits_prefer_the_lower_id_at_the_cut():
    row = torch.zeros(1, 50)
    for seed in range(200):
        assert sample(row, [column(seed=seed, top_k=5)], 50)[0] < 5


def test_greedy_takes_the_lowest_id_among_equals():
    row = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    assert sample(row, [column(temperature=0.0)], 4) == [1]


def test_padding_rows_of_the_vocabulary_are_never_drawn():
    row = torch.tensor([[0.0, 1.0, 99.0]])
    assert sample(row, [column(temperature=0.0)], 2) == [1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_a_row_that_is_not_finite_fails_alone(bad, temperature):
    rows = torch.tensor([[0.0, 9.0, 0.0], [0.0, 5.0, bad], [9.0, 1.0, 0.0]])
    assert sample(rows, [column(temperature=temperature)] * 3, 3) == [1, FAILED, 0]


def test_neighbours_change_nothing():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(8, 300, generator=generator)
    columns = [column(position=i, seed=i, top_k=1 + i, temperature=0.2 * i, presence_penalty=i % 2) for i in range(8)]
    together = sample(rows, columns, 300)
    assert together == [sample(rows[i : i + 1], columns[i : i + 1], 300)[0] for i in range(8)]


def test_frequencies_follow_the_distribution():
    row = torch.tensor([[1.0, 0.0, -1.0]])
    want = torch.softmax(row[0], -1)
    drawn = Counter(sample(row.expand(4000, 3), [column(position=i) for i in range(4000)], 3))
    assert all(abs(drawn[t] / 4000 - float(want[t])) < 0.03 for t in range(3))


def flags(**given):
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "greedy")
    return OptionValues({**dict.fromkeys(names), **given}, frozenset(given))


@pytest.mark.contract("options.sampling")
def test_request_over_flags_over_preset():
    preset = Preset(temperature=0.6, top_p=0.95, top_k=20)
    got = resolve(SamplingRequest(top_p=0.5), preset, flags(temperature=0.1, top_p=0.9, seed=4))
    assert (got.temperature, got.top_p, got.top_k, got.seed) == (0.1, 0.5, 20, 4)


@pytest.mark.contract("options.top-k")
@pytest.mark.parametrize(("asked", "used"), [(0, 20), (-1, 20), (7, 7), (40, 20)])
def test_top_k_is_clamped_to_the_domain(asked, used):
    assert resolve(SamplingRequest(top_k=asked), Preset(), flags()).top_k == used


@pytest.mark.contract("options.sampling")
def test_greedy_flag_wins_over_the_request():
    assert resolve(SamplingRequest(temperature=1.5), Preset(), flags(greedy=True)).greedy


@pytest.mark.contract("options.seed")
def test_seeds_differ_between_silent_requests():
    assert len({resolve(SamplingRequest(), Preset(), flags()).seed for _ in range(20)}) == 20
    assert {resolve(SamplingRequest(), Preset(), flags(seed=seed)).seed for seed in (-3, -3)} == {-3}
    assert resolve(SamplingRequest(seed=0), Preset(), flags(seed=-3)).seed == 0


def reported(row, **changes):
    wanted = column(**changes)
    wanted = Column(
        params=wanted.params, position=7, purpose=DECODE, counts=wanted.counts, ahead=wanted.ahead, logprobs=5
    )
    return sample_columns(torch.tensor([row]), [wanted], len(row))[0].logprob


@pytest.mark.contract("logprobs.values", "logprobs.truncation", "logprobs.outlier")
@settings(deadline=None)
@given(row=logits, temperature=st.sampled_from([0.0, 0.5, 1.0]), top_k=st.integers(1, 3))
def test_log_probabilities_are_those_before_truncation(row, temperature, top_k):
    found = reported(row, temperature=temperature, top_k=top_k, counts={1: 2}, frequency_penalty=0.25)
    z = torch.tensor(row)
    z[1] -= 0.5
    want = torch.log_softmax(z / (temperature or 1.0), -1)
    assert found.logprob == pytest.approx(float(want[found.token_id]), abs=1e-5)
    assert len(found.top) == min(5, len(row))
    values = [value for _, value in found.top]
    assert values == sorted(values, reverse=True)
    assert all(value == pytest.approx(float(want[token]), abs=1e-5) for token, value in found.top)


@pytest.mark.contract("logprobs.masked")
def test_masked_tokens_are_never_listed():
    found = reported([0.0, -math.inf, 1.0, -math.inf], temperature=1.0)
    assert {token for token, _ in found.top} == {0, 2}
    assert OUTSIDE == -9999.0


@pytest.mark.contract("logprobs.silent")
def test_who_does_not_ask_gets_nothing():
    assert sample_columns(torch.zeros(1, 4), [column()], 4)[0].logprob is None


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-46, 1e-300])
def test_a_tiny_temperature_takes_the_best_token_with_certainty(temperature):
    found = reported([0.0, 20.0, 19.5, -3.0], temperature=temperature)
    assert found.token_id == 1
    assert found.logprob == 0.0


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_drawing_on_a_gpu_gives_the_same_tokens_and_records(data):
    pytest.importorskip("triton")
    from ninfer_kernels.sampling import gpu

    vocab = data.draw(st.integers(3, 60))
    count = data.draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 20)))
    logits = torch.randn(count, vocab, generator=generator) * 3
    columns = [
        Column(
            params=params(
                temperature=data.draw(st.sampled_from([0.0, 0.7, 1.0])),
                top_p=data.draw(st.sampled_from([0.5, 1.0])),
                top_k=data.draw(st.integers(1, 20)),
                seed=data.draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            ),
            position=data.draw(st.integers(0, 1 << 20)),
            purpose=DECODE,
            counts=Counter(),
            logprobs=data.draw(st.sampled_from([None, 0, 5])),
        )
        for _ in range(count)
    ]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = sampler._drawn_there(gpu, logits.to(device), columns)
    here = sample_columns(logits, columns, vocab)
    assert [drawn.token for drawn in there] == [drawn.token for drawn in here]
    for one, other in zip(there, here, strict=True):
        assert (one.logprob is None) == (other.logprob is None)
        if one.logprob is not None and other.logprob is not None:
            assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-4)
            assert [token for token, _ in one.logprob.top] == [token for token, _ in other.logprob.top]
