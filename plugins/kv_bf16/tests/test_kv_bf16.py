"""--kv-dtype bf16 and fp32."""

import torch

from ninfer_core.plugins import load
from ninfer_core.testing import KVDtypeContract
from ninfer_kv_bf16 import ninfer_kv_dtypes

BF16, FP32 = ninfer_kv_dtypes()


class TestBf16(KVDtypeContract):
    dtype = BF16
    tolerance = 2**-8
    head_dims = (64, 80, 96, 128, 256)


class TestFp32(KVDtypeContract):
    dtype = FP32
    tolerance = 0.0
    head_dims = (64, 80, 96, 128, 256)


def test_bf16_is_the_default_and_the_only_one():
    plugins = load(only=["kv_bf16"])
    assert plugins.broken() == []
    assert plugins.kv_dtypes.names() == ["bf16", "fp32"]
    assert [dtype.name for dtype in plugins.kv_dtypes if dtype.default] == ["bf16"]


def test_bf16_rounds_to_nearest_even():
    halfway = torch.tensor([[1.0 + 2**-8, 1.0 + 3 * 2**-8, -1.0 - 2**-8, 1.0 + 2**-8 + 2**-16]])
    (plane,) = BF16.open(4).encode(halfway)
    assert plane.float().tolist() == [[1.0, 1.0 + 2**-6, -1.0, 1.0 + 2**-7]]


def test_fused_attention_may_read_the_planes():
    assert BF16.open(64).is_cast
    assert FP32.open(64).is_cast
