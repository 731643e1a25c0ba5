"""Parameters become operations, whatever they are stored as and wherever they run."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ninfer_core.api import ArtifactError, EncodedTensor, InvariantError, StoredInput, WeightFormat
from ninfer_core.api.nn import Runtime
from ninfer_core.nn import loader
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.registry import Registry
from ninfer_core.weights.formats import FORMATS

DIRECT = {weight_format.name: weight_format for weight_format in FORMATS}
BF16, FP32 = DIRECT["bf16"], DIRECT["fp32"]


class HalvesLinear:
    """A packed route that can be told apart: it counts its calls."""

    def __init__(self, tensors):
        self.weight = torch.cat([decode_halves(tensor) for tensor in tensors])
        self.rows = len(self.weight)
        self.stacked = len(tensors)
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x.float() @ self.weight.t()).to(x.dtype)


def encode_halves(x: Tensor) -> EncodedTensor:
    data = (x * 2).to(torch.int8).view(torch.uint8).reshape(-1)
    return EncodedTensor(format="halves", layout="bytes_v1", shape=tuple(x.shape), data=data)


def decode_halves(tensor: EncodedTensor) -> Tensor:
    return tensor.data.view(torch.int8).reshape(tensor.shape).float() / 2


def take_halves(tensor: EncodedTensor, rows) -> EncodedTensor:
    table = tensor.data.reshape(tensor.shape)[list(rows)]
    return replace(tensor, shape=tuple(table.shape), data=table.reshape(-1))


# whole halves in one byte each
HALVES = WeightFormat(
    name="halves",
    layout="bytes_v1",
    encoded_bytes=lambda shape: shape[0] * shape[1],
    decode=decode_halves,
    take_rows=take_halves,
    quantize=lambda x: EncodedTensor(
        format="halves",
        layout="bytes_v1",
        shape=tuple(x.shape),
        data=(x * 2).to(torch.int8).view(torch.uint8).reshape(-1),
    ),
    cpu_linear=HalvesLinear,
)


class Memory:
    """A checkpoint of encoded parts that notes what is read."""

    path, architecture, name, config = "memory", "Test", None, {}

    def __init__(self, **parameters: list[EncodedTensor]):
        self.parameters = parameters
        self.read: list[str] = []

    def names(self):
        return self.parameters

    def has(self, name):
        return name in self.parameters

    def parameter(self, name, shape):
        self.read.append(name)
        return tuple(self.parameters[name])

    def resource(self, role):
        return None

    def close(self):
        pass


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Small whole halves: exact in every format here."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-20, 20, (rows, columns), generator=g).float() / 2


def weights(checkpoint, *, reference=False, dtype=torch.float32, device="cpu", progress=None):
    registry: Registry[WeightFormat] = Registry("weight format")
    for weight_format in (*FORMATS, HALVES):
        registry.add(weight_format.name, weight_format, origin="test")
    runtime = Runtime(device=torch.device(device), dtype=dtype, reference=reference, max_context=64, options={})
    return CheckpointWeights(checkpoint, registry, runtime, progress=progress)


def stack(*parts: tuple[WeightFormat, Tensor]) -> list[EncodedTensor]:
    return [weight_format.quantize(values) for weight_format, values in parts]


A, B, C = matrix(3, 8, 1), matrix(5, 8, 2), matrix(2, 8, 3)
X = matrix(4, 8, 9)

STACKS = {
    "one-dense": [(BF16, A)],
    "one-packed": [(HALVES, A)],
    "two-dense": [(BF16, A), (FP32, B)],
    "two-packed": [(HALVES, A), (HALVES, B)],
    "packed-dense-packed": [(HALVES, A), (BF16, B), (HALVES, C)],
}


@pytest.mark.parametrize("parts", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_stack_of_any_formats_is_one_product(parts, reference, dtype):
    names = [f"p{i}" for i in range(len(parts))]
    checkpoint = Memory(**{name: stack(part) for name, part in zip(names, parts, strict=True)})
    linear = weights(checkpoint, reference=reference, dtype=dtype).linear(names, [tuple(w.shape) for _, w in parts])
    expected = X @ torch.cat([w for _, w in parts]).t()
    out = linear(X.to(dtype))
    assert linear.rows == expected.shape[1]
    assert out.dtype == dtype
    assert torch.equal(out, expected.to(dtype))


def test_parts_of_one_parameter_stack_like_several_parameters():
    checkpoint = Memory(p=stack((HALVES, A), (BF16, B)))
    assert torch.equal(weights(checkpoint).linear("p", (8, 8))(X), X @ torch.cat((A, B)).t())


def test_equal_formats_share_one_packed_operation_and_reference_uses_none():
    checkpoint = Memory(a=stack((HALVES, A)), b=stack((HALVES, B)))
    packed = weights(checkpoint).linear(["a", "b"], [(3, 8), (5, 8)])
    assert isinstance(packed, HalvesLinear)
    assert packed.stacked == 2
    exact = weights(checkpoint, reference=True).linear(["a", "b"], [(3, 8), (5, 8)])
    assert isinstance(exact, loader.DenseLinear)
    assert exact.weight.dtype == torch.float32


def test_a_big_matrix_is_decoded_in_slices(monkeypatch):
    big = matrix(37, 8)
    monkeypatch.setattr(loader, "DECODE_ELEMENTS", 5 * 8)
    decoded = []
    watched = replace(BF16, name="watched", decode=lambda t: decoded.append(t.shape[0]) or BF16.decode(t))
    checkpoint = Memory(p=[replace(BF16.quantize(big), format="watched")])
    built = weights(checkpoint)
    built.weight_formats.add("watched", watched, origin="test")
    assert torch.equal(built.linear("p", (37, 8))(X), X @ big.t())
    assert max(decoded) == 5
    assert sum(decoded) == 37


def test_fp32_weights_on_a_cpu_are_used_where_they_lie():
    checkpoint = Memory(p=stack((FP32, A)))
    linear = weights(checkpoint).linear("p", (3, 8))
    assert linear.weight.data_ptr() == checkpoint.parameters["p"][0].data.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "parts",
    [[(BF16, B)], [(HALVES, B)], [(HALVES, A), (BF16, B), (HALVES, C)]],
    ids=["dense", "packed", "three-parts"],
)
def test_an_embedding_gives_the_rows_asked_for(parts, dtype):
    table = torch.cat([w for _, w in parts])
    embedding = weights(Memory(p=stack(*parts)), dtype=dtype).embedding("p", tuple(table.shape))
    for ids in ([0], [len(table) - 1, 0, 3, 3, 1], []):
        out = embedding(torch.tensor(ids, dtype=torch.int64))
        assert out.dtype == dtype
        assert torch.equal(out, table[ids].to(dtype))


def test_an_embedding_decodes_no_other_rows():
    decoded = []
    watched = replace(BF16, name="watched", decode=lambda t: decoded.append(t.shape[0]) or BF16.decode(t))
    built = weights(Memory(p=[replace(BF16.quantize(B), format="watched")]))
    built.weight_formats.add("watched", watched, origin="test")
    built.embedding("p", (5, 8))(torch.tensor([4, 2]))
    assert decoded == [2]


def test_what_an_embedding_gives_may_be_changed_in_place():
    embedding = weights(Memory(p=stack((FP32, B)))).embedding("p", (5, 8))
    embedding(torch.tensor([1])).zero_()
    assert torch.equal(embedding(torch.tensor([1])), B[1:2])


def test_a_tensor_is_fp32_and_outlives_the_file():
    checkpoint = Memory(p=stack((FP32, A[0].clone()), (BF16, A[1])))
    tensor = weights(checkpoint, dtype=torch.bfloat16).tensor("p", (16,))
    for part in checkpoint.parameters["p"]:
        part.data.zero_()
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, A[:2].reshape(-1))
    single = weights(one := Memory(p=stack((FP32, A[0].clone())))).tensor("p", (8,))
    one.parameters["p"][0].data.zero_()
    assert torch.equal(single, A[0])


def test_off_the_cpu_weights_are_dense_and_a_tied_head_is_the_table():
    built = weights(Memory(table=stack((HALVES, A), (BF16, B))), dtype=torch.bfloat16, device="meta")
    table = built.embedding("table", (8, 8)).table
    assert (table.dtype, table.device.type) == (torch.bfloat16, "meta")
    assert built.linear("table", (8, 8)).weight is table
    reference = weights(Memory(table=stack((HALVES, A))), reference=True, device="meta")
    assert reference.linear("table", (3, 8)).weight.dtype == torch.float32


class OnDevice(HalvesLinear):
    """A packed route off the CPU: it writes where it is told and gives rows."""

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        return out.copy_(self(x))

    def take_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.weight[ids].to(dtype)


def off_the_cpu(checkpoint, *, reference=False, gpu_linear=lambda tensors, device: OnDevice(tensors)):
    """The routes of a device other than the CPU, with two formats that are packed there; what is sent to them can still
    be read."""
    built = weights(checkpoint, reference=reference, dtype=torch.bfloat16, device="meta")
    built._sent = lambda values: values
    packed = replace(HALVES, name="packed", gpu_linear=gpu_linear)
    built.weight_formats.add("packed", packed, origin="test")
    built.weight_formats.add("other", replace(packed, name="other"), origin="test")
    return built


def kept(name: str, values: Tensor) -> EncodedTensor:
    return replace(encode_halves(values), format=name)


def test_off_the_cpu_a_format_with_a_route_of_its_own_stays_packed():
    checkpoint = Memory(a=[kept("packed", A)], b=[kept("packed", B)])
    packed = off_the_cpu(checkpoint).linear(["a", "b"], [(3, 8), (5, 8)])
    assert isinstance(packed, OnDevice)
    assert packed.stacked == 2
    assert isinstance(off_the_cpu(checkpoint, reference=True).linear(["a", "b"], [(3, 8), (5, 8)]), loader.DenseLinear)


def test_a_dense_matrix_is_decoded_even_where_its_format_could_stay_packed():
    checkpoint = Memory(a=[kept("packed", A), *stack((BF16, B))], b=[kept("other", C)])
    built = off_the_cpu(checkpoint)
    matrix = built.dense(["a", "b"], [(8, 8), (2, 8)])
    assert (matrix.shape, matrix.dtype, matrix.device.type) == ((10, 8), torch.bfloat16, "meta")
    assert built.decoded_bytes == {"packed": 2 * A.numel(), "other": 2 * C.numel()}
    assert torch.equal(weights(Memory(a=stack((HALVES, A), (BF16, B)))).dense("a", (8, 8)), torch.cat([A, B]))


def test_packed_is_one_operation_on_the_bytes_of_all_or_nothing():
    """Whoever reads the bytes reads one format, of an input as it is; nothing becomes dense meanwhile."""
    turned = replace(kept("packed", A), input=StoredInput(columns=torch.arange(8).flip(0)))
    parts = {"a": [kept("packed", A)], "b": [kept("packed", B)], "c": [kept("other", C)], "d": [turned]}
    parts["e"] = list(stack((BF16, B)))
    shapes = {"a": (3, 8), "b": (5, 8), "c": (2, 8), "d": (3, 8), "e": (5, 8)}

    def packed(*names, **changed):
        built = off_the_cpu(Memory(**parts), **changed)
        found = built.packed(list(names), [shapes[name] for name in names])
        assert built.decoded_bytes == {}
        return found

    operation = packed("a", "b")
    assert isinstance(operation, OnDevice)
    assert operation.stacked == 2
    assert isinstance(off_the_cpu(Memory(**parts)).packed("a", (3, 8)), OnDevice)
    for names in (("a", "c"), ("a", "d"), ("a", "e"), ("e",)):
        assert packed(*names) is None, names
    assert packed("a", "b", reference=True) is None
    assert packed("a", "b", gpu_linear=lambda tensors, device: None) is None


def test_a_route_that_cannot_run_there_leaves_dense_weights():
    asked = []
    built = off_the_cpu(Memory(a=[kept("packed", A)]), gpu_linear=lambda tensors, device: asked.append(device))
    dense = built.linear("a", (3, 8))
    assert asked == [torch.device("meta")]
    assert (dense.weight.dtype, dense.weight.device.type) == (torch.bfloat16, "meta")
    assert built.embedding("a", (3, 8)).table.device.type == "meta"


def test_packed_formats_write_their_outputs_side_by_side():
    checkpoint = Memory(a=[kept("packed", A), kept("other", B)], b=[kept("packed", C)])
    stacked = off_the_cpu(checkpoint).linear(["a", "b"], [(8, 8), (2, 8)])
    assert len(stacked.operations) == 3
    expected = torch.cat([A, B, C])
    assert torch.equal(stacked(X), X @ expected.t())
    out = torch.full((4, 12), 7.0)
    stacked.into(X, out[:, 1:11])
    assert torch.equal(out[:, 1:11], X @ expected.t())
    assert (out[:, [0, 11]] == 7).all()


def test_a_packed_table_gives_rows_and_is_its_own_head():
    built = off_the_cpu(Memory(table=[kept("packed", A), kept("packed", B)]))
    embedding = built.embedding("table", (8, 8))
    rows = embedding(torch.tensor([7, 0, 7]))
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows, torch.cat([A, B])[[7, 0, 7]].bfloat16())
    assert built.linear("table", (8, 8)) is embedding.table
    mixed = off_the_cpu(Memory(table=[kept("packed", A), kept("other", B)])).embedding("table", (8, 8))
    assert mixed.table.device.type == "meta"


def test_progress_counts_each_parameter_once(monkeypatch):
    checkpoint = Memory(a=stack((HALVES, A)), b=stack((BF16, B)))
    total = A.numel() + 2 * B.numel()
    monkeypatch.setattr(loader, "checkpoint_facts", lambda _: type("Facts", (), {"weight_bytes": total}))
    heard = []
    built = weights(checkpoint, progress=lambda done, total: heard.append((done, total)))
    built.embedding("a", (3, 8))
    built.linear("a", (3, 8))
    built.linear("b", (5, 8))
    assert heard == [(A.numel(), total), (total, total)]
    assert all(before <= after for (before, _), (after, _) in pairwise(heard))


def test_a_format_nobody_offers_is_refused_with_the_parameter_named():
    checkpoint = Memory(p=[replace(BF16.quantize(A), format="halvs")])
    with pytest.raises(ArtifactError, match=r"memory: p: weight format 'halvs' is not installed .*'halves'"):
        weights(checkpoint).linear("p", (3, 8))


def test_a_layout_of_another_format_is_refused():
    checkpoint = Memory(p=[replace(BF16.quantize(A), layout="bytes_v1")])
    with pytest.raises(ArtifactError, match=r"p: format bf16 is stored in layout 'bytes_v1'; expected 'contig"):
        weights(checkpoint).tensor("p", (3, 8))


def test_names_without_shapes_are_our_own_mistake():
    with pytest.raises(InvariantError, match="2 names and 1 shapes"):
        weights(Memory()).linear(["a", "b"], [(3, 8)])
