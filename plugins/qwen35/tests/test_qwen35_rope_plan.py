"""Which way positions are stretched, and the angles that follow (``spec/kv-dtypes.md`` §11)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

from test_qwen35_config import DENSE_27B, artifact, published

from ninfer_core.api import Refusal
from ninfer_core.api.nn import Runtime
from ninfer_qwen35.config import read
from ninfer_qwen35.parts import Rotary
from ninfer_qwen35.rope_plan import ROPE_OPTIONS, RopePlan, rope_plan

NATIVE = 512  # of the tiny config


@pytest.mark.parametrize(
    ("options", "max_context", "plan"),
    [
        ({}, 512, RopePlan(native_context=NATIVE)),
        ({}, 2048, RopePlan(native_context=NATIVE)),
        ({"rope_yarn": True}, 512, RopePlan(native_context=NATIVE)),
        ({"rope_yarn": True}, 1024, RopePlan(native_context=NATIVE, yarn_factor=2.0)),
        ({"rope_yarn_factor": 3.0}, 512, RopePlan(native_context=NATIVE, yarn_factor=3.0)),
        ({"rope_yarn": True, "rope_yarn_factor": 3.0}, 1024, RopePlan(native_context=NATIVE, yarn_factor=3.0)),
        ({"rope_scaling_factor": 2.0}, 512, RopePlan(native_context=NATIVE, linear_factor=2.0, linear_from=512)),
        (
            {"rope_scaling_factor": 2.0, "rope_scaling_original_context": 100},
            512,
            RopePlan(native_context=NATIVE, linear_factor=2.0, linear_from=100),
        ),
    ],
    ids=str,
)
def test_the_first_that_applies_decides(options, max_context, plan):
    assert rope_plan(read(artifact()), options, max_context) == plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope_scaling_factor": 2.0, "rope_yarn": True}, "--rope-scaling-factor 2 excludes --rope-yarn;"),
        ({"rope_scaling_factor": 2.0, "rope_yarn_factor": 4.0}, "--rope-scaling-factor 2 excludes --rope-yarn-factor;"),
        ({"rope_scaling_original_context": 9}, "no effect without --rope-scaling-factor"),
    ],
    ids=["yarn", "yarn factor", "threshold"],
)
def test_what_excludes_each_other_is_refused(options, message):
    with pytest.raises(Refusal, match=message):
        rope_plan(read(artifact()), options, 512)


def test_options_go_before_the_checkpoints_own_yarn():
    rope = {
        **artifact()["rope_parameters"],
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    c = read(artifact(rope_parameters=rope | {"mrope_interleaved": True}))
    assert rope_plan(c, {}, 128) == RopePlan(native_context=128, yarn_factor=4.0)
    assert rope_plan(c, {"rope_yarn_factor": 2.0}, 128).yarn_factor == 2.0
    assert rope_plan(c, {"rope_scaling_factor": 2.0}, 128) == RopePlan(
        native_context=128, linear_factor=2.0, linear_from=128
    )


@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [
        ("--rope-yarn-factor", ("1", "4", "2.5"), ("0.5", "4.1", "nan", "inf")),
        ("--rope-scaling-factor", ("1", "32"), ("0", "33", "nan")),
        ("--rope-scaling-original-context", ("1", "262144"), ("0", "-1", "1.5")),
    ],
)
def test_values_out_of_range_are_refused(flag, good, bad):
    parse = next(option.parse for option in ROPE_OPTIONS if option.flag == flag)
    assert parse is not None
    for value in good:
        parse(value)
    for value in bad:
        with pytest.raises(ValueError, match=r"a (whole )?number from"):
            parse(value)


def rotary(options: dict[str, Any]) -> Rotary:
    cpu = torch.device("cpu")
    runtime = Runtime(device=cpu, dtype=torch.float32, reference=True, max_context=262144, options=options)
    return Rotary(read(published(DENSE_27B)), runtime)


# spec/kv-dtypes.md §11: factor, attention factor, frequencies 14, 15, 20, 31
YARN = [
    (1.0, 1.0, (8.6596e-4, 5.2330e-4, 4.2170e-5, 1.6548e-7)),
    (1.5, 1.0405465, (8.65964e-4, 5.01495e-4, 3.16272e-5, 1.10321e-7)),
    (2.0, 1.0693147, (8.65964e-4, 4.90593e-4, 2.63560e-5, 8.27409e-8)),
    (4.0, 1.1386294, (8.65964e-4, 4.74240e-4, 1.84492e-5, 4.13704e-8)),
]


@pytest.mark.parametrize(("factor", "attention", "at"), YARN, ids=[str(row[0]) for row in YARN])
def test_yarn_gives_the_published_frequencies(factor, attention, at):
    found = rotary({"rope_yarn_factor": factor})
    assert found.attention_factor == pytest.approx(attention, rel=1e-6)
    torch.testing.assert_close(found.frequencies[[14, 15, 20, 31]], torch.tensor(at), rtol=3e-5, atol=0)
    cos, sin = found(torch.tensor([0, 7]))
    assert cos[0, 0, 0] == pytest.approx(attention)
    assert cos.shape == (2, 1, 64) and sin.shape == (2, 1, 32)


def test_text_turns_alike_on_every_axis_and_media_by_their_own():
    turn = rotary({})
    text, media = turn(torch.tensor([5])), turn(torch.tensor([[5], [9], [2]]))
    same = turn(torch.tensor([[5], [5], [5]]))
    assert all(torch.equal(a, b) for a, b in zip(text, same, strict=True))
    by_axis = [turn(torch.tensor([p]))[1][0, 0] for p in (5, 9, 2)]
    for r in range(32):
        assert media[1][0, 0, r] == by_axis[0 if r >= 30 and r % 3 == 0 else r % 3][r]


def test_linear_interpolation_moves_only_what_lies_past_the_threshold():
    turn, plain = rotary({"rope_scaling_factor": 4.0, "rope_scaling_original_context": 100}), rotary({})
    ours = turn(torch.tensor([0, 99, 100, 104, 140]))[1]
    torch.testing.assert_close(ours, plain(torch.tensor([0, 99, 100, 101, 110]))[1], rtol=0, atol=1e-6)
