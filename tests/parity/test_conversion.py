"""Every ``--weights`` scheme, from a checkpoint saved by transformers to logits: those of the weights it decodes to.

The oracle is transformers' own model with every matrix replaced by what the artifact's bytes mean. So an artifact that
is read, stacked or multiplied differently from its definition shows, whatever its format loses. A further family is a
further entry of ``CASES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ninfer_core.api import Checkpoint, ModelFamily
from ninfer_core.api.nn import Runtime
from ninfer_core.cli.main import main as ninfer
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.testing import Rig, compose
from ninfer_core.weights.checkpoint import open_checkpoint

FORMATS = {"gguf", "groupwise_int", "row_fp8", "nvfp4"}
SCHEMES = ("keep", "bf16", "fp32", "fp8", "groupwise-int", "nvfp4")
TOLERANCE = 2e-4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One tiny model: how transformers makes it, and which of its tensors a logical parameter is."""

    plugins: frozenset[str]
    vocab: int
    make: Callable[[], Any]
    tensor_of: Callable[[str], str]
    expected: Callable[[str], set[str]]  # scheme -> the formats of its artifact


def make_llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **changes,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + 1)
    return model


def llama_tensor(name: str) -> str:
    from ninfer_llama.names import huggingface_name

    return huggingface_name(name)


def llama_formats(scheme: str, vectors: str = "fp32") -> set[str]:
    groupwise = {"q4_g64_fp16", "q5_g64_fp16", "q8_g32_fp16"}
    fp8 = "fp8_e4m3fn_row_bf16"
    matrices = {"keep": {vectors}, "bf16": {"bf16"}, "fp32": {"fp32"}, "fp8": {fp8}, "groupwise-int": groupwise}
    return {vectors} | matrices.get(scheme, {"nvfp4", fp8})


LLAMA = {"plugins": frozenset({"llama"}), "vocab": 256, "tensor_of": llama_tensor}
CASES = {
    "llama": Case(**LLAMA, make=make_llama, expected=llama_formats),
    "llama-tied": Case(**LLAMA, make=lambda: make_llama(tie_word_embeddings=True), expected=llama_formats),
    # widths that end inside a group, rows that no tile of nvfp4 covers
    "llama-odd": Case(
        **LLAMA,
        make=lambda: make_llama(head_dim=24, attention_bias=True, mlp_bias=True),
        expected=llama_formats,
    ),
    "llama-bf16": Case(
        **LLAMA,
        make=lambda: make_llama().to(torch.bfloat16),
        expected=lambda scheme: llama_formats(scheme, "bf16"),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Case, Any, Path]]:
    """A case, its oracle in fp32 and the folder it was saved to."""
    found = CASES[request.param]
    folder = tmp_path_factory.mktemp("model")
    model = found.make()
    model.save_pretrained(folder)
    # read back rather than cast back, which would leave the rotary frequencies rounded
    yield found, type(model).from_pretrained(folder, dtype=torch.float32).eval(), folder


def opened(path: Path, case: Case) -> tuple[Any, ModelFamily, Checkpoint]:
    plugins = compose(case.plugins | FORMATS)
    return (plugins, *open_checkpoint(str(path), plugins))


def rig(path: Path, case: Case, *, reference: bool) -> Rig:
    plugins, family, checkpoint = opened(path, case)
    runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=reference, max_context=512, options={})
    weights = CheckpointWeights(checkpoint, plugins.weight_formats, runtime)
    layout = family.state_layout(checkpoint.config, runtime)
    return Rig(family.build(checkpoint, weights, runtime), family.kv_geometry(checkpoint.config), layout)


def meant(path: Path, case: Case) -> dict[str, torch.Tensor]:
    """Every parameter of a checkpoint as its bytes mean it, under transformers' names."""
    plugins, family, checkpoint = opened(path, case)
    found = {}
    for name, shape in family.inventory(checkpoint.config).items():
        parts = checkpoint.parameter(name, tuple(shape))
        rows = [plugins.weight_formats[part.format].decode(part) for part in parts]
        found[case.tensor_of(name)] = torch.cat(rows).reshape(shape)
    return found


def reloaded(model: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The oracle with these weights; every one of its own is replaced, and none is left over."""
    names = set(model.state_dict())
    assert names == set(tensors), names ^ set(tensors)
    # a tied head is set with the table, so both have to agree
    model.load_state_dict(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(model.state_dict()[name], tensor), name
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_artifact_answers_as_the_model_its_bytes_decode_to(case, tmp_path, capsys, scheme):
    found, model, folder = case
    out = tmp_path / "model.ninfer"
    assert ninfer(["convert", str(folder), str(out), "--weights", scheme]) == 0
    report = capsys.readouterr().out
    assert set(report.rpartition("(")[2].rstrip(")\n").split(", ")) == found.expected(scheme)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        oracle = reloaded(model, meant(out, found))
        ids = torch.randint(0, found.vocab, (70,), generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            expected = oracle(ids[None]).logits[0]
    finally:
        model.load_state_dict(state)
    if scheme in ("keep", "fp32"):
        with torch.no_grad():
            assert torch.equal(expected, model(ids[None]).logits[0]), "nothing was to be lost"
    scale = expected.abs().max()
    assert scale > 1, "a flat model would pass whatever is computed"
    for reference in (True, False):
        got = rig(out, found, reference=reference)
        whole = got.feed({0: ids.tolist()})[0]
        single = torch.cat([got.feed({1: [token]})[1] for token in ids[:20].tolist()])
        torch.testing.assert_close(whole, expected, rtol=0, atol=TOLERANCE * scale)
        torch.testing.assert_close(single, expected[:20], rtol=0, atol=TOLERANCE * scale)


@pytest.mark.parametrize("scheme", ["keep", "groupwise-int", "nvfp4"])
def test_a_split_or_copied_artifact_is_the_same_model(case, tmp_path, scheme):
    found, _, folder = case
    names = ["whole", "parts", "copy"]
    whole, parts, copy = (tmp_path / f"{name}.ninfer" for name in names)
    assert ninfer(["convert", str(folder), str(whole), "--weights", scheme]) == 0
    assert ninfer(["convert", str(folder), str(parts), "--weights", scheme, "--max-file-mib", "1"]) == 0
    assert ninfer(["convert", str(parts), str(copy)]) == 0
    expected = meant(whole, found)
    for path in (parts, copy):
        for name, tensor in meant(path, found).items():
            assert torch.equal(tensor, expected[name]), (path.stem, name)
    assert parts.stat().st_size <= 1 << 20
    assert bool(list(tmp_path.glob("parts.ninfer.part-*"))) == (whole.stat().st_size > 1 << 20)
