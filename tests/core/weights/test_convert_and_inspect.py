"""``ninfer convert`` and ``ninfer inspect`` as a user runs them, on the toy family."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ninfer_core import options
from ninfer_core.api import ArtifactError, ImportPlan, Source
from ninfer_core.cli import convert, inspect
from ninfer_core.cli.main import guarded
from ninfer_core.plugins import Plugins
from ninfer_core.weights.checkpoint import open_checkpoint
from ninfer_core.weights.container import Container
from ninfer_core.weights.formats import FORMATS

DECODERS = {form.name: form.decode for form in FORMATS}


@pytest.fixture(autouse=True)
def toy_plugins(plugins: Plugins, monkeypatch) -> Plugins:
    monkeypatch.setattr(options, "compose", lambda argv: plugins)
    return plugins


def run(command, *words: object) -> int:
    return guarded(command.COMMAND.run, [str(word) for word in words])


def values(path: Path, plugins: Plugins) -> dict[str, tuple[str, list]]:
    family, checkpoint = open_checkpoint(str(path), plugins)
    found = {}
    for name, shape in family.inventory(checkpoint.config).items():
        (stored,) = checkpoint.parameter(name, tuple(shape))
        found[name] = (stored.format, DECODERS[stored.format](stored).tolist())
    return found


def test_a_folder_becomes_an_artifact_with_the_same_weights(toy_folder, toy_plugins, tmp_path, capsys):
    folder, out = toy_folder(), tmp_path / "out.ninfer"
    assert run(convert, folder, out) == 0
    printed = capsys.readouterr()
    assert printed.out == f"wrote {out}: {out.stat().st_size / 1024:.1f} KiB, 2 tensors (bf16)\n"
    assert printed.err.splitlines()[-1] == "converting: 100% of 80 bytes"
    expected = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).bfloat16().float().tolist()
    found = values(out, toy_plugins)
    assert found["text/token_embedding"] == ("bf16", expected)
    assert {name: form for name, (form, _) in found.items()} == dict.fromkeys(found, "bf16")
    with Container(str(out)) as container:
        assert container.directory.metadata == {"name": "toy-model"}
        assert container.directory.provenance["sources"] == {"text": {"path": "toy-model"}}
        for role in ("tokenizer.json", "tokenizer_config.json"):
            assert container.resource("text", role) == (folder / role).read_bytes()
        assert container.resource("text", "chat_template.jinja") == b"{{ messages }}"


def test_tied_parameters_are_stored_once(toy_folder, tmp_path):
    out = tmp_path / "out.ninfer"
    assert run(convert, toy_folder(), out) == 0
    with Container(str(out)) as container:
        bindings = container.directory.bindings
        assert bindings["text/token_embedding"] == bindings["text/output_head"]
        assert sorted(container.directory.objects) == [
            "resource/text/chat_template.jinja",
            "resource/text/tokenizer.json",
            "resource/text/tokenizer_config.json",
            "weight/000000",
            "weight/000001",
        ]


@pytest.mark.parametrize(
    ("dtype", "weights", "matrix", "vector"),
    [
        ("float16", "keep", "fp32", "fp32"),
        ("float32", "bf16", "bf16", "fp32"),
        ("bfloat16", "fp32", "fp32", "bf16"),
    ],
)
def test_weights_choose_how_matrices_are_stored(toy_folder, toy_plugins, tmp_path, dtype, weights, matrix, vector):
    folder, out = toy_folder(dtype=dtype), tmp_path / "out.ninfer"
    before = values(folder, toy_plugins)
    assert run(convert, folder, out, "--weights", weights) == 0
    found = values(out, toy_plugins)
    assert (found["text/token_embedding"][0], found["text/final_norm"][0]) == (matrix, vector)
    assert found["text/final_norm"][1] == before["text/final_norm"][1]
    exact = torch.tensor(before["text/token_embedding"][1])
    if matrix == "bf16":
        exact = exact.bfloat16().float()
    assert found["text/token_embedding"][1] == exact.tolist()


def test_an_artifact_can_be_renamed_recoded_and_split(toy_folder, toy_plugins, tmp_path):
    folder = toy_folder(vocab_size=70_000)
    table = torch.arange(560_000.0).view(70_000, 8) % 251
    save_file({"embed.weight": table, "norm.weight": torch.ones(8)}, folder / "model.safetensors")
    first, second = tmp_path / "a.ninfer", tmp_path / "b.ninfer"
    assert run(convert, folder, first) == 0
    assert run(convert, first, second, "--name", "renamed", "--weights", "bf16", "--max-file-mib", "1") == 0
    assert open_checkpoint(str(second), toy_plugins)[1].name == "renamed"
    assert values(second, toy_plugins)["text/token_embedding"] == ("bf16", table.tolist())
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.ninfer",
        "b.ninfer",
        "b.ninfer.part-0001",
        "toy-model",
    ]
    assert max(p.stat().st_size for p in tmp_path.glob("b.ninfer*")) <= 1 << 20


def test_an_existing_target_needs_force(toy_folder, tmp_path, capsys):
    folder, out = toy_folder(), tmp_path / "out.ninfer"
    out.write_text("mine")
    assert run(convert, folder, out) == 1
    assert capsys.readouterr().err == f"ninfer: refusing to overwrite {out} (--force replaces it)\n"
    assert out.read_text() == "mine"
    assert run(convert, folder, out, "--force") == 0
    assert out.read_bytes()[:8] == b"NINFER\0\3"


def test_an_artifact_can_replace_itself(toy_folder, toy_plugins, tmp_path):
    out = tmp_path / "out.ninfer"
    assert run(convert, toy_folder(), out) == 0
    assert run(convert, out, out, "--force", "--name", "again") == 0
    assert open_checkpoint(str(out), toy_plugins)[1].name == "again"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "convert needs SOURCE"),
        (["a"], "convert needs OUT.ninfer"),
        (["a", "b", "c"], "convert got 'c'"),
        (
            ["a", "b", "--weights", "q4"],
            "--weights 'q4' is not accepted; it takes one of keep, bf16, fp32, fp8, groupwise-int, nvfp4",
        ),
        (["a", "b", "--max-file-mib", "0"], "--max-file-mib '0' is not accepted"),
        (["a", "b", "--weight", "bf16"], "did you mean --weights?"),
        (["a", "/no/such/folder/b"], "there is no folder /no/such/folder"),
        (["/no/such/model", "b"], "/no/such/model: no such file or folder"),
    ],
)
def test_bad_usage_is_one_line_and_status_one(capsys, monkeypatch, tmp_path, words, text: str):
    monkeypatch.chdir(tmp_path)
    assert run(convert, *words) == 1
    printed = capsys.readouterr()
    assert text in printed.err and printed.err.count("\n") == 1 and printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_are_refused_and_leave_nothing(toy_folder, tmp_path, capsys):
    folder = toy_folder()
    save_file({"embed.weight": torch.full((4, 8), 3.4e38), "norm.weight": torch.ones(8)}, folder / "model.safetensors")
    assert run(convert, folder, tmp_path / "out.ninfer", "--weights", "bf16") == 1
    assert "embed.weight: cannot be stored as bf16: a value is not finite in bf16" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["toy-model"]


def test_a_tokenizer_with_holes_is_refused(toy_folder, tmp_path, capsys):
    folder = toy_folder()
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 9}}}')
    assert run(convert, folder, tmp_path / "out.ninfer") == 1
    assert "tokenizer ids must be contiguous and below vocab_size" in capsys.readouterr().err


def test_a_model_whose_config_names_no_architecture_has_no_artifact_form(toy_folder, toy_plugins, tmp_path, capsys):
    (toy,) = toy_plugins.model_families

    def adapt(source: Source) -> ImportPlan:
        return replace(toy.adapt(source), config={"vocab_size": 4, "width": 8})

    toy_plugins.model_families._items["toy"] = ("test", replace(toy, adapt=adapt))
    assert run(convert, toy_folder(), tmp_path / "out.ninfer") == 1
    assert "models of the toy family have no artifact form" in capsys.readouterr().err


def test_what_the_family_leaves_out_is_said(toy_folder, tmp_path, capsys):
    assert run(convert, toy_folder(novelty=1), tmp_path / "out.ninfer") == 0
    assert "warning: unknown key novelty\n" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(toy_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run(convert, toy_folder(), tmp_path / "out.ninfer") == 0
    assert "converting: " not in capsys.readouterr().err


def test_convert_runs_off_the_main_thread(toy_folder, tmp_path):
    status: list[int] = []
    folder = toy_folder()
    thread = threading.Thread(target=lambda: status.append(run(convert, folder, tmp_path / "out.ninfer")))
    thread.start()
    thread.join(60)
    assert status == [0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_convert_leaves_no_file(toy_folder, tmp_path, number):
    folder = toy_folder()
    conftest = Path(__file__).with_name("conftest.py")
    code = f"""
import importlib.util, os, sys, time, types
from ninfer_core import options, plugins
from ninfer_core.cli import convert
from ninfer_core.cli.main import guarded
from ninfer_core.weights import staged
spec = importlib.util.spec_from_file_location("toy_conftest", {str(conftest)!r})
conftest = importlib.util.module_from_spec(spec); spec.loader.exec_module(conftest)
found = plugins.load(only=[])
found.model_families.add("toy", conftest.TOY, origin="test")
options.compose = lambda argv: found
if {number == signal.SIGINT}:
    staged.os.O_TMPFILE = 0
real = os.write
def write(fd, data):
    print("writing", flush=True); time.sleep(30)
staged.os.write = write
sys.exit(guarded(convert.COMMAND.run, [{str(folder)!r}, "out.ninfer"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == b"writing\n"
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert os.listdir(tmp_path) == ["toy-model"]


def inspected(path: object, capsys) -> dict:
    """The report; the status says whether a start would refuse the model."""
    status = run(inspect, path, "--json")
    report = json.loads(capsys.readouterr().out)
    assert status == bool(report["refusals"])
    return report


def test_inspect_shows_a_folder_and_its_artifact_alike(toy_folder, tmp_path, capsys):
    folder, out = toy_folder(), tmp_path / "out.ninfer"
    assert run(convert, folder, out) == 0
    capsys.readouterr()
    before, after = inspected(folder, capsys), inspected(out, capsys)
    assert (before["kind"], after["kind"]) == ("huggingface", "ninfer")
    for key in ("architecture", "family", "name", "config", "parameters", "weight_bytes", "formats", "resources"):
        assert before[key] == after[key], key
    assert (after["parameters"], after["weight_bytes"], after["formats"]) == (40, 80, {"bf16": 80})
    assert after["tensors"][0] == {
        "name": "text/token_embedding",
        "origin": "weight/000000",
        "format": "bf16",
        "shape": [4, 8],
        "bytes": 64,
    }
    assert re.fullmatch("[0-9a-f]{32}", after["artifact_id"])
    assert after["refusals"] == before["refusals"] == []


def test_inspect_prints_tables(toy_folder, tmp_path, capsys):
    out = tmp_path / "out.ninfer"
    assert run(convert, toy_folder(), out) == 0
    capsys.readouterr()
    assert run(inspect, out) == 0
    printed = capsys.readouterr().out
    for line in (
        "  architecture  ToyForCausalLM",
        "  parameters    40",
        "  weights       80 bytes",
        "  text/token_embedding  bf16  [4, 8]  64  weight/000000",
        "  bf16  80 bytes",
        "  chat_template.jinja    14 bytes",
    ):
        assert line in printed.splitlines()
    assert "refused" not in printed


def test_inspect_says_what_a_start_would_refuse(toy_folder, toy_plugins, tmp_path, capsys):
    out = tmp_path / "out.ninfer"
    assert run(convert, toy_folder(), out) == 0
    data = out.read_bytes()
    damaged = data.replace(b'"format":"bf16"', b'"format":"exl3"', 1).replace(
        b'"text/final_norm"', b'"text/final_nora"'
    )
    out.write_bytes(damaged)
    capsys.readouterr()
    report = inspected(out, capsys)
    assert report["refusals"] == [
        f'{out}: weight/000000: format "exl3" with layout "contiguous_le_v1" is not supported',
        f'{out}: missing parameter "text/final_norm"',
    ]
    assert report["notes"] == ["format exl3 is not installed"]
    assert report["formats"] == {"exl3": 64, "bf16": 16}


def test_inspect_says_that_the_prompt_format_would_be_refused(toy_folder, toy_plugins, capsys):
    def prompt(checkpoint):
        raise ArtifactError(f"{checkpoint.path}: the checkpoint has no tokenizer.json")

    def broken(checkpoint):
        raise KeyError("vocab")

    folder, family = toy_folder(), toy_plugins.model_families["toy"]
    for read, said in (
        (prompt, f"{folder}: the checkpoint has no tokenizer.json"),
        (broken, "plugin 'test' failed to read the prompt format of the family 'toy': KeyError: 'vocab'"),
    ):
        toy_plugins.model_families._items["toy"] = ("test", replace(family, prompt=read))
        assert inspected(folder, capsys)["refusals"] == [said]


def test_inspect_says_which_parts_are_missing_or_foreign(tmp_path, capsys):
    from ninfer_core.weights.layout_plan import NewArtifact, NewResource
    from ninfer_core.weights.writer import write_artifact

    config = {"architectures": ["OtherForCausalLM"]}
    new = NewArtifact(
        components={"text": {"config": config}},
        resources=[NewResource(id="r", data=bytes(20_000))],
        tensors=[],
        bindings={},
    )
    files = write_artifact(tmp_path / "m.ninfer", new, max_file_bytes=12_288)
    files[1].unlink()
    files[2].write_bytes(b"x" * 100)
    report = inspected(files[0], capsys)
    assert report["architecture"] == "OtherForCausalLM" and report["family"] is None
    assert [row["name"] for row in report["files"]][1:] == ["m.ninfer.part-0001", "m.ninfer.part-0002"]
    assert report["refusals"] == [
        f'{files[0]}: architecture "OtherForCausalLM" is not supported (installed: ToyForCausalLM)',
        f'{files[0]}: part "m.ninfer.part-0001" (index 1) is missing; it holds the range',
        f"{files[2]}: not a part of a NInfer artifact",
    ]


def test_inspect_shows_a_source_of_an_unknown_family(toy_folder, capsys):
    folder = toy_folder(architectures=["OtherForCausalLM"], dtype="float16")
    report = inspected(folder, capsys)
    assert report["architecture"] == "OtherForCausalLM" and report["family"] is None
    assert [(t["name"], t["format"], t["bytes"]) for t in report["tensors"]] == [
        ("embed.weight", "fp16", 64),
        ("norm.weight", "fp16", 16),
    ]
    assert "not supported" in report["refusals"][0]
    assert run(inspect, folder) == 1
    assert "A start with this model is refused" in capsys.readouterr().out


def test_inspect_names_formats_other_readers_may_not_know(toy_folder, toy_plugins, tmp_path, capsys):
    out = tmp_path / "out.ninfer"
    assert run(convert, toy_folder(), out) == 0
    capsys.readouterr()
    ours = replace(toy_plugins.weight_formats["bf16"], name="bf17", published=False)
    toy_plugins.weight_formats.add("bf17", ours, origin="test")
    out.write_bytes(out.read_bytes().replace(b'"format":"bf16"', b'"format":"bf17"'))
    notes = inspected(out, capsys)["notes"]
    assert notes == ["format bf17 is an extension: other readers of .ninfer files may not know it"]


def test_inspect_of_a_corrupt_file_is_one_line_and_status_one(tmp_path, capsys):
    path = tmp_path / "m.ninfer"
    path.write_bytes(b"NINFER\0\3" + b"\xff" * 40)
    assert run(inspect, path) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"ninfer: {path}: directory length {2**64 - 1} is impossible for a file of 48 bytes\n"


def test_inspect_loads_no_torch(toy_folder, tmp_path):
    folder = toy_folder()
    code = (
        "import sys\n"
        "from ninfer_core.plugins import load\n"
        "from ninfer_core.weights.inspection import inspect_model\n"
        f"report = inspect_model({str(folder)!r}, load(only=[]))\n"
        "assert report.tensors and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
