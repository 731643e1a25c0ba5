"""``ninfer bench`` on random weights at small named sizes: what is measured, what is refused, what has no row."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import structlog
import tiny_sizes

from ninfer_core import options
from ninfer_core.api import OptionError
from ninfer_core.cli.bench.command import _told
from ninfer_core.cli.bench.plan import plan, sized
from ninfer_core.cli.bench.rounds import Sequences
from ninfer_core.cli.main import main
from ninfer_core.cli.rows import Row
from ninfer_core.plugins import Plugins
from ninfer_core.testing import compose

QUICK = ("--device", "cpu", "--rounds", "2", "--repeats", "1", "--decode-tokens", "12")


def with_sizes(*more) -> Plugins:
    return compose(tiny_sizes.NEEDED, modules=[tiny_sizes.plugin("tiny_sizes"), *more])


@pytest.fixture
def bench(monkeypatch, capsys):
    """Run the command in this process: status, rows, stderr. The process's logging is put back."""
    root = logging.getLogger()
    before = root.handlers, root.level
    plugins = with_sizes()
    monkeypatch.setattr(options, "compose", lambda argv: plugins)
    monkeypatch.setattr("ninfer_core.cli.bench.report.COPIED", {"cpu": 1 << 16})

    def run(*argv: str) -> tuple[int, list[Row], str]:
        status = main(("bench", *argv))
        out, err = capsys.readouterr()
        return status, [msgspec.json.decode(one, type=Row) for one in out.splitlines()], err

    yield run
    structlog.reset_defaults()
    root.handlers, root.level = before


@pytest.mark.parametrize("geometry", ["tiny", "tiny-moe"])
def test_a_geometry_has_rows_of_a_copy_of_rounds_and_of_requests(bench, geometry):
    sizes = ("--rows", "1,2", "--contexts", "70", "--widths", "1,3", "--prompt-tokens", "20,30")
    status, rows, err = bench("--geometry", geometry, *sizes, *QUICK)
    assert status == 0, err
    assert [(one.op, one.shape, one.impl) for one in rows] == [
        ("copy", "0MiB", "torch"),
        *[("decode_round", f"R{count}-W{width}-C70", "eager") for count in (1, 2) for width in (1, 3)],
        *[(op, f"R{count}-P20-D12", "ninfer") for count in (1, 2) for op in ("prefill", "decode")],
        ("prefill", "R1-P30-D1", "ninfer"),
    ]
    assert all(one.note == f"{geometry}-bf16-kv-bf16" for one in rows[1:])
    assert all(one.command.startswith(f"ninfer bench --geometry {geometry} ") for one in rows)
    assert [one.tokens for one in rows if one.op == "decode_round"] == [1, 3, 2, 6]
    assert all(one.bytes_moved > 0 for one in rows if one.op != "prefill")
    assert all(one.flops > 0 for one in rows if one.op == "prefill")
    assert err.count("of a copy") == 6


def test_fewer_layers_are_named_and_move_fewer_bytes(bench):
    line = ("--geometry", "tiny", "--prompt-tokens", "none", "--contexts", "5", "--widths", "1", *QUICK)
    rounds = [bench(*line, *more)[1][-1] for more in ((), ("--layers", "1"))]
    assert [one.note for one in rounds] == ["tiny-bf16-kv-bf16", "tiny-L1-bf16-kv-bf16"]
    assert rounds[1].bytes_moved < rounds[0].bytes_moved


def test_stored_formats_are_named_and_move_fewer_bytes(bench):
    line = ("--geometry", "tiny", "--prompt-tokens", "none", "--contexts", "5", "--widths", "1", *QUICK)
    moved = {}
    for scheme in ("bf16", "fp8", "groupwise-int"):
        status, rows, err = bench(*line, "--weights", scheme)
        assert status == 0, err
        assert rows[-1].note == f"tiny-{scheme}-kv-bf16"
        moved[scheme] = rows[-1].bytes_moved
    assert max(moved, key=moved.get) == "bf16"
    assert len(set(moved.values())) == 3


def test_rows_go_to_the_end_of_a_file_in_place_of_stdout(bench, tmp_path):
    file = tmp_path / "rows" / "gpu.jsonl"
    for _ in range(2):
        status, rows, _ = bench("--geometry", "tiny", "--prompt-tokens", "9", "--out", str(file), *QUICK)
        assert (status, rows) == (0, [])
    kept = [msgspec.json.decode(one, type=Row) for one in file.read_bytes().splitlines()]
    assert [one.op for one in kept] == ["prefill", "decode"] * 2
    line = "ninfer bench --geometry tiny --prompt-tokens 9 --decode-tokens 12 --rounds 2 --repeats 1 --device cpu"
    assert {tuple(sorted(one.command.split())) for one in kept} == {tuple(sorted(line.split()))}


def test_a_file_that_cannot_take_rows_is_refused_before_the_model_is_loaded(bench, tmp_path, monkeypatch):
    def loaded(*_):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("ninfer_core.cli.bench.subject.load_subject", loaded)
    artifact = tmp_path / "m.ninfer"
    artifact.write_bytes(b"NINFER\0\0")
    for path, words in ((tmp_path, "is a folder"), (artifact, "its last line is no row")):
        status, rows, err = bench("--geometry", "tiny", "--prompt-tokens", "9", "--out", str(path), *QUICK)
        assert (status, rows, err.count("\n")) == (1, [], 1)
        assert f"--out '{path}'" in err
        assert words in err
    assert artifact.read_bytes() == b"NINFER\0\0"


def test_rows_do_not_say_where_files_lie(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages }}")
    paths = ("--device-profile-path", "/home/me/p.json", "--chat-template", str(template), f"--out={tmp_path}/x.jsonl")
    status, _, err = bench("--geometry", "tiny", "--prompt-tokens", "9", *paths, *QUICK)
    assert status == 0, err
    told = {msgspec.json.decode(one, type=Row).command for one in (tmp_path / "x.jsonl").read_bytes().splitlines()}
    assert len(told) == 1
    assert "--device-profile-path p.json" in told.pop()
    given = ["--chat-template", "sub/t.jinja", "--out", "x", "--seed", "3", "--eager", "--chat-template=--a/t.jinja"]
    assert _told([], given, {"--chat-template"}) == (
        "ninfer bench --chat-template t.jinja --seed 3 --eager --chat-template=t.jinja"
    )
    assert _told([str(template)], ["--plugins", str(template)], set()) == "ninfer bench own.jinja --plugins own.jinja"


def test_help_names_the_geometries_of_the_plugins(bench, capsys):
    assert main(("bench", "--help")) == 0
    assert "made on the device (27b, 35b-a3b, 4b, 9b," in " ".join(capsys.readouterr().out.split())


def test_rows_that_are_left_out_are_told(bench):
    line = ("--geometry", "tiny", "--prompt-tokens", "20,30", "--rows", "8", "--decode-rounds-per-prefill", "64")
    status, rows, err = bench(*line, *QUICK[:-1], "2")
    assert status == 0, err
    assert [one.op for one in rows] == ["prefill", "prefill"]
    missing = [one for one in err.splitlines() if one.startswith("no ")]
    assert missing == [
        "no decode row for R8-P20-D2: the first request ended before the last began; use a larger --decode-tokens",
        "no decode_host row for R8-P20-D2: 0 rounds of all its rows after the first 3 of a run, fewer than 16; use a "
        "larger --decode-tokens or --repeats",
    ]


def test_many_tokens_give_rows_of_the_hosts_time(bench):
    _, rows, _ = bench("--geometry", "tiny", "--layers", "1", "--prompt-tokens", "5", *QUICK[:-1], "40")
    host = {one.op: one for one in rows}
    assert {"decode_host", "decode_device_wait"} <= set(host)
    assert 0 < host["decode_host"].median_ms < host["decode"].median_ms
    assert "program_submit" in host["decode_host"].note


def test_rounds_whose_recorded_tokens_differ_have_no_row_and_the_status_says_so(bench, monkeypatch):
    """Without a GPU nothing is recorded: what stands in for a replay runs step by step, and lies about two rows."""
    tells_the_truth = Sequences.round
    replayed = False

    def impls(self, shape):
        return ("graph", "eager")

    def running(self, impl):
        nonlocal replayed
        replayed = impl == "graph"
        return steps(self, impl)

    def lies(self, rows):
        tokens = tells_the_truth(self, rows)
        return [token + 1 for token in tokens] if replayed and rows == 2 else tokens

    steps = Sequences.running
    monkeypatch.setattr(Sequences, "impls", impls)
    monkeypatch.setattr(Sequences, "running", running)
    monkeypatch.setattr(Sequences, "round", lies)
    line = ("--geometry", "tiny", "--prompt-tokens", "none", "--contexts", "5", "--rows", "1,2", "--widths", "2")
    status, rows, err = bench(*line, "--eager", *QUICK)
    assert status == 1
    assert [(one.shape, one.impl) for one in rows[1:]] == [("R1-W2-C5", "graph"), ("R1-W2-C5", "eager")]
    assert "2 rows of 2 columns at 5 tokens: recorded and single steps draw different tokens" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--geometry", "tinny"], ["--geometry 'tinny' is not installed", "did you mean 'tiny'", "tiny-moe", "27b"]),
        (["--geometry", "tiny", "--layers", "9"], ["3 layers", "--layers 9", "1 to 3"]),
        (["--geometry", "27b", "--layers", "65"], ["27b has 64 layers", "--layers 65"]),
        (["--geometry", "tiny", "demo"], ["--geometry tiny", "'demo'", "leave one of them out"]),
        (["--layers", "2"], ["--layers has no effect without --geometry"]),
        (["--weights", "fp8"], ["--weights has no effect without --geometry"]),
        (["--geometry", "tiny", "--weights", "q4"], ["--weights 'q4'", "groupwise-int"]),
        (["--geometry", "tiny", "--contexts", "0"], ["--contexts '0'", "whole numbers from 1", "or none"]),
        (["--geometry", "tiny", "--widths", "none"], ["--widths 'none'", "whole numbers from 1 to 64"]),
        (
            ["--geometry", "tiny", "--contexts", "300", "--rounds", "2", "--max-context", "320"],
            ["--max-context 320 is too short", "needs --max-context 356"],
        ),
        (["--geometry", "tiny", "--prompt-tokens", "none"], ["nothing to measure", "--contexts", "takes 512 tokens"]),
        (["--geometry", "tiny", "--prompt-tokens", "4000"], ["4064 tokens", "takes 512", "lower --prompt-tokens"]),
    ],
    ids=lambda value: "_".join(value) if value and value[0].startswith("--") else "",
)
def test_what_cannot_be_measured_is_one_line(bench, line, words):
    status, rows, err = bench(*line, "--device", "cpu")
    assert (status, rows) == (1, [])
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_a_geometry_that_two_families_offer_is_a_conflict_that_names_both(bench, monkeypatch):
    other = replace(tiny_sizes.FAMILY, name="other_sizes", architectures=("OtherForCausalLM",))
    plugins = with_sizes(tiny_sizes.plugin("other_sizes", [other]))
    monkeypatch.setattr(options, "compose", lambda argv: plugins)
    status, _, err = bench("--geometry", "tiny", "--device", "cpu")
    assert status == 1
    assert "'tiny' is offered twice" in err
    assert "tiny_sizes" in err
    assert "other_sizes" in err


def parsed(*argv: str):
    from ninfer_core.cli.bench.plan import OPTIONS

    return options.parse(argv, compose({"kv_bf16"}), "bench", own=OPTIONS)[1]


def test_a_gpu_is_asked_for_more():
    cpu, gpu = (plan(parsed(), on_gpu=on_gpu, longest=1 << 17) for on_gpu in (False, True))
    assert (cpu.rows, cpu.prompts, cpu.contexts) == ((1,), (512,), ())
    assert (gpu.rows, gpu.prompts, gpu.contexts) == ((1, 8), (512, 2048, 8192), (1024, 8192))
    asked = plan(parsed("--rows", "2,2,1", "--contexts", "none"), on_gpu=True, longest=1 << 17)
    assert (asked.rows, asked.contexts) == ((2, 1), ())


def test_what_nobody_asked_for_fits_a_short_model():
    assert plan(parsed(), on_gpu=True, longest=8192).prompts == (512, 2048)
    assert plan(parsed(), on_gpu=True, longest=8192).contexts == (1024,)
    assert plan(parsed(), on_gpu=True, longest=8193).prompts == (512, 2048, 8192)
    with pytest.raises(OptionError, match="nothing to measure"):
        plan(parsed(), on_gpu=True, longest=100)
    with pytest.raises(OptionError, match="8193 tokens, and this model takes 8192"):
        plan(parsed("--prompt-tokens", "512,8192"), on_gpu=True, longest=8192)


def test_the_engine_is_made_as_large_as_the_plan():
    values = parsed("--rows", "1,4", "--contexts", "100", "--widths", "1,8", "--rounds", "10", "--prompt-tokens", "9")
    wanted = plan(values, on_gpu=False, longest=512)
    made = sized(values, wanted)
    assert made["max_context"] == 100 + wanted.room
    assert made["kv_capacity"] >= 4 * made["max_context"]
    assert made["max_concurrency"] == 4
    assert made.words == values.words, "rows tell the command as it was given"


def test_no_part_of_the_core_imports_another_engine():
    root = Path(options.__file__).parent
    assert not [path for path in root.rglob("*.py") if "import transformers" in path.read_text(encoding="utf-8")]
