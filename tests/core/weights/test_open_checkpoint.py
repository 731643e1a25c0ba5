"""One door to every model: who opens a path, and what a start is told when nobody can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer_core.api import ArtifactError, Importer, Source
from ninfer_core.plugins import Plugins
from ninfer_core.weights.checkpoint import ArtifactCheckpoint, ImportedCheckpoint, checkpoint_facts, open_checkpoint
from ninfer_core.weights.conversion import new_artifact
from ninfer_core.weights.resources import check_tokens
from ninfer_core.weights.writer import write_artifact


@pytest.fixture
def artifact(toy_folder: Callable[..., Path], plugins: Plugins, tmp_path: Path) -> Path:
    family, checkpoint = open_checkpoint(str(toy_folder()), plugins)
    assert isinstance(checkpoint, ImportedCheckpoint)
    return write_artifact(tmp_path / "toy.ninfer", new_artifact(family, checkpoint, plugins.weight_formats))[0]


def refusal(path: Path | str, plugins: Plugins) -> str:
    with pytest.raises(ArtifactError) as caught:
        open_checkpoint(str(path), plugins)
    return str(caught.value)


def edited(path: Path, edit: Callable[[dict], object]) -> Path:
    """The artifact with its directory changed, in the same number of bytes."""
    data = path.read_bytes()
    length = int.from_bytes(data[8:16], "little")
    root = json.loads(data[32 : 32 + length])
    edit(root)
    text = json.dumps(root, separators=(",", ":")).encode()
    assert len(text) <= length
    path.write_bytes(data[:32] + text.ljust(length) + data[32 + length :])
    return path


def test_a_folder_opens_through_its_importer_and_family(toy_folder, plugins):
    family, checkpoint = open_checkpoint(str(toy_folder()), plugins)
    assert family.name == "toy"
    assert isinstance(checkpoint, ImportedCheckpoint)
    assert (checkpoint.name, checkpoint.architecture) == ("toy-model", "ToyForCausalLM")
    assert checkpoint_facts(checkpoint).parameters == 4 * 8 + 8


def test_an_artifact_opens_through_its_architecture(artifact, plugins):
    family, checkpoint = open_checkpoint(str(artifact), plugins)
    assert family.name == "toy"
    assert isinstance(checkpoint, ArtifactCheckpoint)
    assert (checkpoint.name, checkpoint.architecture) == ("toy-model", "ToyForCausalLM")


def test_an_artifact_needs_no_suffix(artifact, plugins):
    renamed = artifact.rename(artifact.with_name("weights"))
    assert open_checkpoint(str(renamed), plugins)[0].name == "toy"


def test_the_first_importer_that_claims_a_path_opens_it(tmp_path, plugins):
    opened = []

    def opens(path: str) -> Source:
        opened.append(path)
        raise ArtifactError(f"{path}: no")

    for name in ("first", "second"):
        importer = Importer(name=name, summary="", claims=lambda path: path.startswith("toy:"), open=opens)
        plugins.importers.add(name, importer, origin=name)
    assert refusal("toy:x", plugins) == "toy:x: no"
    assert opened == ["toy:x"]


def test_a_path_nobody_claims_says_why(tmp_path, plugins):
    known = "(a .ninfer artifact, or an importer's: huggingface)"
    (tmp_path / "notes.txt").write_text("hello")
    assert refusal(tmp_path / "none", plugins) == f"{tmp_path}/none: no such file or folder {known}"
    assert refusal(tmp_path, plugins) == f"{tmp_path}: not a model folder: it has no config.json {known}"
    assert refusal(tmp_path / "notes.txt", plugins) == (
        f"{tmp_path}/notes.txt: not a model file that is known here {known}"
    )


def test_a_broken_plugin_is_named_where_it_may_be_missed(tmp_path, plugins):
    record = plugins.records[-1]
    record.status, record.reason = "broken", "import failed: ImportError: no gguf"
    assert refusal(tmp_path / "m.gguf", plugins).endswith(
        "; plugin 'toy' did not load: import failed: ImportError: no gguf"
    )


def test_a_missing_format_names_the_plugin_that_may_have_it(artifact, plugins):
    artifact.write_bytes(artifact.read_bytes().replace(b'"format":"bf16"', b'"format":"gg16"'))
    text = f'{artifact}: weight/000000: format "gg16" with layout "contiguous_le_v1" is not supported'
    assert refusal(artifact, plugins) == text
    plugins.records[-1].status, plugins.records[-1].reason = "broken", "import failed: no gg"
    assert refusal(artifact, plugins) == f"{text}; plugin 'toy' did not load: import failed: no gg"


def test_an_unknown_architecture_lists_the_installed_ones(toy_folder, artifact, plugins):
    folder = toy_folder("other", architectures=["OtherForCausalLM"])
    text = 'architecture "OtherForCausalLM" is not supported (installed: ToyForCausalLM)'
    assert refusal(folder, plugins) == f"{folder}: {text}"
    path = edited(artifact, lambda d: d["components"]["text"]["config"].update(architectures=["OtherForCausalLM"]))
    assert refusal(path, plugins) == f"{path}: {text}"


def test_a_family_refusal_begins_with_the_file(artifact, plugins):
    path = edited(artifact, lambda d: d["components"]["text"]["config"].update(k=1))
    assert refusal(path, plugins) == f'{path}: text config: unknown member "k"'


def test_a_missing_parameter_is_found_before_loading(artifact, plugins):
    path = edited(artifact, lambda d: d["bindings"].pop("text/final_norm"))
    assert refusal(path, plugins) == f'{path}: missing parameter "text/final_norm"'


def test_extra_bindings_are_nobodys_business(artifact, plugins):
    path = edited(artifact, lambda d: d["bindings"].update(x={"object": "weight/000000"}))
    assert open_checkpoint(str(path), plugins)[1].has("x")


def test_a_refused_start_leaves_no_map_behind(artifact, plugins):
    path = edited(artifact, lambda d: d["bindings"].pop("text/final_norm"))
    refusal(path, plugins)
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_tokenizer_beyond_the_vocabulary_is_refused(artifact, plugins):
    artifact.write_bytes(artifact.read_bytes().replace(b'"c": 2', b'"c": 7'))
    assert refusal(artifact, plugins) == (
        f"{artifact}: tokenizer ids must be contiguous and below vocab_size (3 tokens, highest id 7, vocab_size 4)"
    )


TOKENIZERS = [
    ({"a": 0, "b": 1}, [{"id": 2, "content": "<s>"}], {"2": {"content": "<s>"}, "3": {"content": "</s>"}}, 4),
    ([["a", -1.0], ["b", -2.0]], [], {}, 2),
]


@pytest.mark.parametrize(("vocab", "added", "decoder", "count"), TOKENIZERS, ids=["dictionary", "pieces"])
def test_the_token_domain_is_the_union_of_the_vocabularies(vocab, added, decoder, count: int):
    resources = {
        "tokenizer.json": json.dumps({"model": {"vocab": vocab}, "added_tokens": added}).encode(),
        "tokenizer_config.json": json.dumps({"added_tokens_decoder": decoder}).encode(),
    }
    assert check_tokens(resources, count, "F") == count
    with pytest.raises(ArtifactError, match=r"^F: tokenizer ids must be contiguous and below vocab_size"):
        check_tokens(resources, count - 1, "F")


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        ({"model": {"vocab": {"a": 0, "b": 2}}}, "tokenizer ids must be contiguous and below vocab_size"),
        ({"model": {"vocab": {"a": 1}}}, "tokenizer ids must be contiguous and below vocab_size"),
        ({"model": {"vocab": {}}}, "tokenizer ids must be contiguous and below vocab_size"),
        ({"model": {"vocab": {"a": 0, "b": 0}}}, "vocabularies disagree about token 0"),
        (
            {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "a"}]},
            "vocabularies disagree about token 1",
        ),
        ({"model": {}}, 'resource "tokenizer.json" has no vocabulary'),
        ({"model": {"vocab": {"a": -1}}}, "vocabulary cannot be read"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]}, "vocabulary cannot be read"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": 3}, "vocabulary cannot be read"),
    ],
)
def test_a_token_domain_with_holes_or_quarrels_is_refused(tokenizer, text: str):
    with pytest.raises(ArtifactError) as caught:
        check_tokens({"tokenizer.json": json.dumps(tokenizer).encode()}, 100, "F")
    assert str(caught.value).startswith("F: ") and text in str(caught.value)
