"""The plain cache against dense attention, and the scripted model on the storages that are installed."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.api import KVGeometry
from ninfer_core.plugins import load
from ninfer_core.testing import Rig, SimpleCache, compose, make_step
from ninfer_core.testing.cache import hadamard

GEOMETRY = KVGeometry(heads=(2,), head_dims=(64,))


def test_attention_over_scattered_pages_equals_dense_causal_attention() -> None:
    g = torch.Generator().manual_seed(0)
    k, v, q = (torch.randn(150, heads, 64, generator=g) for heads in (2, 2, 6))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True, scale=0.1, enable_gqa=True
    ).transpose(0, 1)
    cache, at = SimpleCache(GEOMETRY, 12), 0
    pages = [[7, 2, 9], [4, 1, 3]]
    for count in (70, 1, 9, 70):
        step = make_step([[0] * count, [0] * count], frontiers=[at, at], pages=pages)
        rows = slice(at, at + count)
        cache.store(0, torch.cat([k[rows], k[rows] * 2]), torch.cat([v[rows], v[rows]]), step)
        out = cache.attend(0, torch.cat([q[rows], q[rows] / 2]), step, 0.1)
        torch.testing.assert_close(out[:count], expected[rows], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out[count:], expected[rows], rtol=1e-5, atol=1e-5)
        at += count


def test_a_row_that_was_never_stored_spoils_what_attends_to_it() -> None:
    cache = SimpleCache(GEOMETRY, 3)
    step = make_step([[0]], frontiers=[5], pages=[[1]])
    cache.store(0, torch.ones(1, 2, 64), torch.ones(1, 2, 64), step)
    assert cache.attend(0, torch.ones(1, 2, 64), step, 1.0).isnan().all()


def test_rows_of_a_shape_the_geometry_does_not_have_are_refused() -> None:
    step = make_step([[0]], frontiers=[0], pages=[[1]])
    with pytest.raises(ValueError, match=r"the geometry says \(1, 2, 64\)"):
        SimpleCache(GEOMETRY, 3).store(0, torch.ones(1, 1, 64), torch.ones(1, 1, 64), step)


def test_the_rotation_is_the_sylvester_matrix_and_its_own_inverse() -> None:
    dim = 64
    index = torch.arange(dim)
    parity = (index[:, None] & index[None, :]).apply_(lambda n: n.bit_count() % 2)
    matrix = (1 - 2 * parity).float() * dim**-0.5
    torch.testing.assert_close(hadamard(torch.eye(dim)), matrix)
    torch.testing.assert_close(hadamard(hadamard(torch.eye(dim))), torch.eye(dim), rtol=0, atol=1e-6)


def test_composing_a_plugin_that_is_broken_fails() -> None:
    import types

    from ninfer_core.errors import PluginError

    with pytest.raises(PluginError, match="states no API level"):
        compose((), modules=(("broken", types.ModuleType("broken")),))


STORAGES = compose(record.name for record in load().records if record.offers.get("kv_dtypes")).kv_dtypes


@pytest.mark.parametrize("name", STORAGES.names())
def test_the_scripted_model_finds_its_memory_in_every_storage(name: str, tmp_path: object) -> None:
    from pathlib import Path

    from ninfer_core.weights.checkpoint import open_checkpoint

    file = Path(str(tmp_path)) / "script.json"
    file.write_text('{"default": {"text": "abcdefghij", "finish": "never"}}')
    family, checkpoint = open_checkpoint(f"scripted:{file}", compose({"scripted"}))
    model = family.build(checkpoint, None, None)  # type: ignore[arg-type]
    rig = Rig(
        model,
        family.kv_geometry(checkpoint.config),
        family.state_layout(checkpoint.config, None),  # type: ignore[arg-type]
        dtype=STORAGES[name],
    )
    prompt = [i % 256 for i in range(400)]
    rig.prompts[0] = len(prompt)
    tokens = [int(rig.feed({0: prompt}, wanted="last")[0].argmax())]
    for _ in range(9):
        tokens.append(int(rig.feed({0: tokens[-1:]})[0].argmax()))
    assert bytes(tokens) == b"abcdefghij"
