"""The groupwise formats: the kit's contract, the specification's vectors, sizes (``spec/artifact.md`` §12.6, §21)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ninfer_groupwise_int
from ninfer_core.api import EncodedTensor
from ninfer_core.testing import WeightFormatContract
from ninfer_groupwise_int.encoders import KINDS
from ninfer_kernels.quant_linear import reference_planes, stored_rows
from ninfer_kernels.quant_linear.planes import layout

FORMATS = {item.name: item for item in ninfer_groupwise_int.ninfer_weight_formats()}
# half a step of the group's largest value, as the scale rounds to binary16
TOLERANCES = {"q4_g64": 0.5 / 7, "q5_g64": 0.5 / 15, "q6_g64": 0.5 / 31, "q8_g32": 0.5 / 127}
LEGAL_T2 = [0, 1, 3]


def tensor(kind, shape, data):
    return EncodedTensor(format=f"{kind}_fp16", layout="row_split_k128_v1", shape=shape, data=data)


def half_words(*words):
    return torch.tensor(words, dtype=torch.int32).to(torch.int16).view(torch.uint8)


class Groupwise(WeightFormatContract):
    shapes = ((4, 256), (7, 512), (1, 256), (5, 130), (3, 64), (6, 33))
    refused_shapes = ((4,), (2, 4, 256), (0, 256), (4, 0), ())


def contract(kind):
    members = {"format": FORMATS[f"{kind}_fp16"], "tolerance": TOLERANCES[kind] * 1.001 + 2**-11}
    return type(f"Test_{kind}", (Groupwise,), members)


TestQ4, TestQ5, TestQ6, TestQ8 = map(contract, KINDS)


class Imported(Groupwise):
    kind: str

    def sample(self, shape, seed):
        rows, columns = shape
        generator = torch.Generator().manual_seed(seed)
        places, size = layout(self.kind, rows, columns)
        data = torch.zeros(size, dtype=torch.uint8)
        codes = torch.randint(0, 4, (rows, 4 * places[0].stride), generator=generator).byte()
        if self.kind == "t2_g128":
            codes = torch.tensor(LEGAL_T2, dtype=torch.uint8)[codes.int() % 3]
        scales = torch.randn(rows, places[1].stride // 2, generator=generator).half()
        parts = [reference_planes.packed(codes, 2), scales.view(torch.uint8)]
        data[:] = stored_rows.fill(self.kind, rows, columns, [parts])
        return tensor(self.kind, shape, data)


class TestT2(Imported):
    kind, format = "t2_g128", FORMATS["t2_g128_fp16"]


class TestQ2(Imported):
    kind, format = "q2_g64", FORMATS["q2_g64_fp16"]


# V5, V6, V7: kind, numbers, scale word, size, base bytes, high bytes, values at places
WHOLE_GROUPS = [
    pytest.param(
        "q4_g64",
        [i % 16 - 8 for i in range(64)],
        0x3000,
        260,
        "98badcfe10325476" * 4,
        None,
        {0: -1.0, 1: -0.875, 2: -0.75, 15: 0.875},
        id="V5 q4",
    ),
    pytest.param(
        "q5_g64",
        [i % 32 - 16 for i in range(64)],
        0xB400,
        516,
        "1032547698badcfe" * 4,
        "ffff0000ffff0000",
        {0: 4.0, 1: 3.75, 15: 0.25, 31: -3.75},
        id="V6 q5",
    ),
    pytest.param(
        "q6_g64",
        [i - 32 for i in range(64)],
        0x3E00,
        516,
        "1032547698badcfe" * 4,
        "aa" * 4 + "ff" * 4 + "00" * 4 + "55" * 4,
        {0: -48.0, 31: -1.5, 63: 46.5},
        id="V7 q6",
    ),
]


@pytest.mark.parametrize(("kind", "numbers", "scale", "size", "base", "high", "values"), WHOLE_GROUPS)
def test_a_group_has_the_bytes_of_the_specification(kind, numbers, scale, size, base, high, values):
    base, high = bytes.fromhex(base), bytes.fromhex(high or "")
    data = bytearray(size)
    data[: len(base)] = base
    if high:
        data[256 : 256 + len(high)] = high
    at = 512 if high else 256
    data[at : at + 2] = scale.to_bytes(2, "little")
    stored = tensor(kind, (1, 64), torch.frombuffer(data, dtype=torch.uint8))
    form = FORMATS[f"{kind}_fp16"]
    assert form.encoded_bytes((1, 64)) == size
    decoded = form.decode(stored)[0]
    factor = half_words(scale).view(torch.float16).float()
    assert torch.equal(decoded, torch.tensor(numbers).float() * factor)
    assert {i: decoded[i].item() for i in values} == values
    # and the other way: the encoder's packing of these numbers
    from ninfer_groupwise_int.encoders import stored_parts

    codes = torch.nn.functional.pad(torch.tensor([numbers]).float(), (0, 64))
    scales = torch.cat([half_words(scale), torch.zeros(2, dtype=torch.uint8)]).view(torch.float16)[None]
    packed = stored_rows.fill(kind, 1, 64, [stored_parts(scales, codes, KINDS[kind])])
    assert packed.numpy().tobytes() == bytes(data)


def one_row(kind, columns, codes, scale):
    """A row of one group: its first code bytes and its scale word."""
    places, size = layout(kind, 1, columns)
    data = torch.zeros(size, dtype=torch.uint8)
    data[: len(codes)] = torch.tensor(list(codes), dtype=torch.uint8)
    data[places[-1].offset : places[-1].offset + 2] = half_words(scale)
    return tensor(kind, (1, columns), data)


@pytest.mark.parametrize(
    ("kind", "columns", "codes", "scale", "values"),
    [
        ("q8_g32", 32, "81ff00017f", 0x0001, [-127 * 2**-24, -(2**-24), 0.0, 2**-24, 127 * 2**-24]),
        ("t2_g128", 128, "53", 0x3800, [-0.5, 0.0, 0.5, 0.5]),
        ("q2_g64", 64, "e4", 0xB800, [0.5, -0.0, -0.5, -1.0]),
    ],
    ids=["V8a q8", "V8b t2", "V8c q2"],
)
def test_codes_and_scales_give_the_values_of_the_specification(kind, columns, codes, scale, values):
    stored = one_row(kind, columns, bytes.fromhex(codes), scale)
    decoded = FORMATS[stored.format].decode(stored)[0, : len(values)]
    assert torch.equal(decoded.view(torch.int32), torch.tensor(values).view(torch.int32))
    if kind == "q8_g32":
        assert stored.data.numel() == 264


def test_the_padding_of_a_row_is_code_zero_and_scale_zero():
    stored = FORMATS["q5_g64_fp16"].quantize(torch.ones(1, 65))
    base, high, scales = stored_rows.split("q5_g64", stored.data, 1, 65)
    assert scales.contiguous().view(torch.float16)[0].tolist() != [0, 0]
    assert base[0, 33:].sum() == 0 and high[0, 9:].sum() == 0
    short = FORMATS["q5_g64_fp16"].quantize(torch.ones(1, 64))
    assert stored_rows.split("q5_g64", short.data, 1, 64)[2][0, 2:].tolist() == [0, 0]


@pytest.mark.parametrize("kind", sorted({*KINDS, "t2_g128", "q2_g64"}))
def test_what_stands_in_the_padding_is_never_seen(kind):
    """Must not refuse: padding that is not zero."""
    form = FORMATS[f"{kind}_fp16"]
    shape = (3, 65)
    clean = one_row(kind, 65, b"\x11\x22", 0x3C00) if form.quantize is None else form.quantize(torch.randn(shape))
    rows = clean.shape[0]
    places, size = layout(kind, rows, 65)
    dirty = clean.data.clone()
    for place, after in zip(places, [*places[1:], None], strict=True):
        end = after.offset if after else size
        dirty[place.offset + rows * place.stride : end] = 0xFF
    # in the last group of every row: the codes past column 64, then wholly padded groups with a scale of NaN
    parts = stored_rows.split(kind, dirty, rows, 65)
    bits, group = (8, 32) if kind == "q8_g32" else (2 if kind[1] == "2" else 4, int(kind.split("_g")[1]))
    parts[0][:, -(-65 * bits // 8) :] = 0xFF
    parts[-1][:, 2 * -(-65 // group) :] = 0xFF
    assert not torch.equal(dirty, clean.data)
    stored = tensor(kind, clean.shape, dirty)
    assert torch.equal(form.decode(stored), form.decode(clean))
    x = torch.randn(2, 65)
    assert torch.equal(form.cpu_linear([stored])(x), form.cpu_linear([clean])(x))


SIZES = [
    ("q4_g64", (7168, 5120), 19_496_960),
    ("q5_g64", (7168, 5120), 24_084_480),
    ("q6_g64", (248320, 5120), 993_280_000),
    ("q8_g32", (248320, 5120), 1_350_860_800),
    ("q5_g64", (2, 130), 528),
    ("q5_g64", (1152, 4304), 3_290_112),
    ("t2_g128", (5120, 17408), 23_674_880),
]


@pytest.mark.parametrize(("kind", "shape", "size"), SIZES, ids=[f"{kind}-{shape}" for kind, shape, _ in SIZES])
def test_sizes_are_the_published_ones(kind, shape, size):
    assert FORMATS[f"{kind}_fp16"].encoded_bytes(shape) == size


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    seed=st.integers(0, 1 << 30),
)
def test_any_codes_survive_packing_and_row_selection(kind, rows, columns, seed):
    """Encoded, split into rows and put together again in another order: the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    form = FORMATS[f"{kind}_fp16"]
    stored = form.quantize(torch.randn(rows, columns, generator=generator))
    assert stored.data.numel() == form.encoded_bytes((rows, columns))
    order = torch.randperm(rows, generator=generator).tolist()
    again = form.take_rows(form.take_rows(stored, order), [order.index(r) for r in range(rows)])
    assert torch.equal(again.data, stored.data)


def test_rows_that_are_not_there_are_refused():
    stored = FORMATS["q4_g64_fp16"].quantize(torch.ones(4, 64))
    for rows in ([4], [-1], [0, 4], []):
        with pytest.raises(IndexError, match=r"0\.\.3"):
            FORMATS["q4_g64_fp16"].take_rows(stored, rows)
