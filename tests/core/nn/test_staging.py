"""Weights go to a device through a bounded buffer, whole and in order, however late the device copies."""

import contextlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import EncodedTensor, InvariantError
from ninfer_core.api.nn import Runtime
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.nn.staging import HALVES, Staging, UploadFacts
from ninfer_core.registry import Registry
from ninfer_core.weights.formats import FORMATS

DIRECT = {weight_format.name: weight_format for weight_format in FORMATS}


class LateDevice:
    """Copies when it is waited for and not before: a half that is filled too early shows as wrong weights."""

    def __init__(self, *, fails_at: int | None = None):
        self.running: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.sent: list[int] = []  # bytes of each copy
        self.size = 0
        self.released = False
        self.fails_at = fails_at

    def buffer(self, size):
        self.size = size
        return torch.full((size,), 255, dtype=torch.uint8)

    def send(self, target, source, half):
        assert half not in self.running
        assert source.data_ptr() % target.element_size() == 0
        if self.fails_at == len(self.sent):
            raise RuntimeError("the device is gone")
        self.sent.append(source.numel() * source.element_size())
        self.running[half] = (target, source)

    def wait(self, half):
        if half not in self.running:
            return 0.0
        target, source = self.running.pop(half)
        target.copy_(source)
        return 0.5

    def release(self):
        assert not self.running
        self.released = True


def staged(half_bytes, **rest):
    device = LateDevice(**rest)
    return Staging(device, half_bytes), device


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16], ids=str)
def test_a_tensor_arrives_rounded_once(source, target):
    staging, device = staged(64)
    values = torch.randn(7, 33).to(source)
    out = torch.full((7, 33), 9.0, dtype=target)
    staging.copy(out, values)
    staging.finish()
    assert torch.equal(out, values.to(target))
    assert max(device.sent) <= 64
    assert device.size == 64 * HALVES


def test_words_keep_their_bits():
    staging, _ = staged(64)
    words = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    out = torch.zeros_like(words)
    staging.copy(out, words)
    staging.finish()
    assert torch.equal(out.view(torch.int16), words.view(torch.int16))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 90), max_size=8),
    half=st.sampled_from([4, 8, 60, 64, 1024]),
    seed=st.integers(0, 9),
)
def test_slices_of_one_tensor_arrive_where_they_belong(sizes, half, seed):
    staging, device = staged(half)
    values = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed))
    out = torch.zeros_like(values)
    start = 0
    for size in sizes:
        staging.copy(out[start : start + size], values[start : start + size].clone())
        start += size
    facts = staging.finish()
    assert torch.equal(out, values)
    assert facts.host_to_device_bytes == 4 * sum(sizes) == sum(device.sent)
    assert facts.peak_staging_bytes == (half * HALVES if sum(sizes) else 0)
    assert facts.upload_seconds == 0.5 * len(device.sent)
    assert all(size <= half for size in device.sent)


def test_the_buffer_lives_from_the_first_tensor_to_the_end():
    staging, device = staged(64)
    staging.copy(torch.zeros(0), torch.zeros(0))
    assert device.size == 0
    staging.copy(torch.zeros(3), torch.ones(3))
    assert device.size and not device.released
    staging.finish()
    assert device.released


def test_a_finished_staging_can_begin_again_and_counts_on():
    staging, _ = staged(64)
    for _ in range(2):
        out = torch.zeros(5)
        staging.copy(out, torch.ones(5))
        facts = staging.finish()
        assert torch.equal(out, torch.ones(5))
    assert facts == UploadFacts(host_to_device_bytes=40, peak_staging_bytes=128, upload_seconds=1.0)


def test_after_a_failure_nothing_is_left_behind():
    staging, device = staged(8, fails_at=3)
    with pytest.raises(RuntimeError, match="gone"):
        staging.copy(torch.zeros(64), torch.ones(64))
    staging.finish()
    assert device.released and not device.running


@pytest.mark.parametrize(("target", "source"), [((3, 4), (4, 3)), ((12,), (3, 4))], ids=str)
def test_shapes_that_differ_are_a_fault_of_ours(target, source):
    with pytest.raises(InvariantError, match="does not go into"):
        staged(64)[0].copy(torch.zeros(target), torch.zeros(source))


def test_a_target_with_gaps_is_a_fault_of_ours():
    with pytest.raises(InvariantError):
        staged(64)[0].copy(torch.zeros(4, 8)[:, :4], torch.zeros(4, 4))


# ---------------------------------------------------------------------------------------- through the loader


class Memory:
    path, architecture, name, config, companions = "memory", "Test", None, {}, {}

    def __init__(self, **parameters):
        self.parameters = parameters

    def names(self):
        return self.parameters

    def has(self, name):
        return name in self.parameters

    def parameter(self, name, shape):
        return tuple(self.parameters[name])

    def resource(self, role):
        return None

    def close(self):
        pass


def loader(checkpoint, half=256, *, reference=False, **rest):
    """As on a GPU, whose memory is the host's here."""
    registry = Registry("weight format")
    for weight_format in FORMATS:
        registry.add(weight_format.name, weight_format, origin="test")
    runtime = Runtime(device=torch.device("cpu"), dtype=torch.bfloat16, reference=reference, max_context=64, options={})
    staging, device = staged(half, **rest)
    weights = CheckpointWeights(checkpoint, registry, runtime, staging=staging)
    weights.on_cpu, weights.dense_dtype = False, torch.float32 if reference else torch.bfloat16
    return weights, device


def stored(name, values):
    return DIRECT[name].quantize(values)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("ninfer_core.nn.loader.DECODE_ELEMENTS", 48)


@pytest.mark.parametrize("formats", [("bf16",), ("fp32",), ("bf16", "fp32", "int32")], ids="-".join)
@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
def test_matrices_of_any_format_arrive_as_one(formats, reference, small_pieces):
    parts = [torch.randint(-99, 99, (11, 24)).float() for _ in formats]
    weights, device = loader(
        Memory(p=[stored(*pair) for pair in zip(formats, parts, strict=True)]), reference=reference
    )
    matrix = weights.linear("p", (11 * len(parts), 24)).weight
    facts = weights.finish()
    assert matrix.dtype == (torch.float32 if reference else torch.bfloat16)
    assert torch.equal(matrix.float(), torch.cat(parts))
    assert facts.host_to_device_bytes == matrix.numel() * matrix.element_size()
    assert max(device.sent) <= 256


def test_a_table_in_bf16_is_never_decoded(monkeypatch, small_pieces):
    def decode(tensor):
        raise AssertionError("decoded")

    words = torch.randn(9, 16).bfloat16()
    words[0, 0], words[1, 1] = float("nan"), -0.0
    weights, _ = loader(Memory(table=[of_words(words, words.view(torch.uint8).reshape(-1))]))
    monkeypatch.setattr(weights, "_format_of", lambda name, part: replace(DIRECT["bf16"], decode=decode))
    embedding = weights.embedding("table", (9, 16))
    weights.finish()
    assert torch.equal(embedding.table.view(torch.int16), words.view(torch.int16))


def of_words(words, data):
    return EncodedTensor(format="bf16", layout="contiguous_le_v1", shape=tuple(words.shape), data=data)


def test_packed_bytes_are_staged_and_given_to_the_format(monkeypatch):
    seen = []

    def gpu_linear(tensors, device):
        seen.extend(tensor.data for tensor in tensors)
        return lambda x: x

    words = [torch.randn(9, 16).bfloat16() for _ in range(2)]
    parts = [of_words(one, one.view(torch.uint8).reshape(-1)) for one in words]
    weights, device = loader(Memory(a=[parts[0]], b=[parts[1]]))
    monkeypatch.setattr(weights, "_format_of", lambda name, part: replace(DIRECT["bf16"], gpu_linear=gpu_linear))
    weights.linear(["a", "b"], [(9, 16), (9, 16)])
    assert weights.finish().host_to_device_bytes == 2 * 9 * 16 * 2 == sum(device.sent)
    for data, part in zip(seen, parts, strict=True):
        assert torch.equal(data, part.data)
        assert data.data_ptr() != part.data.data_ptr()


def test_words_at_an_odd_address_arrive_too(small_pieces):
    words = torch.randn(9, 16).bfloat16()
    odd = torch.zeros(words.numel() * 2 + 1, dtype=torch.uint8)
    odd[1:] = words.view(torch.uint8).reshape(-1)
    weights, _ = loader(Memory(p=[of_words(words, odd[1:])]))
    matrix = weights.linear("p", (9, 16)).weight
    weights.finish()
    assert torch.equal(matrix, words)


def test_small_parameters_are_staged_and_outlive_the_files():
    values = torch.randn(40)
    tensor = stored("fp32", values.clone())
    weights, device = loader(Memory(norm=[tensor]))
    norm = weights.tensor("norm", (40,))
    weights.finish()
    tensor.data.zero_()
    assert torch.equal(norm, values)
    assert sum(device.sent) == 160


def test_a_load_that_fails_gives_its_buffer_back():
    weights, device = loader(Memory(p=[stored("bf16", torch.ones(64, 64))]), half=64, fails_at=5)
    with contextlib.suppress(RuntimeError):
        weights.linear("p", (64, 64))
    weights.finish()
    assert device.released and not device.running


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_device_gets_every_element():
    from ninfer_core.nn.staging import CudaTransport

    device = torch.device("cuda", 0)
    staging = Staging(CudaTransport(device), 1 << 16)
    values = torch.randn(1000, 333)
    out = torch.zeros(1000, 333, dtype=torch.bfloat16, device=device)
    for start in range(0, 1000, 37):
        staging.copy(out[start : start + 37], values[start : start + 37])
    facts = staging.finish()
    assert torch.equal(out.cpu(), values.bfloat16())
    assert facts.host_to_device_bytes == out.numel() * 2
    assert facts.upload_seconds > 0
