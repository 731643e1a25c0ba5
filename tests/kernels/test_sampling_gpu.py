"""The draw on a GPU against its reference: on a GPU, else under the interpreter."""

import numpy as np
import pytest
import torch

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

    rows = [settings(seed=seed * 7919, position=seed, top_p=0.95, temperature=1.1) for seed in range(64)]
    logits = logits_of(1, 500, scale=1.0).expand(64, -1).contiguous()
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
