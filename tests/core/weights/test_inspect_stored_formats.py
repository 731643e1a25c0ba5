"""``ninfer inspect`` on artifacts of the block formats: tables, JSON, and what a start would refuse."""

from __future__ import annotations

import json
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ninfer_core import options
from ninfer_core.api import ModelFamily, hookimpl
from ninfer_core.cli import inspect
from ninfer_core.cli.main import guarded
from ninfer_core.testing import compose
from ninfer_core.weights.layout_plan import NewArtifact, NewTensor
from ninfer_core.weights.writer import write_artifact

from .conftest import TOY

SHAPE = (256, 64)
CONFIG = {"architectures": ["ToyForCausalLM"], "vocab_size": 256, "width": 64}


@pytest.fixture
def plugins(monkeypatch):
    def modules(family: ModelFamily):
        module = types.ModuleType("toy")
        module.NINFER_API = 1  # type: ignore[attr-defined]

        @hookimpl
        def ninfer_model_families():
            return [family]

        module.ninfer_model_families = ninfer_model_families  # type: ignore[attr-defined]
        return (("toy", module),)

    found = compose({"gguf", "groupwise_int", "row_fp8", "nvfp4"}, modules=modules(TOY))
    monkeypatch.setattr(options, "compose", lambda argv: found)
    return found


def tensor(plugins, name: str, form: str, shape: tuple[int, ...]) -> NewTensor:
    kind = plugins.weight_formats[form]
    data = kind.quantize(torch.randn(shape, generator=torch.Generator().manual_seed(1))).data.numpy().tobytes()
    return NewTensor(
        id=name, shape=shape, format=form, layout=kind.layout, bytes=len(data), read=lambda: [memoryview(data)]
    )


@pytest.fixture
def artifact(plugins, tmp_path: Path):
    """One parent with two divisors that holds the table, a mixed head, a norm, an auxiliary and a proposal head."""
    table = tensor(plugins, "table", "nvfp4", SHAPE)
    stacked = table.read()[0].tobytes() + torch.tensor([3.0]).view(torch.uint8).numpy().tobytes()
    table = replace(table, bytes=len(stacked), divisors=2, read=lambda: [memoryview(stacked)])
    tensors = [
        table,
        tensor(plugins, "a", "q4_g64_fp16", (128, 64)),
        tensor(plugins, "b", "fp8_e4m3fn_row_bf16", (128, 64)),
        tensor(plugins, "norm", "bf16", (64,)),
        tensor(plugins, "divisor", "fp32", ()),
        tensor(plugins, "short", "q6_g64_fp16", (4, 64)),
        tensor(plugins, "ids", "fp32", (4,)),
    ]
    head = [{"object": name, "range": [0, 128 * 64]} for name in "ab"]
    use = {"parameter": "text/output_head", "input": "text/final_hidden", "activation_policy": "AllowA4"}
    new = NewArtifact(
        components={"text": {"config": CONFIG, "proposal": {"domain": "indexed", "rows": 4}}},
        resources=[],
        tensors=tensors,
        bindings={
            "text/token_embedding": {"object": "table"},
            "text/output_head": {"parts": head},
            "text/final_norm": {"object": "norm"},
            "proposal/head": {"object": "short"},
            "proposal/token_ids": {"object": "ids"},
        },
        uses=[{**use, "auxiliaries": {"activation_input_divisor": {"object": "divisor"}}}],
        metadata={"name": "mixed"},
    )
    path = tmp_path / "m.ninfer"
    write_artifact(path, new)
    return path


def inspected(path: Path, capsys) -> dict:
    guarded(inspect.COMMAND.run, [str(path), "--json"])
    return json.loads(capsys.readouterr().out)


def test_every_part_of_a_parameter_has_a_row_with_its_format_and_size(artifact, capsys):
    report = inspected(artifact, capsys)
    rows = {(row["name"], row["origin"]): row for row in report["tensors"]}
    assert rows["text/token_embedding", "table"] == {
        "name": "text/token_embedding",
        "origin": "table",
        "format": "nvfp4",
        "shape": [256, 64],
        "bytes": 256 * 36 + 8,
        "divisors": 2,
    }
    assert rows["text/output_head", "a"]["format"] == "q4_g64_fp16"
    assert rows["text/output_head", "b"]["shape"] == [128, 64]
    assert ("(auxiliary) divisor", "divisor") in rows
    assert report["formats"]["fp8_e4m3fn_row_bf16"] == 128 * 66


def test_notes_name_the_proposal_head_and_the_auxiliaries(artifact, capsys):
    notes = inspected(artifact, capsys)["notes"]
    assert "a proposal head is stored: 4 rows with token ids" in notes
    assert "auxiliary activation_input_divisor stands in 1 Uses" in notes


def test_the_table_shows_divisors_and_shares_of_a_parent(artifact, capsys):
    guarded(inspect.COMMAND.run, [str(artifact)])
    printed = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["text/token_embedding", "nvfp4/2"] for line in printed)
    assert any("a proposal head is stored" in line for line in printed)


def test_a_format_without_its_plugin_is_a_refusal_and_still_shown(artifact, capsys, monkeypatch):
    fewer = compose({"gguf"}, modules=())
    fewer.model_families.add("toy", TOY, origin="test")
    monkeypatch.setattr(options, "compose", lambda argv: fewer)
    report = inspected(artifact, capsys)
    missing = {note for note in report["notes"] if "is not installed" in note}
    assert "format nvfp4 is not installed" in missing
    assert any('format "nvfp4" with layout' in refusal for refusal in report["refusals"])
    assert [row["bytes"] for row in report["tensors"] if row["origin"] == "table"] == [256 * 36 + 8]


def test_a_damaged_block_object_is_a_refusal(artifact, capsys):
    data = artifact.read_bytes()
    artifact.write_bytes(
        data.replace(b'"shape":[128,64],"format":"q4_g64_fp16"', b'"shape":[64,128],"format":"q4_g64_fp16"')
    )
    refusals = inspected(artifact, capsys)["refusals"]
    assert refusals and "needs shape" not in refusals[0] and "a:" in refusals[0]
