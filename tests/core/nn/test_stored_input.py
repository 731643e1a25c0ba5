"""Matrices stored for a changed input mean what the specification says (``spec/artifact.md`` §3.6, §11.6, §21 V16)."""

from dataclasses import replace

import pytest
import torch

from ninfer_core.api import ArtifactError, EncodedTensor, StoredInput
from ninfer_core.api.nn import Runtime
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.nn.stored_input import ChangedInputLinear, meant_rows, rotated
from ninfer_core.testing import compose
from ninfer_core.weights.formats import quantize_fp32

K = 2048
FORMATS = compose({"gguf", "groupwise_int"}).weight_formats


def hadamard() -> torch.Tensor:
    """H[i][j] = (-1)^popcount(i & j), for 1024 elements."""
    index = torch.arange(1024)
    bits = index[:, None] & index[None, :]
    parity = torch.zeros_like(bits)
    for shift in range(10):
        parity ^= (bits >> shift) & 1
    return 1.0 - 2.0 * parity.float()


def signs(seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 2, (K,), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def test_v16_unit_vectors_become_rows_of_the_transform():
    unit = torch.eye(1024)[:2]
    out = rotated(unit)
    assert (out[0] == 1 / 32).all()
    assert torch.equal(out[1], torch.tensor([1.0, -1.0]).repeat(512) / 32)


def rotation(sigma: torch.Tensor) -> torch.Tensor:
    """R as a matrix: R(x) = rotation @ x, a block per 1024 elements."""
    blocks = [hadamard() / 32 * part for part in sigma.view(-1, 1024)]
    return torch.block_diag(*blocks)


class Memory:
    path, architecture, name, config = "memory", "Test", None, {}

    def __init__(self, **parameters: EncodedTensor):
        self.parameters = parameters

    def names(self):
        return self.parameters

    def has(self, name):
        return name in self.parameters

    def parameter(self, name, shape):
        return (self.parameters[name],)

    def resource(self, role):
        return None

    def close(self):
        pass


def weights(reference: bool, **parameters: EncodedTensor) -> CheckpointWeights:
    runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=reference, max_context=64, options={})
    return CheckpointWeights(Memory(**parameters), FORMATS, runtime)


def ternary(rows: int, seed: int) -> EncodedTensor:
    generator = torch.Generator().manual_seed(seed)
    form = FORMATS["t2_g128_fp16"]
    data = torch.zeros(form.encoded_bytes((rows, K)), dtype=torch.uint8)
    codes = rows * K // 4
    data[:codes] = torch.tensor([0x53, 0x4D, 0x10, 0x3C], dtype=torch.uint8)[
        torch.randint(0, 4, (codes,), generator=generator)
    ]
    scales = torch.rand(rows * K // 128, generator=generator).half()
    data[-2 * len(scales) :] = scales.view(torch.uint8)
    return EncodedTensor(format=form.name, layout=form.layout, shape=(rows, K), data=data)


@pytest.mark.parametrize("reference", [True, False], ids=["reference", "packed"])
def test_a_rotated_matrix_multiplies_the_rotated_input(reference):
    change = StoredInput(signs=signs())
    stored = replace(ternary(6, 1), input=change)
    dense = FORMATS[stored.format].decode(stored)
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(2))
    out = weights(reference, p=stored).linear("p", (6, K))(x)
    expected = x.double() @ rotation(signs()).double().T @ dense.double().T
    assert (out - expected).abs().max() < 1e-4 * expected.abs().max()
    half = weights(reference, p=stored).linear("p", (6, K))(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.double() - expected).abs().max() < 0.02 * expected.abs().max()


def test_rows_of_a_rotated_table_are_turned_back():
    stored = replace(ternary(6, 1), input=StoredInput(signs=signs()))
    dense = FORMATS[stored.format].decode(stored)
    meant = dense.double() @ rotation(signs()).double()
    ids = torch.tensor([5, 0, 5])
    built = weights(False, p=stored)
    rows = built.embedding("p", (6, K))(ids)
    assert (rows - meant[ids]).abs().max() < 1e-5 * meant.abs().max()
    assert (built.tensor("p", (6, K)) - meant).abs().max() < 1e-5 * meant.abs().max()


@pytest.mark.parametrize("reference", [True, False], ids=["reference", "packed"])
def test_v20_columns_in_another_order_multiply_the_elements_they_name(reference):
    # tiled heads (16 keys of 3 value heads each, 128 wide, cut down to what fits): stored column c is of tiled head
    # t = c // 128, which is head (t % keys) * per + t // keys
    keys, per = 4, 4
    c = torch.arange(K)
    t = c // 128
    columns = ((t % keys) * per + t // keys) * 128 + c % 128
    assert torch.equal(columns.sort().values, c)
    generator = torch.Generator().manual_seed(3)
    meant = torch.randn(6, K, generator=generator)
    data = torch.zeros(6 * K // 32, 34, dtype=torch.uint8)
    codes = torch.randint(-127, 128, (6, K), generator=generator)
    data[:, :2] = torch.tensor([0.5]).half().view(torch.uint8)
    data[:, 2:] = codes.to(torch.int8).view(torch.uint8).view(-1, 32)
    stored = EncodedTensor(
        format="gguf_q8_0",
        layout="gguf_blocks_v1",
        shape=(6, K),
        data=data.flatten(),
        input=StoredInput(columns=columns),
    )
    meant[:, columns] = codes / 2
    x = torch.randn(3, K, generator=generator)
    built = weights(reference, p=stored)
    assert torch.allclose(built.linear("p", (6, K))(x), x @ meant.T, rtol=1e-4, atol=1e-2)
    assert torch.equal(built.tensor("p", (6, K)), meant)


def test_v20_tiled_and_grouped_heads_of_the_27b():
    heads, keys, per = 48, 16, 3
    tiled = {(t % keys) * per + t // keys: t for t in range(heads)}
    assert tiled[5] == 33
    c = 33 * 128 + 7
    assert ((c // 128 % keys) * per + c // 128 // keys) * 128 + c % 128 == 5 * 128 + 7


def test_matrices_of_other_inputs_are_not_multiplied_together():
    first, second = (replace(ternary(4, n), input=StoredInput(signs=signs(n))) for n in (1, 2))
    plain = ternary(4, 3)
    built = weights(False, a=first, b=second, c=plain)
    names, shapes = ["a", "b", "c"], [(4, K)] * 3
    x = torch.randn(2, K)
    together = built.linear(names, shapes)(x)
    assert torch.equal(together, torch.cat([built.linear(name, (4, K))(x) for name in names], dim=1))
    assert isinstance(built.linear("a", (4, K)), ChangedInputLinear)


def test_the_stored_form_of_such_a_matrix_is_not_handed_out():
    built = weights(False, p=replace(ternary(4, 1), input=StoredInput(signs=signs())))
    with pytest.raises(ArtifactError, match=r"memory: p: .* changed input"):
        built.parts("p", (4, K))


def test_an_unchanged_input_is_left_alone():
    x = torch.randn(3, K)
    assert torch.equal(meant_rows(StoredInput(), x), x)
    plain = quantize_fp32(torch.randn(4, K))
    assert torch.equal(
        ChangedInputLinear(weights(True, p=plain).linear("p", (4, K)), StoredInput(), torch.device("cpu"))(x),
        weights(True, p=plain).linear("p", (4, K))(x),
    )
