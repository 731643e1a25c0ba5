"""``bench/compare_transformers.py``: it times the geometry's model, its steps are a continuation, no row is lost."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
import transformers

from ninfer_core.cli.rows import Row, append, row
from ninfer_llama import LLAMA
from ninfer_qwen35 import QWEN35

PATH = Path(__file__).parents[2] / "bench" / "compare_transformers.py"
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 48,
}
GDN = {
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
CPU = torch.device("cpu")


def small(family, geometry: str) -> dict:
    """A geometry at a size that is quick to make."""
    found = {**family.geometries[geometry](4), **SMALL, **(GDN if family is QWEN35 else {})}
    if geometry == "35b-a3b":
        del found["intermediate_size"]
        found |= EXPERTS
    return found


CASES = [(LLAMA, "llama-8b"), (QWEN35, "27b"), (QWEN35, "4b"), (QWEN35, "35b-a3b")]


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare_transformers", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("family", "geometry"), CASES, ids=[geometry for _, geometry in CASES])
@torch.inference_mode()
def test_the_model_has_the_parameters_of_the_geometry(compare, family, geometry):
    config = small(family, geometry)
    inventory = dict(family.inventory(config))
    if config["tie_word_embeddings"]:
        del inventory["text/output_head"]
    model = compare.build(config, CPU)
    assert sum(one.numel() for one in model.parameters()) == sum(map(math.prod, inventory.values()))


@torch.inference_mode()
def test_a_step_goes_on_where_the_cache_ends(compare):
    model = compare.build(small(LLAMA, "llama-8b"), CPU)
    batch = compare.Batch(model, 2, 9)
    said = [batch.last]
    for _ in range(3):
        batch.step()
        said.append(batch.last)
    whole = torch.cat([batch.prompt, *said], dim=1)
    expected = model(whole[:, :-1]).logits[:, 8:].argmax(-1)
    assert torch.equal(torch.cat(said, dim=1), expected)
    assert len(compare.decode_ms(model, 2, 5, 4)) == 4


def test_rows_are_told_beside_those_of_the_same_shape(compare, capsys):
    ours = [row("prefill", "R1-P64-D64", "ninfer", [2.0]), row("decode_round", "R1-W1-C70", "graph", [1.0])]
    theirs = [row("decode_round", "R1-W1-C70", "transformers", [5.0]), row("prefill", "R1-P9", "transformers", [5.0])]
    theirs.append(row("prefill", "R1-P64", "transformers", [5.0]))
    compare.report(ours, theirs)
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in told] == [["decode_round", "R1-W1-C70"], ["prefill", "R1-P64"]]
    assert "5.00 times" in told[0]
    assert "2.50 times" in told[1]


QUICK = ("llama-8b", "--device", "cpu", "--prompt-tokens", "9", "--contexts", "7", "--rounds", "2", "--repeats", "1")


@pytest.fixture
def ninfer(compare, monkeypatch):
    """In place of ``ninfer bench``: the command lines it got; it adds ``rows`` to the file and ends with ``status``."""
    seen = SimpleNamespace(lines=[], status=0, rows=[row("prefill", "R1-P9-D64", "ninfer", [2.0])])

    def run(line, check):
        seen.lines.append(line)
        append(Path(line[-1].removeprefix("--out=")), seen.rows)
        return SimpleNamespace(returncode=seen.status)

    monkeypatch.setattr(compare, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(
        compare, "known", lambda plugins: {"llama-8b": (LLAMA, lambda layers: small(LLAMA, "llama-8b"))}
    )
    return seen


def rows_of(path: Path) -> list[Row]:
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(("layers", "label"), [((), "llama-8b-fp32"), (("--layers", "4"), "llama-8b-L4-fp32")])
def test_a_row_of_transformers_says_how_it_was_made(compare, ninfer, tmp_path, capsys, layers, label):
    out = tmp_path / "rows.jsonl"
    append(out, [row("prefill", "R1-P9", "ninfer", [1.0])])  # of another day
    assert compare.main([*QUICK, *layers, "--out", str(out)]) == 0
    assert [(one.op, one.impl) for one in rows_of(out)] == [
        ("prefill", "ninfer"),
        ("prefill", "ninfer"),
        ("prefill", "transformers"),
        ("decode_round", "transformers"),
    ]
    for one in rows_of(out)[2:]:
        assert one.command == " ".join(["python bench/compare_transformers.py", *QUICK, *layers])
        assert one.versions["transformers"] == transformers.__version__
        assert one.note == label
        assert "threads" in one.device
    assert capsys.readouterr().out.startswith("prefill       R1-P9          ninfer     2.000 ms")


@pytest.mark.parametrize(("ended", "status"), [(1, 1), (130, 130), (-9, 137)])
def test_where_ninfer_fails_its_status_is_the_scripts_and_its_rows_stay(
    compare, ninfer, tmp_path, capsys, ended, status
):
    ninfer.status, out = ended, tmp_path / "rows.jsonl"
    assert compare.main([*QUICK, "--layers", "0", "--out", str(out)]) == status
    assert rows_of(out) == ninfer.rows
    assert ninfer.lines[0][-3:-1] == ["--layers", "0"], "ninfer says what is wrong with it"
    assert capsys.readouterr() == ("", "")


def test_a_row_of_transformers_stays_when_the_next_is_interrupted(compare, ninfer, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "decode_ms", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare.main([*QUICK, "--out", str(tmp_path / "rows.jsonl")])
    assert [one.impl for one in rows_of(tmp_path / "rows.jsonl")] == ["ninfer", "transformers"]


@pytest.mark.parametrize("flag", ["--prompt-tokens", "--contexts", "--rows"])
@pytest.mark.parametrize("value", ["none", "0", "x"])
def test_a_list_that_cannot_be_read_is_told_with_what_is_accepted(compare, capsys, flag, value):
    with pytest.raises(SystemExit):
        compare.main(["27b", flag, value])
    assert f"{flag}: {value!r} is not accepted; it takes whole numbers from 1 to" in capsys.readouterr().err


def test_help_names_the_geometries_and_says_what_every_option_means(compare, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in ("27b", "35b-a3b", "smollm2-135m"))
    options = said[said.index("options:") :].splitlines()[1:]
    assert all(len(line.split("  ")) > 2 for line in options if line.startswith("  -")), said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--layers", "99"], "30 layers; --layers 99 is not among 1 to 30"),
        (["--out", "/"], "--out '/' is a folder"),
    ],
)
def test_what_is_refused_is_one_line(tmp_path, more, words):
    line = [sys.executable, str(PATH), "smollm2-135m", "--device", "cpu", "--contexts", "7"]
    line += ["--out", str(tmp_path / "rows.jsonl"), *more]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert words in done.stderr


def test_ctrl_c_ends_quietly_and_the_rows_of_ninfer_stay(tmp_path):
    out = tmp_path / "rows.jsonl"
    sizes = ("--layers", "1", "--device", "cpu", "--contexts", "7", "--prompt-tokens", "8", "--rounds", "8000")
    line = [sys.executable, str(PATH), "smollm2-135m", *sizes, "--out", str(out)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True) as script:
        while script.poll() is None and not (out.exists() and out.stat().st_size):
            time.sleep(0.05)
        os.killpg(script.pid, signal.SIGINT)
        err = script.communicate(timeout=30)[1]
    assert script.returncode == 130
    assert "Traceback" not in err
    assert [one.op for one in rows_of(out)] == ["copy"]
