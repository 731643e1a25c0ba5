"""Golden bytes of the s8 row codec (spec/kv-dtypes.md §10) and its edges."""

import zlib

import pytest
import torch

from ninfer_kernels import hadamard, kv_int8


def group(largest):
    x = torch.zeros(1, 64)
    x[0, 5] = largest
    return x


def bits(scales):
    return [f"{value & 0xFFFF:04x}" for value in scales.view(torch.int16).flatten().tolist()]


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(0, "0000"), (1.0, "2008"), (3.5, "270e"), (127, "3c00"), (1e-6, "0000"), (6e-6, "0001")],
)
def test_scales_are_the_published_ones(largest, scale):
    codes, scales = kv_int8.encode(group(largest))
    assert bits(scales) == [scale]
    if scale == "0000":
        assert not codes.any()


def test_one_group_has_the_published_bytes():
    i = torch.arange(64)
    x = ((11 * i + 5) % 64 - 31.5) / 16
    codes, scales = kv_int8.encode(x[None])
    assert bits(scales) == ["23f0"]
    assert raw(codes).hex() == (
        "95c2ee1a47739dcaf6224f7ba5d2fe2a5781adda06325f89b5e20e3a6791bdea"
        "16436f99c6f21e4b77a1cefa26537fa9d6022e5b85b1de0a36638db9e6123e6b"
    )


def published_rows():
    i = torch.arange(256, dtype=torch.float64)
    k = ((37 * i + 11) % 251 - 125) / 50
    v = ((53 * i + 7) % 241 - 120) / 60
    return k.float().bfloat16()[None], v.float().bfloat16()[None]


def test_full_rows_have_the_published_bytes():
    k, v = published_rows()
    assert k[0, :4].tolist() == [-2.28125, -1.5390625, -0.80078125, -0.06005859375]
    codes, scales = kv_int8.encode(hadamard.rotate(k))
    assert raw(codes)[:16].hex() == "f6f5030007e6e600f400001919cd0019"
    assert f"{zlib.crc32(raw(codes)):08x}" == "9673a95a"
    assert raw(scales).hex() == "5426f52a95275326"
    codes, scales = kv_int8.encode(v)
    assert raw(codes)[:16].hex() == "88c0f9316aa1da124a82baf32c649cd4"
    assert f"{zlib.crc32(raw(codes)):08x}" == "272ec13a"
    assert raw(scales).hex() == "0024082408240024"


def test_a_scale_beyond_fp16_is_clamped():
    codes, scales = kv_int8.encode(group(127.0 * 70000))
    assert bits(scales) == ["7bff"]
    assert codes[0, 5] == 127
    assert torch.isfinite(kv_int8.decode(codes, scales)).all()


def test_a_nan_shows_after_decoding_and_stays_in_its_group():
    x = torch.ones(2, 128)
    x[0, 70] = float("nan")
    decoded = kv_int8.decode(*kv_int8.encode(x))
    assert decoded[0, 64:].isnan().all()
    assert torch.isfinite(decoded[0, :64]).all()
    assert torch.isfinite(decoded[1]).all()


@pytest.mark.parametrize("head_dim", [128, 256])
def test_the_rounding_error_is_the_published_one(head_dim):
    x = torch.randn(4096, head_dim, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    rotated = hadamard.rotate(x)
    for stored, published in ((rotated, 0.00593), (x, 0.00594)):
        error = (kv_int8.decode(*kv_int8.encode(stored)) - stored).norm() / stored.norm()
        assert error.item() == pytest.approx(published, rel=0.03)
