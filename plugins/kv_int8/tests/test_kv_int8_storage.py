"""--kv-dtype int8."""

import zlib

import pytest
import torch

from ninfer_core.api import Refusal
from ninfer_core.plugins import load
from ninfer_core.testing import KVDtypeContract
from ninfer_kv_int8 import ninfer_kv_dtypes

(INT8,) = ninfer_kv_dtypes()


class TestInt8(KVDtypeContract):
    dtype = INT8
    # half a step of 1/127, and the rounding to bf16 before it
    tolerance = 1 / 254 + 1 / 256
    head_dims = (32, 64, 96, 128, 192, 256, 512)


def row(multiplier, offset, modulus, centre, divisor):
    i = torch.arange(256, dtype=torch.float64)
    return (((multiplier * i + offset) % modulus - centre) / divisor).float().bfloat16()[None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_key_and_value_rows_have_the_published_bytes(dtype):
    codec = INT8.open(256)
    for side, x, crc, scales in (
        (codec.keys, row(37, 11, 251, 125, 50), "9673a95a", "5426f52a95275326"),
        (codec.values, row(53, 7, 241, 120, 60), "272ec13a", "0024082408240024"),
    ):
        codes, s = side.encode(x.to(dtype))
        assert f"{zlib.crc32(codes.numpy().tobytes()):08x}" == crc
        assert s.numpy().tobytes().hex() == scales


def test_what_is_encoded_is_the_row_rounded_to_bf16():
    x, codec = torch.randn(5, 128), INT8.open(128)
    for side in (codec.keys, codec.values):
        for exact, rounded in zip(side.encode(x), side.encode(x.bfloat16()), strict=True):
            assert torch.equal(exact, rounded)


@pytest.mark.parametrize("head_dim", [0, 32, 80, 96, 192])
def test_other_head_dimensions_are_refused_with_the_way_out(head_dim):
    for use in (INT8.key_planes, INT8.open):
        with pytest.raises(Refusal, match=f"--kv-dtype int8 .* is {head_dim}. Use --kv-dtype bf16"):
            use(head_dim)


def test_keys_are_rotated_and_values_are_not():
    codec = INT8.open(64)
    assert codec.rotates_keys
    assert not codec.rotates_values


def test_the_plugin_loads_alone():
    plugins = load(only=["kv_int8"])
    assert plugins.broken() == []
    assert plugins.kv_dtypes.names() == ["int8"]
    assert not plugins.kv_dtypes["int8"].default
