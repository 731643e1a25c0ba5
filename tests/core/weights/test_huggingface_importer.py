"""Folders as ``save_pretrained`` writes them, and every way one can be incomplete."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ninfer_core.api import ArtifactError
from ninfer_core.weights.formats import FORMATS, SOURCE_DECODERS
from ninfer_core.weights.huggingface import IMPORTER

DECODERS = SOURCE_DECODERS | {form.name: form.decode for form in FORMATS}


def refusal(folder: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        IMPORTER.open(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def shard(folder: Path, files: dict[str, dict[str, torch.Tensor]]) -> None:
    """Replace the single file by shards and their index."""
    (folder / "model.safetensors").unlink()
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


SHARDS = {
    "model-00001-of-00002.safetensors": {"embed.weight": torch.ones(4, 8)},
    "model-00002-of-00002.safetensors": {"norm.weight": torch.ones(8)},
}


def test_it_claims_folders_with_a_config_and_nothing_else(toy_folder, tmp_path: Path):
    folder = toy_folder()
    assert IMPORTER.claims(str(folder))
    for path in (tmp_path, folder / "config.json", tmp_path / "none", "a\0b", ""):
        assert not IMPORTER.claims(str(path))


@pytest.mark.parametrize(
    ("dtype", "form"), [("bfloat16", "bf16"), ("float32", "fp32"), ("float16", "fp16"), ("float64", "fp64")]
)
def test_tensors_are_read_in_their_own_format(toy_folder, dtype: str, form: str):
    source = IMPORTER.open(str(toy_folder(dtype=dtype)))
    assert (source.kind, source.architecture, source.name) == ("huggingface", "ToyForCausalLM", "toy-model")
    assert {name: (t.format, t.shape) for name, t in source.tensors.items()} == {
        "embed.weight": (form, (4, 8)),
        "norm.weight": (form, (8,)),
    }
    draw = torch.Generator().manual_seed(0)
    expected = torch.randn(4, 8, generator=draw).to(getattr(torch, dtype)).float()
    stored = source.tensors["embed.weight"].read()
    assert (stored.format, stored.shape) == (form, (4, 8))
    assert torch.equal(DECODERS[form](stored), expected)


def test_scalars_and_empty_tensors_are_read(toy_folder):
    folder = toy_folder()
    save_file({"s": torch.tensor(2.5), "e": torch.zeros(0, 3)}, folder / "model.safetensors")
    source = IMPORTER.open(str(folder))
    assert DECODERS["fp32"](source.tensors["s"].read()).tolist() == 2.5
    assert source.tensors["e"].read().data.numel() == 0


def test_shards_are_read_through_the_index(toy_folder):
    folder = toy_folder()
    shard(folder, SHARDS)
    save_file({"stray": torch.ones(1)}, folder / "consolidated.safetensors")
    source = IMPORTER.open(str(folder))
    assert sorted(source.tensors) == ["embed.weight", "norm.weight"]
    assert DECODERS["fp32"](source.tensors["norm.weight"].read()).tolist() == [1.0] * 8


def test_missing_shards_are_named(toy_folder):
    folder = toy_folder()
    shard(folder, SHARDS)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refusal(folder) == (
        f"{folder}: missing shards model-00002-of-00002.safetensors, which model.safetensors.index.json names"
    )


def test_tensors_missing_from_their_shard_are_named(toy_folder):
    folder = toy_folder()
    shard(folder, SHARDS)
    save_file({"other": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")
    assert refusal(folder) == (
        f"{folder}: tensors norm.weight are not in the shards that model.safetensors.index.json names"
    )


@pytest.mark.parametrize("name", ["../up.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_cannot_name_files_elsewhere(toy_folder, name: str):
    folder = toy_folder()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    assert refusal(folder).endswith(f'"{name}" is not the name of a file beside it')


@pytest.mark.parametrize("index", ["{}", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "{"])
def test_a_damaged_index_is_named(toy_folder, index: str):
    folder = toy_folder()
    (folder / "model.safetensors.index.json").write_text(index)
    assert refusal(folder).startswith(f"{folder}/model.safetensors.index.json: ")


def test_one_tensor_in_two_files_is_refused(toy_folder):
    folder = toy_folder()
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"norm.weight": torch.ones(8)}, folder / "b.safetensors")
    assert refusal(folder) == f'{folder}/b.safetensors: tensor "norm.weight" is in another file too'


def test_pickled_weights_are_refused_and_never_opened(toy_folder):
    folder = toy_folder()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert refusal(folder) == (
        f"{folder}: has only pickled weights (pytorch_model.bin), which are never loaded because they can run code; "
        "save the model as safetensors"
    )


def test_a_folder_without_weights_is_refused(toy_folder):
    folder = toy_folder()
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == f"{folder}: has no *.safetensors file"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\0\0\0\0\0\0\0",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\xff" * 8 + b"{}",
        b"\x02\0\0\0\0\0\0\0{}" + b"tail",
        b'\x3e\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}        ' + bytes(3),
        b'\x3e\0\0\0\0\0\0\0{"a":{"dtype":"XX","shape":[1],"data_offsets":[0,4]}}          ' + bytes(4),
    ],
    ids=["empty", "cut header", "array", "hostile length", "tail", "short data", "unknown dtype"],
)
def test_a_corrupt_file_is_one_line(toy_folder, data: bytes):
    folder = toy_folder()
    (folder / "model.safetensors").write_bytes(data)
    assert refusal(folder).startswith(f"{folder}/model.safetensors: damaged or not a safetensors file (")


def test_a_truncated_file_is_one_line(toy_folder):
    folder = toy_folder()
    data = (folder / "model.safetensors").read_bytes()
    for length in range(0, len(data), 7):
        (folder / "model.safetensors").write_bytes(data[:length])
        assert refusal(folder).startswith(f"{folder}/model.safetensors: damaged or not a safetensors file (")


def test_a_pipe_in_place_of_weights_does_not_hang(toy_folder):
    folder = toy_folder()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert refusal(folder) == f"{folder}/model.safetensors: not a regular file"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "config.json: not valid JSON ("),
        ("[]", "config.json: not a JSON object"),
        ("{}", 'config.json: "architectures" must be a list with a name'),
        ('{"architectures": "A"}', 'config.json: "architectures" must be a list with a name'),
        ('{"architectures": []}', 'config.json: "architectures" must be a list with a name'),
    ],
)
def test_a_damaged_config_is_one_line(toy_folder, config: str, text: str):
    folder = toy_folder()
    (folder / "config.json").write_text(config)
    assert refusal(folder).startswith(f"{folder}/{text}")


def test_resources_are_the_files_as_they_are(toy_folder):
    folder = toy_folder()
    (folder / "generation_config.json").write_bytes(b'{"eos_token_id": [1, 2]}\n')
    resources = IMPORTER.open(str(folder)).resources
    assert resources["generation_config.json"] == b'{"eos_token_id": [1, 2]}\n'
    assert resources["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    assert resources["chat_template.jinja"] == b"{{ messages }}"


def test_a_template_file_wins_over_the_one_in_the_tokenizer_config(toy_folder):
    folder = toy_folder()
    (folder / "chat_template.jinja").write_text("from the file")
    assert IMPORTER.open(str(folder)).resources["chat_template.jinja"] == b"from the file"


@pytest.mark.parametrize(
    ("value", "template"),
    [
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], b"d"),
        ([{"name": "tool_use", "template": "t"}], None),
        (None, None),
        ("", None),
    ],
)
def test_of_several_templates_the_default_is_taken(toy_folder, value, template: bytes | None):
    folder = toy_folder()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    assert IMPORTER.open(str(folder)).resources.get("chat_template.jinja") == template


def test_a_resource_that_is_no_json_object_is_refused(toy_folder):
    folder = toy_folder()
    (folder / "tokenizer.json").write_text("[]")
    assert refusal(folder) == f'{folder}: resource "tokenizer.json" is not a JSON object'


def test_a_download_cache_gives_the_model_its_name(toy_folder, tmp_path: Path):
    folder = toy_folder()
    snapshot = tmp_path / "models--org--Tiny-1B" / "snapshots" / "0123abcd"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    assert IMPORTER.open(str(snapshot)).name == "Tiny-1B"
