"""The least a step has to move and to multiply."""

from __future__ import annotations

import pytest
import tiny_sizes

from ninfer_core.cli.bench.work import HEAD, TABLE, Work, multiplied, work_of

FAMILIES = {"dense": tiny_sizes.FAMILY, "moe": tiny_sizes.EXPERTS}
CONFIGS = {"dense": tiny_sizes.dense(None), "moe": tiny_sizes.moe(None)}


def two_bytes(name: str, shape: tuple[int, ...]) -> int:
    return 2 * shape[0] * shape[1]


def work(kind: str, **changed) -> Work:
    return work_of(FAMILIES[kind], CONFIGS[kind], two_bytes, **{"state_bytes": 100, "page_bytes": 640, **changed})


def matrices(kind: str) -> dict[str, tuple[int, ...]]:
    return multiplied(FAMILIES[kind], CONFIGS[kind])


def total(names) -> int:
    return sum(two_bytes(name, shape) for name, shape in names.items())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_token_table_is_not_multiplied_and_the_head_is(kind):
    names = matrices(kind)
    assert TABLE not in names
    assert names[HEAD] == (97, 32)
    assert not [name for name in names if "norm" in name or "convolution" in name]


def test_a_dense_round_reads_every_matrix_once_whatever_its_size():
    assert work("dense").round_bytes(1, 1, 0) == total(matrices("dense")) + 200
    assert work("dense").round_bytes(3, 4, 10) == total(matrices("dense")) + 3 * (200 + 10 * 10)


def test_a_round_reads_as_many_experts_as_its_tokens_choose_by_chance():
    names = matrices("moe")
    experts = total({name: shape for name, shape in names.items() if "/experts/" in name})
    rest = total(names) - experts
    bare = work("moe", state_bytes=0)
    assert bare.round_bytes(1, 1, 0) == rest + experts / 4
    assert bare.round_bytes(2, 1, 0) == rest + experts * 7 / 16
    assert bare.round_bytes(8, 8, 0) == pytest.approx(rest + experts, rel=1e-6)


def test_a_prompt_multiplies_every_token_and_the_head_once():
    layers = sum(shape[0] * shape[1] for name, shape in matrices("dense").items() if name != HEAD)
    assert work("dense").prompt_flops(7) == 2 * (7 * layers + 97 * 32)
