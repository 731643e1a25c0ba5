"""Random weights that lie as a stored format has them."""

from dataclasses import replace

import pytest
import torch

import ninfer_groupwise_int
import ninfer_nvfp4
from ninfer_core.api import InvariantError
from ninfer_core.api.nn import Runtime
from ninfer_core.nn.linear import DenseLinear, StackedLinear
from ninfer_core.nn.random import SLAB_ROWS, RandomWeights

FORMATS = {
    form.name: form for plugin in (ninfer_groupwise_int, ninfer_nvfp4) for form in plugin.ninfer_weight_formats()
}
Q4, Q5, NVFP4, TERNARY = (FORMATS[name] for name in ("q4_g64_fp16", "q5_g64_fp16", "nvfp4", "t2_g128_fp16"))


def weights(formats, reference=False):
    runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=reference, max_context=64, options={})
    return RandomWeights(runtime, formats=formats)


def dense(linear, columns):
    """What an operation multiplies by."""
    return linear(torch.eye(columns)).t()


def test_a_matrix_is_stored_in_the_format_it_is_said_to_have():
    built = weights({"a": Q4})
    linear = built.linear("a", (300, 128))
    assert not isinstance(linear, DenseLinear)
    assert linear.rows == 300
    assert built.matrix_bytes == Q4.encoded_bytes((300, 128))
    matrix = dense(linear, 128)
    assert matrix.std() == pytest.approx(128**-0.5, rel=0.05)
    assert torch.equal(matrix[SLAB_ROWS:], matrix[: 300 - SLAB_ROWS]), "the slab is repeated"
    assert len(matrix[:SLAB_ROWS].unique(dim=0)) == SLAB_ROWS


def test_numbers_depend_on_the_name_and_not_on_what_was_asked_before():
    first, second = weights({"a": Q4, "b": Q4}), weights({"a": Q4, "b": Q4})
    a = dense(first.linear("a", (64, 128)), 128)
    b = dense(second.linear("b", (64, 128)), 128)
    assert not torch.equal(a, b)
    assert torch.equal(dense(first.linear("b", (64, 128)), 128), b)


def test_formats_of_one_stack_may_differ():
    built = weights({"a": Q4, "b": Q4, "c": Q5})
    linear = built.linear(["a", "b", "c", "d"], [(64, 128)] * 4)
    assert isinstance(linear, StackedLinear)
    assert [operation.rows for operation in linear.operations] == [128, 64, 64]
    assert isinstance(linear.operations[-1], DenseLinear)
    alone = weights({"c": Q5}).linear("c", (64, 128))
    assert torch.equal(dense(linear, 128)[128:192], dense(alone, 128))


def test_what_is_to_stay_packed_is_of_one_format_or_nothing():
    formats = {"a": Q4, "b": Q4, "c": Q5}
    built = weights(formats)
    packed = built.packed(["a", "b"], [(64, 128), (300, 128)])
    assert torch.equal(dense(packed, 128), dense(weights(formats).linear(["a", "b"], [(64, 128), (300, 128)]), 128))
    assert built.matrix_bytes == Q4.encoded_bytes((64, 128)) + Q4.encoded_bytes((300, 128))
    assert weights(formats).packed("a", (64, 128)).rows == 64
    for names in (["a", "c"], ["a", "d"], ["d"]):
        assert weights(formats).packed(names, [(64, 128)] * len(names)) is None
    assert weights(formats, reference=True).packed(["a", "b"], [(64, 128)] * 2) is None


def test_a_device_gets_each_slab_of_a_matrix_once():
    """However often it is repeated."""
    asked = []
    made = replace(Q4, gpu_linear=lambda tensors, device: asked.append((tensors, device)))
    runtime = Runtime(device=torch.device("meta"), dtype=torch.bfloat16, reference=False, max_context=64, options={})
    RandomWeights(runtime, formats={"a": made}).packed("a", (3 * SLAB_ROWS + 7, 128))
    ((tensors, device),) = asked
    assert device.type == "meta"
    assert [tensor.shape[0] for tensor in tensors] == [SLAB_ROWS] * 3 + [7]
    assert len({id(tensor) for tensor in tensors}) == 2
    assert {tensor.data.device.type for tensor in tensors} == {"meta"}


def test_nvfp4_holds_whole_tiles_of_rows():
    assert weights({"a": NVFP4}).linear("a", (384, 64)).rows == 384


def test_the_reference_has_dense_weights():
    assert isinstance(weights({"a": Q4}, reference=True).linear("a", (64, 128)), DenseLinear)


def test_a_format_without_an_encoder_says_so():
    with pytest.raises(InvariantError, match="t2_g128_fp16 has no encoder"):
        weights({"a": TERNARY}).linear("a", (64, 128))
