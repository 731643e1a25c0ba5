"""The mixture of experts: routing rules, and the grouped route against the definition."""

from __future__ import annotations

import pytest
import torch

from ninfer_kernels import moe

E, N, K = 8, 12, 3


def experts(seed: int = 0) -> list[moe.reference.Expert]:
    g = torch.Generator().manual_seed(seed)
    matrices = [torch.randn(N, N, generator=g) for _ in range(E)]
    return [lambda x, w=w: torch.tanh(x @ w.t()) for w in matrices]


def test_shares_are_the_softmax_over_the_chosen_logits():
    logits = torch.randn(20, E, generator=torch.Generator().manual_seed(1))
    shares, ids = moe.route(logits, K)
    torch.testing.assert_close(shares, torch.softmax(logits.gather(1, ids), dim=-1))
    torch.testing.assert_close(shares.sum(-1), torch.ones(20))
    assert torch.equal(ids, logits.topk(K).indices)


@pytest.mark.parametrize("rows", [1, 300])
def test_of_equal_experts_the_lower_id_comes_first(rows):
    assert moe.route(torch.zeros(rows, 256), 8)[1].tolist() == [list(range(8))] * rows
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0, -1.0]]).expand(rows, E)
    assert moe.route(logits, 5)[1].tolist() == [[1, 3, 6, 2, 4]] * rows


def test_routing_is_fp32_whatever_the_logits_are():
    shares, _ = moe.route(torch.randn(4, E).bfloat16(), K)
    assert shares.dtype is torch.float32


@pytest.mark.parametrize("tokens", [1, 2, 17, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_mixture_equals_its_definition(tokens, dtype):
    g = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, N, generator=g).to(dtype)
    all_of_them = [lambda rows, f=f: f(rows.float()).to(dtype) for f in experts()]
    shares, ids = moe.route(torch.randn(tokens, E, generator=g), K)
    expected = moe.reference.mix(x, shares, ids, all_of_them)
    got = moe.mix(x, shares, ids, all_of_them)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 if dtype is torch.float32 else 1e-2)


def test_experts_nobody_chose_are_not_asked():
    def silent(rows):
        raise AssertionError("asked")

    chosen = [silent] * E
    chosen[2], chosen[5] = (lambda rows: rows, lambda rows: 2 * rows)
    x = torch.randn(4, N)
    shares, ids = torch.full((4, 2), 0.5), torch.tensor([[5, 2]]).expand(4, 2)
    torch.testing.assert_close(moe.mix(x, shares, ids, chosen), 1.5 * x)


def test_one_token_is_the_same_alone_and_in_a_batch():
    x = torch.randn(9, N, generator=torch.Generator().manual_seed(3))
    shares, ids = moe.route(torch.randn(9, E, generator=torch.Generator().manual_seed(4)), K)
    whole = moe.mix(x, shares, ids, experts())
    for t in range(9):
        alone = moe.mix(x[t : t + 1], shares[t : t + 1], ids[t : t + 1], experts())[0]
        torch.testing.assert_close(alone, whole[t], rtol=1e-6, atol=1e-6)
