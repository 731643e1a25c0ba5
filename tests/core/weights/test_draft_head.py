"""The short output head a conversion can add (``spec/artifact.md`` §6, §21 V19)."""

from __future__ import annotations

import json
import types
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ninfer_core import options
from ninfer_core.api import hookimpl
from ninfer_core.cli import convert
from ninfer_core.cli.main import guarded
from ninfer_core.testing import compose
from ninfer_core.weights.checkpoint import open_checkpoint
from ninfer_core.weights.draft_head import shortlist
from ninfer_core.weights.proposal import stated_head, token_ids

from .conftest import TOY

VOCAB, PUBLIC, WIDTH = 8, 6, 64
COUNTS = [5, 9, 9, 1, 0, 7, 99, 99]


def test_v19_the_shortlist_of_the_specification():
    assert shortlist([5, 9, 9, 1, 0], {4}, 3) == [1, 2, 4]


def test_more_forced_tokens_than_rows_leave_the_most_counted_ones():
    assert shortlist([5, 9, 9, 1, 0], {0, 3, 4}, 2) == [0, 3]


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    forced=st.sets(st.integers(0, 11)),
    rows=st.integers(1, 12),
)
def test_a_shortlist_holds_the_forced_and_then_the_most_counted(counts, forced, rows):
    rows = min(rows, len(counts))
    forced = {token for token in forced if token < len(counts)}
    found = shortlist(counts, forced, rows)
    assert len(found) == len(set(found)) == rows
    assert [counts[token] for token in found] == sorted((counts[token] for token in found), reverse=True)
    assert len(forced & set(found)) == min(rows, len(forced))
    free = set(found) - forced
    left = set(range(len(counts))) - set(found) - forced
    if free:
        assert all(counts[token] <= min(counts[other] for other in free) for token in left)


@pytest.fixture
def plugins(monkeypatch):
    module = types.ModuleType("toy")
    module.NINFER_API = 1  # type: ignore[attr-defined]
    uses = {"text/output_head": ("text/final_hidden",)}
    family = replace(TOY, companions={"mtp": lambda config: {}}, uses=lambda config: uses)

    @hookimpl
    def ninfer_model_families():
        return [family]

    module.ninfer_model_families = ninfer_model_families  # type: ignore[attr-defined]
    found = compose({"groupwise_int"}, modules=(("toy", module),))
    monkeypatch.setattr(options, "compose", lambda argv: found)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "hf"
    path.mkdir()
    config = {"architectures": ["ToyForCausalLM"], "vocab_size": VOCAB, "width": WIDTH}
    (path / "config.json").write_text(json.dumps(config))
    vocab = {"abcdef"[i]: i for i in range(PUBLIC - 1)}
    special = {"id": PUBLIC - 1, "content": "<end>", "special": True}
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": [special]}))
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(VOCAB, WIDTH, generator=generator).bfloat16()
    save_file({"embed.weight": table, "norm.weight": torch.ones(WIDTH).bfloat16()}, path / "model.safetensors")
    return path


@pytest.fixture
def ranking(tmp_path: Path) -> Path:
    path = tmp_path / "counts.bin"
    # a second table after the first is not read
    path.write_bytes(array("q", [*COUNTS, *range(VOCAB)]).tobytes())
    return path


def run(*words: object) -> int:
    return guarded(convert.COMMAND.run, [str(word) for word in words])


def opened(path: Path, plugins):
    _, checkpoint = open_checkpoint(str(path), plugins)
    return checkpoint


def test_the_head_holds_the_rows_of_its_tokens(folder, ranking, plugins, tmp_path):
    out = tmp_path / "out.ninfer"
    assert run(folder, out, "--draft-head-ranking", ranking, "--draft-head-rows", "4") == 0
    checkpoint = opened(out, plugins)
    assert (stated_head(checkpoint).rows, stated_head(checkpoint).hidden) == (4, WIDTH)
    ids = token_ids(checkpoint, PUBLIC)
    # the padding rows 6 and 7 of the table are no tokens; token 5 is special
    assert ids.tolist() == [1, 2, 5, 0]
    (head,) = checkpoint.parameter("proposal/head", (4, WIDTH))
    (table,) = checkpoint.parameter("text/output_head", (VOCAB, WIDTH))
    assert (head.format, table.format) == ("q4_g64_fp16", "bf16")
    formats = plugins.weight_formats
    rows = formats["bf16"].decode(table)[ids]
    assert torch.equal(head.data, formats["q4_g64_fp16"].quantize(rows).data)
    # one more conversion keeps it
    again = tmp_path / "again.ninfer"
    assert run(out, again) == 0
    assert torch.equal(opened(again, plugins).parameter("proposal/head", (4, WIDTH))[0].data, head.data)


def test_every_token_is_in_when_no_number_is_given_and_a_new_head_replaces_the_old(folder, ranking, plugins, tmp_path):
    first, second = tmp_path / "a.ninfer", tmp_path / "b.ninfer"
    assert run(folder, first, "--draft-head-ranking", ranking, "--draft-head-rows", "2", "--weights", "fp32") == 0
    assert run(first, second, "--draft-head-ranking", ranking) == 0
    assert sorted(token_ids(opened(second, plugins), PUBLIC).tolist()) == list(range(PUBLIC))


def test_a_head_in_blocks_is_gathered_as_it_is_encoded(folder, ranking, plugins, tmp_path):
    first, second = tmp_path / "a.ninfer", tmp_path / "b.ninfer"
    assert run(folder, first, "--weights", "groupwise-int") == 0
    assert run(first, second, "--draft-head-ranking", ranking, "--draft-head-rows", "3") == 0
    checkpoint = opened(second, plugins)
    (table,) = checkpoint.parameter("text/output_head", (VOCAB, WIDTH))
    (head,) = checkpoint.parameter("proposal/head", (3, WIDTH))
    expected = plugins.weight_formats["q8_g32_fp16"].take_rows(table, token_ids(checkpoint, PUBLIC).tolist())
    assert head.format == "q8_g32_fp16" and torch.equal(head.data, expected.data)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--draft-head-rows", "3"], "--draft-head-rows needs --draft-head-ranking"),
        (["--draft-head-ranking", "{ranking}", "--draft-head-rows", "7"], "of 7 rows; the tokenizer has 6 tokens"),
        (["--draft-head-ranking", "{folder}/none"], "none: no such file or directory"),
        (["--draft-head-ranking", "{folder}/config.json"], "bytes are not tables of 8 counts of 8 bytes"),
    ],
    ids=["rows alone", "more than there are", "no file", "another size"],
)
def test_a_ranking_that_does_not_fit_is_refused(folder, ranking, plugins, tmp_path, capsys, words, text: str):
    filled = [word.format(ranking=ranking, folder=folder) for word in words]
    assert run(folder, tmp_path / "out.ninfer", *filled) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out.ninfer").exists()


def test_a_model_without_a_tokenizer_gets_no_draft_head(folder, ranking, plugins, tmp_path, capsys):
    (folder / "tokenizer.json").unlink()
    assert run(folder, tmp_path / "out.ninfer", "--draft-head-ranking", ranking) == 1
    assert "a draft head needs the tokenizer" in capsys.readouterr().err
