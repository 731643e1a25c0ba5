"""Launches side by side: who waits when, and that nothing changes but the time."""

import gc
import threading
import weakref

import pytest
import torch

from ninfer_core.nn.linear import DenseLinear, StackedLinear
from ninfer_kernels import device as devices
from ninfer_kernels import turns
from ninfer_kernels.turns import ALONE, BESIDE, FIRST, together, turn

ON_GPU = torch.cuda.is_available()


def test_the_first_waits_and_the_others_do_not():
    assert turn() == ALONE
    with together():
        assert [turn(), turn(), turn()] == [FIRST, BESIDE, BESIDE]
        with together():
            assert turn() == BESIDE
        assert turn() == BESIDE
    assert turn() == ALONE


def test_what_is_together_within_may_hold_the_first():
    with together():
        with together():
            assert turn() == FIRST
        assert turn() == BESIDE


def test_a_failure_ends_it():
    with pytest.raises(ZeroDivisionError), together():
        turn()
        1 / 0  # noqa: B018
    assert turn() == ALONE


def test_other_threads_have_turns_of_their_own():
    seen = []
    with together():
        turn()
        thread = threading.Thread(target=lambda: seen.append(turn()))
        thread.start()
        thread.join()
    assert seen == [ALONE]


def test_scratch_is_held_until_all_are_launched():
    """The allocator would give the memory of one to the next, which runs beside it."""
    with together():
        scratch = torch.empty(4)
        held = weakref.ref(scratch)
        with together():
            turn(scratch)
        del scratch
        gc.collect()
        assert held() is not None
    gc.collect()
    assert held() is None


@pytest.fixture
def stack(device, monkeypatch):
    """q4, q5 and dense rows over one input, as the 27B model has them in groupwise integers."""
    from ninfer_kernels.tiled_linear import blocks, routes

    monkeypatch.setattr(devices, "launches", lambda x: True)
    N, K = ((4096, 12288, 96), 5120) if ON_GPU else ((70, 65, 20), 320)
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    generator = torch.Generator(device=device).manual_seed(1)
    packed = [
        routes.TiledLinear(blocks.random_tiles(tunable, rows, K, device, generator))
        for tunable, rows in zip((routes_format("q4_g64"), routes_format("q5_g64")), N, strict=False)
    ]
    dense = torch.randn(N[2], K, generator=generator, device=device).mul_(K**-0.5).to(dtype)
    return StackedLinear([*packed, DenseLinear(dense)]), K, dtype


def routes_format(name):
    from ninfer_kernels.tiled_linear import FORMATS

    return FORMATS[name]


def test_a_stack_is_its_parts_to_the_bit(stack, device, monkeypatch):
    stacked, K, dtype = stack
    if not ON_GPU:  # the dense part takes its kernel here too
        monkeypatch.setattr("ninfer_kernels.linear.routes.HALF", (dtype,))
    for rows in (1, 3, 16) if ON_GPU else (1, 3):
        x = torch.randn(rows, K, generator=torch.Generator().manual_seed(rows)).to(device, dtype)
        parts = torch.cat([operation(x) for operation in stacked.operations], -1)
        assert torch.equal(stacked(x), parts)
        wide = torch.zeros(rows, stacked.rows + 7, dtype=dtype, device=device)
        stacked.into(x, wide[:, 3 : 3 + stacked.rows])
        assert torch.equal(wide[:, 3 : 3 + stacked.rows], parts)
        assert not wide[:, :3].any() and not wide[:, 3 + stacked.rows :].any()


@pytest.mark.skipif(not ON_GPU, reason="nothing runs side by side under the interpreter")
def test_a_chain_of_stacks_has_the_bits_it_has_one_launch_after_the_other(stack, device, monkeypatch):
    """Each reads what the one before wrote: whoever did not wait long enough would read something else."""
    from ninfer_kernels.norm import add_rms_norm

    stacked, K, dtype = stack
    ones = torch.ones(K, device=device)

    def chain(x):
        for _ in range(12):
            y = stacked(x)
            x = add_rms_norm(x, y[:, :K], ones, 1e-6)
        return x, y

    def replayed(x):
        for _ in range(2):
            chain(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = chain(x)
        found = []
        for seed in range(20):
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(dtype))
            graph.replay()
            torch.cuda.synchronize()
            found += [one.clone() for one in out]
        return found

    x = torch.randn(2, K, device=device, dtype=dtype)
    beside = replayed(x)
    monkeypatch.setattr(turns.together, "next", lambda self, scratch: ALONE)
    for one, other in zip(beside, replayed(x), strict=True):
        assert torch.equal(one, other)
