"""The Qwen3.5 family against transformers on tiny random checkpoints in fp32 (``spec/family-qwen35.md`` §11)."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM

from ninfer_core.api import ArtifactError
from ninfer_core.kv.state import StatePool
from ninfer_core.testing.rig import Rig, make_step

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `qwen35_oracle`

import qwen35_oracle as oracle
from qwen35_oracle import DENSE, MOE, load, logits, opened, prompt

TOLERANCE = 5e-4
MTP_TOLERANCE = 1e-4
LENGTHS = (1, 5, 63, 64, 65, 130)
KINDS = {"dense": DENSE, "moe": MOE}
ROUTES = pytest.mark.parametrize("reference", [True, False], ids=["reference", "routes"])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from a second thread, and lose much where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model and the folder it was saved to."""
    directory = tmp_path_factory.mktemp(request.param)
    model = oracle.build(KINDS[request.param])
    oracle.save(model, directory)
    # as loaded from there: the MTP oracle looks for its tensors beside the model's
    loaded = type(model).from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    return loaded, directory


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(got.float(), expected.float(), rtol=0, atol=tolerance)


@ROUTES
def test_logits_equal_transformers_at_every_length(case, reference):
    model, directory = case
    rig = load(directory, reference=reference, rows=len(LENGTHS))
    for row, length in enumerate(LENGTHS):
        expected = logits(model, prompt(length))
        assert expected.std() > 0.5, "a flat model would pass whatever we compute"
        close(rig.feed({row: prompt(length)})[row], expected)
    rig.check()


# the last two: a chunk that ends on a page and chunk boundary, and one token in the middle
CUTS = {
    "token-by-token": range(1, 130),
    "prefill 65 then decode": range(65, 130),
    "50-1-79": (50, 51),
    "64-64-2": (64, 128),
    "1-63-66": (1, 64),
}


@ROUTES
@pytest.mark.parametrize("cuts", CUTS)
def test_a_prompt_in_pieces_equals_transformers_in_one_pass(case, reference, cuts):
    model, directory = case
    ids = prompt(130)
    rig, edges = load(directory, reference=reference), [0, *CUTS[cuts], 130]
    pieces = [rig.feed({0: ids[a:b]})[0] for a, b in itertools.pairwise(edges)]
    close(torch.cat(pieces), logits(model, ids))


@ROUTES
def test_rounds_that_keep_some_of_what_they_verify_equal_one_pass(case, reference):
    model, directory = case
    ids = prompt(100)
    expected = logits(model, ids)
    rig, at = load(directory, reference=reference), 60
    rig.feed({0: ids[:at]})
    for width, kept in ((4, 4), (5, 1), (1, 1), (8, 3), (3, 0), (16, 16), (6, 5)):
        wrong = [(token + 1) % 300 for token in ids[at + kept : at + width]]
        got = rig.feed({0: ids[at : at + kept] + wrong}, provisional=True)[0]
        close(got[:kept], expected[at : at + kept])
        rig.fold({0: kept})
        at += kept
    close(rig.feed({0: ids[at:]})[0], expected[at:])


@ROUTES
def test_a_batch_of_unequal_lengths_equals_each_row_alone(case, reference):
    model, directory = case
    rig = load(directory, reference=reference)
    prompts = [prompt(n, seed) for n, seed in ((130, 1), (1, 2), (64, 3), (7, 4))]
    together = rig.feed(dict(enumerate(prompts)))
    for row, ids in enumerate(prompts):
        close(together[row], logits(model, ids))
    more = [prompt(n, 10 + n) for n in (1, 3, 2, 1)]
    verified = rig.feed(dict(enumerate(more)), provisional=True)
    rig.fold({0: 1, 1: 2, 2: 0, 3: 1})
    decoded = rig.feed({row: [5] for row in (2, 0, 3)}, provisional=True)
    for row, (ids, fed, kept) in enumerate(zip(prompts, more, (1, 2, 0, 1), strict=True)):
        close(verified[row], logits(model, ids + fed)[len(ids) :])
        if row in decoded:
            close(decoded[row], logits(model, [*ids, *fed[:kept], 5])[-1:])


def test_the_delta_state_after_a_prompt_is_transformers_transposed(case):
    model, directory = case
    ids = prompt(70)
    rig = load(directory)
    rig.feed({0: ids})
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=True)
    image = rig.image(0)
    cache = out.past_key_values if "past_key_values" in out else out.cache
    for layer, kind in enumerate(model.config.text_config.layer_types):
        if kind == "linear_attention":
            close(image[f"delta/{layer}"], cache.layers[layer].recurrent_states[0][0].transpose(-1, -2), 1e-4)
            close(image[f"convolution/{layer}"], cache.layers[layer].conv_states[0][0].t()[-3:], 1e-4)


def test_the_hidden_row_of_the_frontier_is_the_final_normed_one(case):
    model, directory = case
    ids = prompt(40)
    hidden = oracle.final_hidden(model, ids)
    rig = load(directory)
    rig.feed({0: ids[:30]}, wanted="none")
    close(rig.image(0)["hidden"], hidden[29])
    rig.feed({0: ids[30:35]}, provisional=True)
    rig.fold({0: 2})
    close(rig.image(0)["hidden"], hidden[31])
    rig.feed({0: ids[32:]}, wanted="last")
    close(rig.image(0)["hidden"], hidden[-1])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_tied_head_is_the_embedding(tmp_path, tied):
    model = oracle.build({**DENSE, "num_hidden_layers": 4, "tie_word_embeddings": tied})
    oracle.save(model, tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    close(load(tmp_path).feed({0: prompt(20)})[0], logits(model, prompt(20)))


def fused(tensors: dict[str, torch.Tensor], layers: set[int]) -> dict[str, torch.Tensor]:
    """The experts of some layers in the other form: stacked into two tensors."""
    out = dict(tensors)
    stems = {name.split("experts.")[0] for name in tensors if ".mlp.experts.0." in name and "mtp" not in name}
    for stem in stems:
        if int(stem.split("layers.")[1].split(".")[0]) in layers:
            parts = {
                p: [out.pop(f"{stem}experts.{e}.{p}_proj.weight") for e in range(8)] for p in ("gate", "up", "down")
            }
            pairs = zip(parts["gate"], parts["up"], strict=True)
            out[f"{stem}experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
            out[f"{stem}experts.down_proj"] = torch.stack(parts["down"])
    return out


def split(tensors: dict[str, torch.Tensor], stem: str) -> dict[str, torch.Tensor]:
    out = dict(tensors)
    gate_up, down = out.pop(f"{stem}gate_up_proj"), out.pop(f"{stem}down_proj")
    for e in range(len(down)):
        gate, up = gate_up[e].chunk(2)
        parts = {"gate": gate, "up": up, "down": down[e]}
        out |= {f"{stem}{e}.{part}_proj.weight": value.clone() for part, value in parts.items()}
    return out


@pytest.mark.parametrize("layers", [set(), {1, 3}, {0, 1, 2, 3}], ids=["split", "mixed", "fused"])
def test_experts_read_the_same_fused_and_split(tmp_path, layers):
    model = oracle.build(MOE)
    oracle.save(model, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "model.language_model.layers.0.mlp.experts.0.gate_proj.weight" in tensors
    tensors = fused(tensors, layers)
    if layers:
        tensors = split(tensors, "mtp.layers.0.mlp.experts.")
    save_file(tensors, file, metadata={"format": "pt"})
    family, checkpoint, weights, read, run = opened(tmp_path)
    rig = Rig(read, family.kv_geometry(checkpoint.config), family.state_layout(checkpoint.config, run))
    close(rig.feed({0: prompt(30)})[0], logits(model, prompt(30)))
    assert checkpoint.has("mtp/layers/0/moe/experts/7/down")
    read.open_mtp(weights)


@pytest.mark.parametrize("kind", KINDS)
def test_text_only_checkpoints_have_another_prefix_and_the_same_logits(tmp_path, kind):
    whole, text = tmp_path / "whole", tmp_path / "text"
    model = oracle.build({**KINDS[kind], "num_hidden_layers": 4})
    oracle.save(model, whole, mtp=False)
    text_class = Qwen3_5MoeForCausalLM if kind == "moe" else Qwen3_5ForCausalLM
    alone = text_class(model.config.text_config)
    alone.model.load_state_dict(model.model.language_model.state_dict())
    alone.lm_head.load_state_dict(model.lm_head.state_dict())
    alone.save_pretrained(text)
    assert "model.layers.0.linear_attn.A_log" in load_file(text / "model.safetensors")
    assert json.loads((text / "config.json").read_text())["model_type"].endswith("_text")
    ids = prompt(20)
    assert torch.equal(load(text).feed({0: ids})[0], load(whole).feed({0: ids})[0])


def test_half_precision_checkpoints_are_read_exactly(tmp_path):
    model = oracle.build({**DENSE, "num_hidden_layers": 4}).to(torch.bfloat16)
    oracle.save(model, tmp_path, mtp=False)
    close(load(tmp_path).feed({0: prompt(20)})[0], logits(model.float(), prompt(20)))


# rotary embedding beyond the trained window


def yarn_model(directory: Path, native: int = 64, **scaling: Any) -> Any:
    rope = {
        **oracle.BASE["rope_parameters"],
        "rope_type": "yarn",
        "original_max_position_embeddings": native,
        **scaling,
    }
    model = oracle.build(
        {**DENSE, "num_hidden_layers": 4, "rope_parameters": rope, "max_position_embeddings": 4 * native}
    )
    oracle.save(model, directory, mtp=False)
    return model


@ROUTES
def test_yarn_of_the_checkpoint_equals_transformers(tmp_path, reference):
    model = yarn_model(tmp_path, factor=4.0)
    close(load(tmp_path, reference=reference).feed({0: prompt(200)})[0], logits(model, prompt(200)))


@pytest.mark.parametrize(
    "options",
    [{"rope_yarn_factor": 4.0}, {"rope_yarn": True}],
    ids=["fixed factor", "factor of the context"],
)
def test_yarn_by_option_equals_transformers(tmp_path, options):
    model = yarn_model(tmp_path, factor=4.0)
    expected = logits(model, prompt(200))

    def plain(config: dict[str, Any]) -> None:
        config["text_config"]["rope_parameters"] = oracle.BASE["rope_parameters"]
        config["text_config"]["max_position_embeddings"] = 64

    oracle.edit_config(tmp_path, plain)
    far = load(tmp_path).feed({0: prompt(200)})[0]
    assert (far - expected).abs().max() > 0.01, "plain rotary embedding would pass"
    close(load(tmp_path, options=options, max_context=256).feed({0: prompt(200)})[0], expected)


def test_linear_interpolation_leaves_the_window_and_slows_what_follows(tmp_path):
    model = oracle.build({**DENSE, "num_hidden_layers": 4})
    oracle.save(model, tmp_path, mtp=False)
    ids, start, factor = prompt(100), 40, 2.5
    at = torch.arange(100, dtype=torch.float32)
    squeezed = torch.where(at > start, start + (at - start) / factor, at)
    with torch.no_grad():
        positions = squeezed.expand(3, 1, -1)
        expected = model(input_ids=torch.tensor([ids]), position_ids=positions, use_cache=False).logits[0]
    options = {"rope_scaling_factor": factor, "rope_scaling_original_context": start}
    got = load(tmp_path, options=options).feed({0: ids})[0]
    close(got, expected)
    close(got[: start + 1], logits(model, ids)[: start + 1])


# the multi-token prediction block


@ROUTES
def test_the_mtp_block_equals_transformers_over_a_prompt_and_chained(case, reference):
    model, directory = case
    ids = prompt(80)
    expected = oracle.mtp(model, ids, steps=3)
    _, checkpoint, weights, read, _ = opened(directory, reference=reference)
    block = read.open_mtp(weights)
    from ninfer_core.testing.cache import SimpleCache
    from ninfer_qwen35.family import mtp_geometry

    cache, pages = SimpleCache(mtp_geometry(checkpoint.config), 8), [5, 2, 7]
    hidden = oracle.final_hidden(model, ids[:-1])
    outputs: list[torch.Tensor] = []
    for start, end in ((0, 30), (30, 79)):
        step = make_step([ids[start:end]], frontiers=[start], pages=[pages])
        outputs.append(block.forward(step, torch.tensor(ids[start + 1 : end + 1]), hidden[start:end], cache))
    close(torch.cat(outputs), expected[0][0], MTP_TOLERANCE)
    close(block.logits(torch.cat(outputs)), expected[0][1], MTP_TOLERANCE)
    last, drafted = outputs[-1][-1:], int(block.logits(outputs[-1][-1:]).argmax())
    for i, (wanted, scores) in enumerate(expected[1:]):
        step = make_step([[drafted]], frontiers=[79 + i], pages=[pages])
        last = block.forward(step, torch.tensor([drafted]), last, cache)
        close(last, wanted, MTP_TOLERANCE)
        close(block.logits(last), scores, MTP_TOLERANCE)
        drafted = int(block.logits(last).argmax())


def test_an_mtp_block_that_is_not_there_is_missed_only_when_it_is_wanted(tmp_path):
    model = oracle.build({**DENSE, "num_hidden_layers": 4})
    oracle.save(model, tmp_path, mtp=False)
    _, checkpoint, weights, read, _ = opened(tmp_path)
    assert dict(checkpoint.companions) == {}
    with pytest.raises(ArtifactError, match="mtp/input_projection"):
        read.open_mtp(weights)


# state images


def test_every_frontier_of_a_prompt_can_be_saved_and_resumed(case):
    model, directory = case
    family, checkpoint, _, read, run = opened(directory)
    layout = family.state_layout(checkpoint.config, run)
    rig = Rig(read, family.kv_geometry(checkpoint.config), layout)
    pool = StatePool(layout, 4, torch.device("cpu"))
    rig.state, rig.slots = pool.parts, [0, 1, 2, 3]
    ids = prompt(73)
    expected, saved = logits(model, ids), []
    for token in ids[:70]:
        rig.feed({0: [token]}, wanted="none")
        saved.append(pool.to_host(0))
    rig.pages[1] = rig.pages[0]  # the same keys and values, another state
    for frontier in range(1, 71):
        pool.from_host(1, saved[frontier - 1])
        assert torch.equal(pool.to_host(1), saved[frontier - 1])
        rig.frontiers[1] = frontier
        got = rig.feed({1: ids[frontier : frontier + 3]}, provisional=True)[1]
        close(got, expected[frontier : frontier + 3])
        pool.copy(1, 2)
        assert torch.equal(pool.to_host(2), saved[frontier - 1])


@ROUTES
def test_an_fp16_state_costs_a_little_accuracy_and_half_the_bytes(case, reference):
    model, directory = case
    ids = prompt(100)
    rig = load(directory, reference=reference, options={"gdn_state_fp16": True})
    assert {part.dtype for name, part in rig.state.items() if name.startswith("delta/")} == {torch.float16}
    got = torch.cat([rig.feed({0: ids[:60]})[0], *(rig.feed({0: [token]})[0] for token in ids[60:])])
    expected = logits(model, ids)
    assert 1e-6 < (got - expected).abs().max() < 0.1
