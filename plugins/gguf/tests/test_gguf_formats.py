import gguf
import pytest
import torch

import ninfer_gguf
from ninfer_core.api import EncodedTensor, WeightFormat
from ninfer_core.testing import WeightFormatContract

FORMATS = {item.name: item for item in ninfer_gguf.ninfer_weight_formats()}
SCALES = {"q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q4_k": [0, 2], "q6_k": [208]}

# spec/artifact.md §21: block byte i is (37 i + 11) mod 256, the first scale 1.0, the second 0.5
GOLDEN = [
    ("q8_0", [85, 122, -97, -60], -48, -176),
    ("q4_0", [-3, 2, 7, -4], 0, -21),
    ("q5_0", [9, -2, 3, -8], 1, 15),
    ("q4_k", [315.5, -25.5, 129.5, 284.5], 48.5, 54440),
    ("q6_k", [-1431, 1696, 583, -530], -60, 4612),
]


def block_of(name):
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    return values, size


def encoded(name, shape, seed):
    values, size = block_of(name)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (shape[0] * shape[1] // values, size), generator=generator).byte()
    for offset in SCALES[name]:
        scale = torch.randn(len(blocks), 1, generator=generator).half()
        blocks[:, offset : offset + 2] = scale.view(torch.uint8)
    return EncodedTensor(format=f"gguf_{name}", layout="gguf_blocks_v1", shape=shape, data=blocks.flatten())


class GGUFFormat(WeightFormatContract):
    refused_shapes = ((4, 33), (4,), (2, 4, 256), (0, 256))
    block: str

    def sample(self, shape, seed):
        return encoded(self.block, shape, seed)


def contract(block: str) -> type[GGUFFormat]:
    format: WeightFormat = FORMATS[f"gguf_{block}"]
    return type(f"TestGGUF_{block}", (GGUFFormat,), {"format": format, "block": block})


TestQ40, TestQ41, TestQ50, TestQ51, TestQ80, TestQ4K, TestQ6K = map(contract, SCALES)


@pytest.mark.parametrize("name", SCALES)
def test_decoding_equals_the_gguf_package_to_the_bit(name):
    tensor = encoded(name, (37, 1536), seed=3)
    expected = gguf.quants.dequantize(tensor.data.view(37, -1).numpy(), gguf.GGMLQuantizationType[name.upper()])
    decoded = FORMATS[tensor.format].decode(tensor)
    assert torch.equal(decoded.view(torch.int32), torch.from_numpy(expected).view(torch.int32))


@pytest.mark.parametrize(("name", "first", "last", "total"), GOLDEN, ids=[row[0] for row in GOLDEN])
def test_the_golden_block_of_the_specification(name, first, last, total):
    values, size = block_of(name)
    data = torch.tensor([(37 * i + 11) % 256 for i in range(size)], dtype=torch.uint8)
    for offset, scale in zip(SCALES[name], (1.0, 0.5), strict=False):
        data[offset : offset + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    tensor = EncodedTensor(format=f"gguf_{name}", layout="gguf_blocks_v1", shape=(1, values), data=data)
    decoded = FORMATS[tensor.format].decode(tensor)[0]
    assert decoded[:4].tolist() == first
    assert decoded[-1] == last
    assert decoded.double().sum() == total


def test_sizes_follow_the_block_table():
    for name in SCALES:
        values, size = block_of(name)
        assert FORMATS[f"gguf_{name}"].encoded_bytes((7, 1536)) == 7 * 1536 // values * size


def test_only_the_published_names_are_published():
    assert {name for name, item in FORMATS.items() if not item.published} == {"gguf_q4_1", "gguf_q5_1"}


def test_rows_that_are_not_there_are_refused():
    tensor = encoded("q8_0", (4, 64), seed=1)
    for rows in ([4], [-1], [0, 4], []):
        with pytest.raises(IndexError, match=r"0\.\.3"):
            FORMATS["gguf_q8_0"].take_rows(tensor, rows)


def test_a_run_of_rows_is_a_view():
    tensor = encoded("q8_0", (8, 64), seed=1)
    taken = FORMATS["gguf_q8_0"].take_rows(tensor, [2, 3, 4])
    assert taken.data.untyped_storage().data_ptr() == tensor.data.untyped_storage().data_ptr()
