"""The Triton routes of the mixture against the definition: on a GPU, else under the interpreter."""

import pytest
import torch

from ninfer_kernels import moe

# experts, of a token, width, inner width
SHAPES = [(6, 2, 33, 20), (8, 3, 64, 16), (1, 1, 16, 5)]
# products and sums in other orders; fp16: what is rounded in between may round the other way
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# a product of bf16 operands is wrong under the interpreter
KINDS = list(TOLERANCE)[: 3 if torch.cuda.is_available() else 2]


def randn(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def experts(shape, dtype):
    E, _, N, I = shape  # noqa: E741
    return randn(E, 2 * I, N, seed=1, dtype=dtype) * N**-0.5, randn(E, N, I, seed=2, dtype=dtype) * I**-0.5


@pytest.mark.parametrize(("T", "E", "k"), [(1, 256, 8), (5, 6, 2), (3, 4, 4), (2, 100, 1)])
def test_routing_equals_its_reference(T, E, k, device):
    from ninfer_kernels.moe import gpu

    logits = randn(T, E, seed=E) * 2
    shares, ids = gpu.route(logits.to(device), k)
    expected_shares, expected_ids = moe.reference.route(logits, k)
    assert torch.equal(ids.cpu(), expected_ids)
    torch.testing.assert_close(shares.cpu(), expected_shares, rtol=1e-5, atol=1e-7)


def test_of_equal_experts_the_lower_id_comes_first(device):
    from ninfer_kernels.moe import gpu

    assert gpu.route(torch.zeros(2, 256, device=device), 8)[1].tolist() == [list(range(8))] * 2
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0, -1.0]], device=device)
    assert gpu.route(logits, 5)[1].tolist() == [[1, 3, 6, 2, 4]]


def test_whatever_the_logits_are_every_id_is_an_expert(device):
    """A column without a token has any numbers; what it reads has to exist."""
    from ninfer_kernels.moe import gpu

    logits = randn(4, 6, seed=3)
    logits[0], logits[1, 2], logits[2], logits[3] = float("nan"), float("nan"), float("inf"), float("-inf")
    ids = gpu.route(logits.to(device), 2)[1]
    assert ((ids >= 0) & (ids < 6)).all()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize(
    ("way", "T", "shape"),
    [
        ("mix_pairs", 1, SHAPES[1]),
        ("mix_pairs", 5, SHAPES[0]),
        ("mix_pairs", 2, SHAPES[2]),
        ("mix_groups", 1, SHAPES[1]),
        ("mix_groups", 70, SHAPES[0]),
        ("mix_groups", 7, SHAPES[2]),
    ],
    ids=str,
)
def test_the_mixture_equals_its_definition(shape, T, way, dtype, device):
    from ninfer_kernels.moe import gpu

    E, k, N, _ = shape
    gate_up, down = experts(shape, dtype)
    x = randn(T, N + 3, seed=4, dtype=dtype)[:, :N]
    shares, ids = moe.reference.route(randn(T, E, seed=5), k)
    expected = moe.reference.mix_stacked(x, shares, ids, gate_up, down)
    on = [value.to(device) for value in (shares, ids.contiguous(), gate_up, down)]
    got = getattr(gpu, way)(x.to(device), *on)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.cpu(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("way", ["mix_pairs", "mix_groups"])
def test_a_token_has_the_same_bits_whatever_its_experts_are_called_first(way, device):
    """The sum runs in the order of ids, not of probabilities."""
    from ninfer_kernels.moe import gpu

    gate_up, down = (value.to(device) for value in experts(SHAPES[1], torch.float32))
    x, shares = randn(1, 64, seed=6).to(device), torch.tensor([[0.5, 0.3, 0.2]], device=device)
    ids = torch.tensor([[4, 1, 6]], device=device)
    turned = torch.tensor([[2, 0, 1]], device=device)
    got = getattr(gpu, way)(x, shares, ids, gate_up, down)
    other = getattr(gpu, way)(x, shares.gather(1, turned), ids.gather(1, turned), gate_up, down)
    assert torch.equal(got, other)


@pytest.mark.parametrize("counts", [[0, 130, 0, 64, 1], [65, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 64]], ids=str)
def test_blocks_hold_every_pair_once_and_one_expert_each(counts):
    gpu = pytest.importorskip("ninfer_kernels.moe.gpu")
    ids = torch.tensor([e for e, count in enumerate(counts) for _ in range(count)])
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))]
    made = gpu.groups(ids[:, None], len(counts))
    seen = []
    for e, first, end in zip(made.experts.tolist(), made.firsts.tolist(), made.ends.tolist(), strict=True):
        if e < len(counts):
            assert 0 < end - first <= gpu.GROUP
            pairs = made.order[first:end].tolist()
            assert {int(ids[p]) for p in pairs} == {e}
            seen += pairs
    assert sorted(seen) == list(range(len(ids)))


@pytest.mark.parametrize("T", [0, 3, 66])
def test_routes_mix_a_stack_with_and_without_kernels(T, device, monkeypatch):
    gate_up, down = experts(SHAPES[0], torch.float32)
    x, (shares, ids) = randn(T, 33, seed=7), moe.reference.route(randn(T, 6, seed=8), 2)
    expected = moe.reference.mix_stacked(x, shares, ids, gate_up, down)
    torch.testing.assert_close(moe.mix_stacked(x, shares, ids, gate_up, down), expected, rtol=2e-5, atol=2e-5)
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    on = [value.to(device) for value in (x, *moe.route(randn(T, 6, seed=8).to(device), 2), gate_up, down)]
    torch.testing.assert_close(moe.mix_stacked(*on).cpu(), expected, rtol=2e-5, atol=2e-5)
