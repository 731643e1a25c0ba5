"""Dense products: the routes against the reference."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_kernels.linear import linear, reference
from ninfer_kernels.linear import tickets as ticket_room
from ninfer_kernels.linear.tickets import LEAST_OUTPUTS, tickets

ON_GPU = torch.cuda.is_available()

SHAPES = [(1, 1, 16), (1, 70, 300), (1, 4097, 1024), (2, 64, 128), (5, 70, 300), (16, 129, 1000)]
IDS = [f"T{T}-N{N}-K{K}" for T, N, K in SHAPES]
# half floats: one rounding of the result, which is about 1
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def operands(T, N, K, dtype):
    generator = torch.Generator().manual_seed(N + K)
    x = torch.randn(T, K, generator=generator).to(dtype)
    return x, (torch.randn(N, K, generator=generator) * K**-0.5).to(dtype)


def dtypes():
    # a product of bf16 operands is wrong under the interpreter
    return [torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float16]


@pytest.mark.parametrize(("T", "N", "K"), SHAPES, ids=IDS)
@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_the_kernel_equals_the_reference(dtype, T, N, K, device):
    from ninfer_kernels.linear import gpu

    x, weight = operands(T, N, K, dtype)
    result = gpu.linear(x.to(device), weight.to(device))
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu().float(), reference.linear(x.float(), weight), rtol=0, atol=TOLERANCE[dtype])


@pytest.fixture
def nan_filled(monkeypatch):
    """Memory nothing was written to yet is told by what it gives."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **rest: empty(*shape, **rest).fill_(torch.nan))


def blocks(GROUPS, BN, BK, SPLITS, warps=4, stages=3):
    return {"GROUPS": GROUPS, "BN": BN, "BK": BK, "SPLITS": SPLITS, "num_warps": warps, "num_stages": stages}


ORDERS = [
    blocks(1, 64, 128, 1),
    blocks(4, 16, 64, 1),
    blocks(8, 32, 64, 1, warps=8, stages=2),
    *(blocks(1, 64, 64, SPLITS) for SPLITS in (2, 4)),
    *(blocks(4, 16, 64, SPLITS) for SPLITS in (2, 4)),
    *([blocks(8, 32, 64, 2, warps=8), blocks(1, 64, 128, 8), blocks(1, 128, 64, 3, warps=8)] if ON_GPU else []),
]
ORDER_IDS = ["-".join(map(str, one.values())) for one in ORDERS]
SHARED = [one for one in ORDERS if one["SPLITS"] > 1]
SHARED_IDS = ["-".join(map(str, one.values())) for one in SHARED]


# the last shapes: programs that have nothing to sum, an output that ends within a block
@pytest.mark.parametrize(
    ("T", "N", "K"), [(1, 70, 300), (8, 129, 1000), (9, 33, 512), (16, 16, 24), (3, 65, 1090)], ids=str
)
@pytest.mark.parametrize("order", ORDERS, ids=ORDER_IDS)
def test_every_kind_of_blocks_equals_the_reference_and_keeps_a_rows_bits(order, T, N, K, device, nan_filled):
    from ninfer_kernels.linear import gpu

    for dtype in dtypes():
        x, weight = (one.to(device) for one in operands(T, N, K, dtype))
        result = gpu.launch(x, weight, order)
        alone = gpu.launch(x[T - 1 :], weight, order)
        assert torch.equal(result[T - 1 :], alone)
        exact = reference.linear(x.cpu().float(), weight.cpu())
        torch.testing.assert_close(result.cpu().float(), exact, rtol=0, atol=TOLERANCE[dtype])
        if order["SPLITS"] > 1:
            assert not tickets(weight).any(), "the next launch would not know who comes last"


@pytest.mark.parametrize("order", SHARED, ids=SHARED_IDS)
def test_shared_inputs_give_a_row_the_same_bits_in_every_run_and_beside_any_others(order, device):
    from ninfer_kernels.linear import gpu

    N, K = (2048, 4096) if ON_GPU else (40, 1090)
    for dtype in dtypes():
        x, weight = (one.to(device) for one in operands(16, N, K, dtype))
        together = gpu.launch(x, weight, order)
        for _ in range(50 if ON_GPU else 1):
            assert torch.equal(gpu.launch(x, weight, order), together)
        # the interpreter's products depend on the width of the block
        whole = range(1, 17) if ON_GPU or order["GROUPS"] == 1 else range(gpu.NARROW + 1, 17)
        for T in whole:
            assert torch.equal(gpu.launch(x[:T], weight, order), together[:T]), f"{T} rows"
        narrow = gpu.launch(x[: gpu.NARROW], weight, order)
        for T in range(1, gpu.NARROW):
            assert torch.equal(gpu.launch(x[:T], weight, order), narrow[:T]), f"{T} rows"


@pytest.mark.skipif(ON_GPU, reason="the order of programs is the interpreter's to choose")
@pytest.mark.parametrize("order", SHARED, ids=SHARED_IDS)
def test_a_sum_does_not_depend_on_who_comes_last(order, device, nan_filled, monkeypatch):
    from triton.runtime.interpreter import interpreter_builder

    from ninfer_kernels.linear import gpu

    # sums of very different sizes: any other order would round otherwise
    x, weight = operands(2, 70, 1090, torch.float32)
    x = x * torch.logspace(0, 6, 1090)
    wanted = gpu.launch(x, weight, order)
    set_place = interpreter_builder.set_grid_idx
    for first in range(order["SPLITS"]):

        def turned(i_n, i_s, z, first=first):
            set_place(i_n, (first + i_s) % order["SPLITS"], z)

        monkeypatch.setattr(interpreter_builder, "set_grid_idx", turned)
        assert torch.equal(gpu.launch(x, weight, order), wanted), f"program {first} first"
    assert not tickets(weight).any()


def test_tickets_are_those_of_the_matrix_whatever_views_of_it_are_made_anew():
    stack = torch.zeros(3, 40, 8)
    first = tickets(stack[1])
    gc.collect()
    assert tickets(stack[1]) is first
    assert tickets(stack.view(120, 8)[40:80]) is first
    assert first.dtype == torch.int32
    assert first.tolist() == [0] * -(-40 // LEAST_OUTPUTS)


def test_two_matrices_never_share_tickets():
    # two engines may multiply by them at once
    stack, other = torch.zeros(2, 40, 8), torch.zeros(40, 8)
    made = [tickets(one) for one in (stack[0], stack[1], other, stack[0, :17])]
    assert len({one.data_ptr() for one in made}) == len(made)
    assert len(made[-1]) == 2


def test_tickets_go_when_the_last_view_of_the_matrix_goes():
    weight = torch.zeros(40, 8)
    view, gone = weight[:, :4], weakref.ref(tickets(weight))
    del weight
    gc.collect()
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["load", "unload", "multiply"]), st.integers(0, 3)), max_size=30))
def test_however_models_come_and_go_every_matrix_has_zeros_of_its_own(walk):
    loaded: dict[int, torch.Tensor] = {}
    for what, place in walk:
        if what == "load":
            loaded[place] = torch.zeros(16 * (place + 1), 4)
        elif what == "unload":
            loaded.pop(place, None)
        elif place in loaded:
            tickets(loaded[place])
        made = {place: tickets(weight) for place, weight in loaded.items()}
        assert len({one.data_ptr() for one in made.values()}) == len(made)
        assert all(one.tolist() == [0] * (place + 1) for place, one in made.items())


def test_a_first_product_while_a_graph_is_recorded_is_refused_by_name(monkeypatch):
    known, new = torch.zeros(40, 8), torch.zeros(48, 8)
    first = tickets(known)
    monkeypatch.setattr(ticket_room, "is_recorded", lambda weight: True)
    assert tickets(known) is first
    with pytest.raises(RuntimeError, match=r"\[48, 8\].*while a CUDA graph is recorded"):
        tickets(new)
    monkeypatch.undo()
    assert not tickets(new).any()


@pytest.mark.skipif(not ON_GPU, reason="records CUDA graphs")
def test_recorded_products_with_shared_inputs_equal_plain_ones():
    from ninfer_kernels.linear import gpu

    device, order = torch.device("cuda"), blocks(4, 32, 64, 4)
    x, weight = (one.to(device) for one in operands(8, 2048, 4096, torch.bfloat16))
    with pytest.raises(RuntimeError, match="while a CUDA graph is recorded"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        gpu.launch(x, weight, order)
    plain = gpu.launch(x, weight, order)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [gpu.launch(x, weight, order) for _ in range(20)]
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, plain) for one in results)
    assert not tickets(weight).any()


@pytest.mark.skipif(not ON_GPU, reason="needs streams")
def test_two_streams_multiply_by_two_matrices_at_once():
    from ninfer_kernels.linear import gpu

    device, order = torch.device("cuda"), blocks(1, 64, 128, 8, stages=4)
    x, first = (one.to(device) for one in operands(8, 2048, 4096, torch.bfloat16))
    weights = [first, first.flip(0).contiguous()]
    wanted = [gpu.launch(x, weight, order) for weight in weights]
    streams = [torch.cuda.Stream(device) for _ in weights]
    torch.cuda.synchronize()
    results = []
    for _ in range(100):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((i, gpu.launch(x, weights[i], order)))
    torch.cuda.synchronize()
    assert all(torch.equal(result, wanted[i]) for i, result in results)


def test_rows_of_a_wider_tensor_are_read_in_place(device):
    from ninfer_kernels.linear import gpu

    x, weight = operands(4, 70, 300, torch.float16)
    wide = torch.cat([x, x], dim=1).to(device)
    assert torch.equal(gpu.linear(wide[:, 300:], weight.to(device)), gpu.linear(x.to(device), weight.to(device)))


@pytest.mark.parametrize("T", [0, 1, 3, 40])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_route_keeps_the_dtype_of_the_activations(x_dtype, w_dtype, T):
    x, weight = operands(T, 33, 48, x_dtype)[0], operands(T, 33, 48, w_dtype)[1]
    result = linear(x, weight)
    assert result.dtype == x_dtype
    assert result.shape == (T, 33)
    torch.testing.assert_close(
        result.float(), reference.linear(x.float(), weight), rtol=0, atol=2 * TOLERANCE[torch.bfloat16]
    )
