"""The draw on a GPU against its reference: on a GPU, else under the interpreter."""

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_kernels.sampling import DECODE, PREFILL, pick, support, top_candidates, uniform


def reference_draw(logits, row):
    found = top_candidates(logits[None], 20)
    if not np.isfinite(found.logits[0].max()):
        return -1
    if row.temperature == 0:
        return int(found.ids[0][0])
    weights = support(found.logits[0][: row.top_k], row.temperature, row.top_p, row.min_p)
    return int(found.ids[0][pick(weights, uniform(row.seed, row.position, row.purpose))])


def settings(**changes):
    from ninfer_kernels.sampling.gpu import Settings

    base = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 20, "seed": 1, "position": 5, "purpose": DECODE}
    return Settings(**{**base, **changes})


def logits_of(rows, vocab, seed=0, scale=2.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("vocab", [7, 20, 4096, 4097, 9000])
def test_draws_equal_the_reference(vocab, device):
    from ninfer_kernels.sampling import gpu

    rows = [
        settings(),
        settings(seed=-3, position=0, purpose=PREFILL),
        settings(seed=(1 << 64) - 1, temperature=0.7, top_p=0.8),
        settings(seed=1 << 40, temperature=1.5, min_p=0.2),
        settings(top_k=3, position=1 << 20),
        settings(temperature=0.0),
        settings(temperature=1e-30, seed=9),
        settings(top_p=0.0),
        settings(top_p=0.3, min_p=0.05, temperature=2.0, seed=77),
    ]
    logits = logits_of(len(rows), vocab, seed=vocab)
    drawn = gpu.draw(logits.to(device), rows).tokens.cpu().tolist()
    assert drawn == [reference_draw(logits[i], row) for i, row in enumerate(rows)]


def test_many_seeds_and_positions_draw_alike(device):
    from ninfer_kernels.sampling import gpu

    rows = [settings(seed=seed * 7919, position=seed, top_p=0.95, temperature=1.1) for seed in range(32)]
    logits = logits_of(1, 500, scale=1.0).expand(32, -1).contiguous()
    drawn = gpu.draw(logits.to(device), rows).tokens.cpu().tolist()
    assert drawn == [reference_draw(logits[i], row) for i, row in enumerate(rows)]
    assert len(set(drawn)) > 5


def test_equal_logits_rank_by_id_and_zero_has_one_sign(device):
    from ninfer_kernels.sampling import gpu

    logits = torch.zeros(2, 5000)
    logits[0, ::2] = -0.0
    logits[1, 3000:] = 1.0
    found = gpu.draw(logits.to(device), [settings(temperature=0.0)] * 2)
    assert found.ids[0].tolist() == list(range(20))
    assert found.ids[1].tolist() == list(range(3000, 3020))
    assert found.tokens.tolist() == [0, 3000]


def crowded(kind):
    """Logits [9000] of which more reach what the 20th best does than 20, in fp16 so that many are equal."""
    noise = logits_of(1, 9000, seed=3)[0].half()
    at = torch.arange(9000)
    return {
        "as a rule": noise,
        "one value": torch.full_like(noise, -1.5),
        "three values": (noise * 0.3).round(),
        "neighbours": torch.where((at > 4000) & (at < 4200), noise + 9, noise),
        "ascending": (at / 9000).half(),
        "one in each group": torch.where(at % 64 == 63, 7.0, noise),
        "ten are finite": torch.where(at % 900 == 5, noise, float("-inf")),
        "nothing is smaller": torch.where(at == 8999, noise, float("-inf")),
    }[kind]


CROWDS = [
    "as a rule", "one value", "three values", "neighbours", "ascending", "one in each group", "ten are finite",
    "nothing is smaller",
]  # fmt: skip


@pytest.mark.parametrize("few", [16, 128])
@pytest.mark.parametrize("kind", CROWDS)
def test_candidates_are_exact_however_many_tokens_are_as_good(kind, few, device, monkeypatch):
    """Both ways of finding them: where few reach the bound, and one by one."""
    from ninfer_kernels.sampling import gpu

    monkeypatch.setattr(gpu, "FEW", few)
    logits, row = crowded(kind), settings(temperature=0.8, top_p=0.9, seed=5)
    found = gpu.draw(logits[None].to(device), [row])
    assert found.ids[0].tolist() == top_candidates(logits[None].float(), 20).ids[0].tolist()
    assert found.tokens.tolist() == [reference_draw(logits.float(), row)]


@given(
    vocab=st.integers(1, 3000), values=st.sampled_from([1, 2, 30, 10000]), masked=st.sampled_from([0.0, 0.5, 0.998]),
    spread=st.sampled_from([0.01, 1.0, 40.0]), seed=st.integers(0, 1 << 20),
)  # fmt: skip
@hypothesis.settings(max_examples=12, deadline=None)
def test_any_logits_give_the_candidates_of_the_definition(vocab, values, masked, spread, seed):
    from ninfer_kernels.sampling import gpu

    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-values, values + 1, (2, vocab), generator=generator) * (spread / values)
    logits[torch.rand(2, vocab, generator=generator) < masked] = float("-inf")
    logits[:, seed % vocab] = 0.0
    rows = [settings(seed=seed), settings(seed=seed, temperature=0.6, top_p=0.7, min_p=0.01)]
    found = gpu.draw(logits.to("cuda" if torch.cuda.is_available() else "cpu"), rows)
    kept = min(vocab, 20)
    assert found.ids[:, :kept].tolist() == top_candidates(logits, 20).ids.tolist()
    assert (found.ids[:, kept:] == -1).all()
    assert found.tokens.tolist() == [reference_draw(logits[i], row) for i, row in enumerate(rows)]


def test_a_row_has_the_same_bits_whoever_is_beside_it(device):
    from ninfer_kernels.sampling import gpu

    logits, rows = logits_of(4, 6000).to(device), [settings(seed=i, temperature=0.7) for i in range(4)]
    together = gpu.draw(logits, rows)
    for i, row in enumerate(rows):
        alone = gpu.draw(logits[i : i + 1], [row])
        assert torch.equal(alone.logprobs[0], together.logprobs[i])
        assert torch.equal(alone.ids[0], together.ids[i])
        assert alone.tokens[0] == together.tokens[i]


def test_log_probabilities_are_of_the_whole_vocabulary(device):
    from ninfer_kernels.sampling import gpu

    logits = logits_of(3, 9000)
    rows = [settings(), settings(temperature=0.5, top_k=2), settings(temperature=0.0)]
    found = gpu.draw(logits.to(device), rows)
    for i, temperature in enumerate((1.0, 0.5, 1.0)):
        expected = torch.log_softmax(logits[i].double() / temperature, -1)[found.ids[i].cpu()]
        torch.testing.assert_close(found.logprobs[i].cpu().double(), expected, rtol=0, atol=2e-5)


def test_a_row_that_is_not_finite_fails_alone(device):
    from ninfer_kernels.sampling import gpu

    logits = logits_of(5, 5000)
    logits[1, 4500] = float("nan")
    logits[2] = float("-inf")
    logits[3, 7] = float("inf")
    logits[4, :4999] = float("-inf")  # masked down to one token
    rows = [settings()] * 5
    found = gpu.draw(logits.to(device), rows)
    tokens = found.tokens.tolist()
    assert tokens[1:] == [-1, -1, -1, 4999]
    assert tokens[0] == reference_draw(logits[0], rows[0])
    assert found.ids[4].tolist() == [4999, *[-1] * 19] or found.logprobs[4, 1:].isinf().all()


def test_half_floats_and_a_wider_matrix_are_read_in_place(device):
    from ninfer_kernels.sampling import gpu

    wide = logits_of(2, 700).half()
    rows = [settings(), settings(temperature=0.0)]
    drawn = gpu.draw(wide.to(device)[:, :600], rows).tokens.tolist()
    assert drawn == [reference_draw(wide[i, :600].float(), row) for i, row in enumerate(rows)]


def penalized(logits, ids, counts, row, ahead):
    """The definition's bits (speculation.md §3.1, step 2): a product and two sums, each rounded to fp32."""
    out = logits.float().clone()
    said = counts.float().clone()
    for token in ids[1 : ahead + 1]:
        said[token] += 1
    penalty = torch.tensor(row.presence) + torch.tensor(row.frequency) * said
    return torch.where(said > 0, out - penalty, out)


@pytest.mark.parametrize(
    ("rows", "width", "vocab"),
    [(1, 1, 300), (3, 1, 300), (2, 4, 300), (1, 3, 6000)],
    ids=["B1-W1-V300", "B3-W1-V300", "B2-W4-V300", "B1-W3-V6000"],
)
def test_penalties_are_those_of_the_definition_to_the_bit(rows, width, vocab, device):
    """vllm-53488: each row by its own lane's counts, each column by the drafts before it."""
    from ninfer_kernels.sampling import OUT, draws_in, gpu, packed

    lanes = 5
    generator = torch.Generator().manual_seed(rows * width)
    own = [
        settings(presence=(0.3, -0.7, 0.0)[i % 3], frequency=(0.1, 0.0, 0.7)[i % 3], seed=i, temperature=0.9)
        for i in range(rows)
    ]
    logits = torch.randn(rows * width, vocab, generator=generator)
    counts = torch.randint(0, 4, (lanes, vocab), generator=generator, dtype=torch.int32)
    ids = torch.randint(0, vocab, (rows, width), generator=generator)
    ids[:, 1:] = logits.view(rows, width, vocab)[:, 0].topk(width).indices[:, 1:]  # drafts that matter
    of_row = torch.tensor([4, 1, 3][:rows])
    positions = torch.arange(rows * width) + 7
    numbers = torch.tensor([packed(row) for row in own])
    out = draws_in(torch.zeros(rows * width * OUT, dtype=torch.int32, device=device))
    last = torch.full((lanes,), 77, device=device)
    spoken = gpu.Spoken(counts.to(device), last, of_row.to(device), ids.flatten().to(device))
    gpu.draw_into(out, logits.to(device), numbers.to(device), positions.to(device), width=width, shift=1, spoken=spoken)
    by_hand = torch.stack(
        [
            penalized(logits[b * width + i], ids[b].tolist(), counts[of_row[b]], own[b], i)
            for b in range(rows)
            for i in range(width)
        ]
    )
    alone = [own[at // width]._replace(position=int(positions[at]) + 1) for at in range(rows * width)]
    expected = gpu.draw(by_hand.to(device), alone)
    assert out.tokens.tolist() == expected.tokens.tolist()
    assert torch.equal(out.ids, expected.ids)
    assert torch.equal(out.logprobs, expected.logprobs)
    # what a lane drew last is the first column's; other lanes keep theirs
    drawn = dict(zip(of_row.tolist(), expected.tokens.tolist()[::width], strict=True))
    assert last.tolist() == [drawn.get(lane, 77) for lane in range(lanes)]


def test_what_a_row_has_said_is_counted_once_for_each_time(device):
    from ninfer_kernels.sampling import DRAWN, gpu

    counts = torch.ones(3, 50, dtype=torch.int32, device=device)
    said = torch.tensor([[7, 7, 9, -1, -1], [-1] * 5, [49, 0, 49, DRAWN, 7]], device=device)
    lanes, last = torch.tensor([2, 1, 0], device=device), torch.tensor([49, 3, 4], device=device)
    gpu.feed(gpu.Spoken(counts, last, lanes, torch.zeros(3, dtype=torch.int64, device=device)), said)
    expected = torch.ones(3, 50, dtype=torch.int32)
    expected[2, 7], expected[2, 9] = 3, 2
    expected[0, 49], expected[0, 0], expected[0, 7] = 4, 2, 2
    assert torch.equal(counts.cpu(), expected)


@pytest.mark.parametrize("width", [1, 3])
def test_a_round_is_fed_with_what_its_lanes_drew_last(width, device):
    """A draw that failed leaves a token that exists; columns without a token repeat the first."""
    from ninfer_kernels.sampling import DRAWN, gpu

    counts = torch.zeros(4, 50, dtype=torch.int32, device=device)
    last = torch.tensor([11, 22, -1, 33], device=device)
    ids = torch.tensor([[DRAWN], [5], [DRAWN]]).expand(3, width).contiguous().flatten().to(device)
    said = torch.tensor([[DRAWN], [5], [-1]], device=device)
    gpu.feed(gpu.Spoken(counts, last, torch.tensor([3, 0, 2], device=device), ids), said)
    assert ids.view(3, width).tolist() == [[33] * width, [5] * width, [0] * width]
    assert counts.nonzero().tolist() == [[0, 5], [3, 33]]
    assert last.tolist() == [11, 22, -1, 33]
