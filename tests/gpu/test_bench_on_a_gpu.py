"""``ninfer bench`` where rounds are recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from ninfer_core.cli.rows import Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
SIZES = ("--rows", "1,3", "--contexts", "70", "--widths", "1,4", "--rounds", "5", "--prompt-tokens", "100,600")


@pytest.mark.parametrize(
    ("geometry", "weights"), [("llama-8b", "bf16"), ("27b", "bf16"), ("35b-a3b", "bf16"), ("35b-a3b", "groupwise-int")]
)
def test_recorded_rounds_of_every_size_say_what_single_steps_say(tmp_path: Path, geometry, weights):
    out = tmp_path / "rows.jsonl"
    line = ("--geometry", geometry, "--layers", "4", "--weights", weights, *SIZES, "--eager", "--out", str(out))
    command = [sys.executable, "-m", "ninfer_core.cli.main", "bench", *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    rows = [msgspec.json.decode(one, type=Row) for one in out.read_bytes().splitlines()]
    rounds = {(one.shape, one.impl) for one in rows if one.op == "decode_round"}
    shapes = [f"R{count}-W{width}-C70" for count in (1, 3) for width in (1, 4)]
    assert rounds == {(shape, impl) for shape in shapes for impl in ("graph", "eager")}
    assert {one.op for one in rows} >= {"copy", "prefill", "decode", "decode_host"}
    assert all(one.device == torch.cuda.get_device_name() for one in rows)
