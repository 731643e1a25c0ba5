"""Every ``--weights`` scheme, from a checkpoint saved by transformers to logits and served tokens: those of the model
that the artifact's bytes decode to.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ninfer_core.api.nn import Runtime
from ninfer_core.cli.main import main as ninfer
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.testing import Rig

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share their oracles

import qwen35_oracle as oracle
import serving_oracle as serving
from conversion_cases import CASES, FORMATS, SCHEMES, Case, decoded_folder, loaded, meant, opened

TOLERANCE = 2e-4  # of the largest logit
MARGIN = 10 * TOLERANCE  # a greedy token that leads by less could be another one by rounding alone
PROMPTS, NEW = 3, 12
ROUTES = pytest.mark.parametrize("route", ["reference", "fast"])
EXACT = ("--kv-dtype", "fp32", "--max-context", "256", "--max-concurrency", "4")


# the others differ in what their logits show already
SERVED = pytest.mark.parametrize(
    "source",
    [pytest.param(name, marks=() if name in ("llama", "qwen35", "qwen35-moe") else pytest.mark.slow) for name in CASES],
    indirect=True,
    scope="module",
)


@dataclass(frozen=True, kw_only=True)
class Source:
    case: Case
    model: Any  # in fp32
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Converted:
    """An artifact, and transformers' model of what is in it."""

    scheme: str
    source: Source
    path: Path
    report: str  # what ``ninfer convert`` printed
    model: Any

    @property
    def case(self) -> Case:
        return self.source.case


@pytest.fixture(scope="module", params=CASES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    case, folder = CASES[request.param], tmp_path_factory.mktemp("model")
    model = case.make()
    case.save(model, folder)
    serving.save_tokenizer(folder, oracle.CONTROL[: case.public - serving.BYTES])
    return Source(case=case, model=loaded(type(model), folder), folder=folder)


@pytest.fixture(scope="module", params=SCHEMES)
def artifact(
    request: pytest.FixtureRequest, source: Source, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Converted]:
    directory = tmp_path_factory.mktemp("artifact")
    path = directory / "model.ninfer"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert ninfer(["convert", str(source.folder), str(path), "--weights", request.param]) == 0
    decoded_folder(source.case, source.folder, path, directory / "decoded")
    yield Converted(
        scheme=request.param,
        source=source,
        path=path,
        report=out.getvalue(),
        model=loaded(type(source.model), directory / "decoded"),
    )


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def tokens(case: Case, count: int, seed: int = 4) -> list[int]:
    return torch.randint(0, case.public, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def built(path: Path, case: Case, *, reference: bool) -> tuple[Any, CheckpointWeights, Rig, Any]:
    """Our model of an artifact with a cache to run it on."""
    plugins, family, checkpoint = opened(path, case)
    runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=reference, max_context=512, options={})
    weights = CheckpointWeights(checkpoint, plugins.weight_formats, runtime)
    model = family.build(checkpoint, weights, runtime)
    layout = family.state_layout(checkpoint.config, runtime)
    return model, weights, Rig(model, family.kv_geometry(checkpoint.config), layout), checkpoint.config


@ROUTES
def test_an_artifact_answers_as_the_model_its_bytes_decode_to(artifact, route):
    ids = tokens(artifact.case, 70)
    expected = logits(artifact.model, ids)
    if artifact.scheme in ("keep", "fp32"):
        assert torch.equal(expected, logits(artifact.source.model, ids)), "nothing was to be lost"
    scale = expected.abs().max()
    assert scale > 1, "a flat model would pass whatever is computed"
    got = built(artifact.path, artifact.case, reference=route == "reference")[2]
    whole = got.feed({0: ids})[0]
    single = torch.cat([got.feed({1: [token]})[1] for token in ids[:9]])
    torch.testing.assert_close(whole, expected, rtol=0, atol=TOLERANCE * scale)
    torch.testing.assert_close(single, expected[:9], rtol=0, atol=TOLERANCE * scale)


@ROUTES
def test_the_mtp_block_of_an_artifact_is_the_one_its_bytes_decode_to(artifact, route):
    if not artifact.case.mtp:
        pytest.skip("the family has no MTP block")
    ids = tokens(artifact.case, 40)
    model, weights, _, config = built(artifact.path, artifact.case, reference=route == "reference")
    hidden = oracle.final_hidden(artifact.model, ids[:-1])
    got = oracle.run_mtp(model.open_mtp(weights), config, ids, hidden)
    for ours, theirs in zip(got, oracle.mtp(artifact.model, ids, steps=0)[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE * theirs.abs().max())


def test_the_formats_are_named_by_conversion_and_inspection(artifact, capsys):
    wanted = artifact.case.formats(artifact.scheme)
    assert set(artifact.report.splitlines()[0].rpartition("(")[2].rstrip(")").split(", ")) == wanted
    assert ninfer(["inspect", str(artifact.path)]) == 0
    printed = capsys.readouterr().out
    section = printed.partition("\nBytes per format\n")[2].partition("\n\n")[0]
    assert {line.split()[0] for line in section.splitlines()} == wanted
    assert ninfer(["inspect", str(artifact.path), "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert set(report["formats"]) == {row["format"] for row in report["tensors"]} == wanted
    assert report["refusals"] == []


@pytest.fixture(scope="module")
def conversation(artifact) -> list[tuple[list[int], tuple[int, ...]]]:
    """Prompts and what transformers answers, every token by a clear lead."""
    prompts = [tokens(artifact.case, 30, seed) for seed in range(3 * PROMPTS)]
    margin = MARGIN * float(logits(artifact.model, prompts[0]).abs().max())
    found = serving.clear_answers(artifact.model, prompts, NEW, artifact.case.public, margin)
    assert len(found) >= PROMPTS, "a model of near-ties says nothing"
    assert len({answer for _, answer in found}) >= PROMPTS, "one answer to everything says nothing"
    return found[:PROMPTS]


@SERVED
@ROUTES
def test_a_served_artifact_says_what_transformers_says(artifact, conversation, route):
    flags = ("--reference-ops", *EXACT) if route == "reference" else EXACT
    engine = serving.serve(artifact.case.plugins | FORMATS | {"kv_bf16"}, artifact.path, *flags)
    got = serving.answers(engine, [serving.job(prompt, NEW) for prompt, _ in conversation])
    assert [result.token_ids for result in got] == [answer for _, answer in conversation]


@SERVED
@pytest.mark.parametrize("scheme", ["keep", "groupwise-int", "nvfp4"])
def test_a_split_or_copied_artifact_is_the_same_model(source, tmp_path, scheme):
    whole, parts, copy = (tmp_path / f"{name}.ninfer" for name in ("whole", "parts", "copy"))
    assert ninfer(["convert", str(source.folder), str(whole), "--weights", scheme]) == 0
    limit = ("--max-file-mib", "1")
    assert ninfer(["convert", str(source.folder), str(parts), "--weights", scheme, *limit]) == 0
    assert ninfer(["convert", str(parts), str(copy)]) == 0
    expected = meant(whole, source.case)
    for path in (parts, copy):
        found = meant(path, source.case)
        assert set(found) == set(expected)
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), (path.stem, name)
    assert parts.stat().st_size <= 1 << 20
    assert bool(list(tmp_path.glob("parts.ninfer.part-*"))) == (whole.stat().st_size > 1 << 20)
