"""Models that do not fit, through the commands: one line names the tensor or key, what is there and what is expected.

Each fault is made in all three forms a model comes in. ``ninfer convert`` and ``ninfer-serve`` end with status 1 and
the line on stderr; ``ninfer inspect`` shows what it can and lists the line among its refusals.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch import Tensor

# the tiny checkpoints of the family's own tests
sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "qwen35" / "tests"))

import tiny_qwen35 as tiny
import tiny_qwen35_gguf as tiny_gguf

from ninfer_core.cli.main import main as ninfer

P = tiny_gguf.P
C = tiny.config(**tiny_gguf.HEADS)
TENSORS = tiny.random_tensors(tiny.shapes(C, vision=False))
A_LOG, QUERY = f"{P}layers.0.linear_attn.A_log", f"{P}layers.3.self_attn.q_proj.weight"


def save_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab={c: i for i, c in enumerate("abcdefgh")}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<|endoftext|>", "<|im_end|>")])
    tokenizer.save(str(directory / "tokenizer.json"))


def folder(path: Path, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """A Hugging Face folder; ``changes`` are of config.json."""
    tiny.write(path, C | changes, TENSORS if tensors is None else tensors)
    save_tokenizer(path)
    return path


def artifact(path: Path, *changes: tuple[str, str]) -> Path:
    """The folder converted to bf16, and each (text, text of the same length) of its directory exchanged once."""
    path.mkdir()
    out = path / "m.ninfer"
    assert ninfer(["convert", str(folder(path / "hf")), str(out), "--weights", "bf16"]) == 0
    data = out.read_bytes()
    for old, new in changes:
        assert len(old) == len(new) and old.encode() in data
        data = data.replace(old.encode(), new.encode(), 1)
    out.write_bytes(data)
    return out


def file(path: Path, change: Callable[[dict[str, Any]], Any] = lambda found: None, **more: Any) -> Path:
    """A GGUF file; ``change`` edits its tensors, ``more`` its metadata and the types of raw tensors."""
    path.mkdir()
    found: dict[str, Any] = {}
    for name, tensor in TENSORS.items():
        found |= dict(tiny_gguf.exported(name, tensor))
    change(found)
    config, types = more.pop("metadata", {}), more
    return Path(tiny_gguf.write(path / "m.gguf", tiny_gguf.metadata(C) | config, found, **types))


QUANTIZED = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
UNKNOWN_TYPE = {"blk__0__ffn_up__weight": gguf.GGMLQuantizationType.TQ1_0}
Make = Callable[[Path], Path]
FAULTS: dict[str, tuple[Make, str]] = {
    "folder: missing tensor": (
        lambda p: folder(p, {n: x for n, x in TENSORS.items() if n != A_LOG}),
        f"tensor '{A_LOG}' is missing",
    ),
    "folder: wrong shape": (
        lambda p: folder(p, TENSORS | {QUERY: torch.zeros(128, 32)}),
        f"tensor '{QUERY}' has shape [128, 32]; expected [256, 32]",
    ),
    "folder: a key with an unknown value": (
        lambda p: folder(p, text_config=C["text_config"] | {"hidden_act": "relu"}),
        "config.json: hidden_act 'relu' is not implemented; accepted: silu or swish",
    ),
    "folder: unknown architecture": (
        lambda p: folder(p, architectures=["NovelForCausalLM"]),
        'architecture "NovelForCausalLM" is not supported (installed: ',
    ),
    "folder: unsupported quantization": (
        lambda p: folder(p, **QUANTIZED),
        "config.json: quantization_config.quant_method 'gptq' is not implemented; accepted: fp8, modelopt, "
        "compressed-tensors",
    ),
    "artifact: missing parameter": (
        lambda p: artifact(p, ('"text/final_norm"', '"text/final_nora"')),
        'missing parameter "text/final_norm"',
    ),
    "artifact: wrong shape": (
        lambda p: artifact(p, ('"vocab_size":97', '"vocab_size":98')),
        'parameter "text/token_embedding": needs shape [98, 32], artifact provides 3104 elements',
    ),
    "artifact: unknown key": (
        lambda p: artifact(p, ('"rms_norm_eps"', '"rms_norm_epz"')),
        'text config: unknown member "rms_norm_epz"',
    ),
    "artifact: unknown architecture": (
        lambda p: artifact(p, ("Qwen3_5ForCausalLM", "Novel_5ForCausalLM")),
        'architecture "Novel_5ForCausalLM" is not supported (installed: ',
    ),
    "artifact: unknown format": (
        lambda p: artifact(p, ('"format":"bf16"', '"format":"exl3"')),
        'format "exl3" with layout "contiguous_le_v1" is not supported',
    ),
    "artifact: no tokenizer": (
        lambda p: artifact(p, ('"tokenizer.json"', '"tokenizer_json"')),
        'm.ninfer: text: missing resource "tokenizer.json"',
    ),
    "gguf: missing tensor": (lambda p: file(p, lambda t: t.pop("blk.0.ssm_a")), "tensor 'blk.0.ssm_a' is missing"),
    "gguf: wrong shape": (
        lambda p: file(p, lambda t: t.update({"blk.3.attn_q.weight": torch.zeros(128, 32)})),
        "tensor 'blk.3.attn_q.weight' has shape [128, 32]; expected [256, 32]",
    ),
    "gguf: a key with an unknown value": (
        lambda p: file(p, metadata={"qwen35.attention.causal": False}),
        "qwen35.attention.causal False is not implemented; accepted: True",
    ),
    "gguf: unknown architecture": (
        lambda p: file(p, metadata={"general.architecture": "novel"}),
        'architecture "novel" is not supported (installed: ',
    ),
    "gguf: unsupported quantization": (
        # one block of 256 values takes 54 bytes
        lambda p: file(p, lambda t: t.update({"blk.0.ffn_up.weight": np.zeros((48, 54), np.uint8)}), **UNKNOWN_TYPE),
        "tensor 'blk.0.ffn_up.weight' is stored as TQ1_0, which cannot be read; known: ",
    ),
}
LATE = {"artifact: no tokenizer"}
"""What a conversion, which needs no prompts, has nothing against."""


@pytest.fixture(scope="module", params=FAULTS)
def bad(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    make, message = FAULTS[request.param]
    return request.param, make(tmp_path_factory.mktemp("model") / "m"), message


def without_progress(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("converting: "))


def one_line(text: str, path: Path, message: str) -> None:
    assert text.count("\n") == 1, text
    assert text.startswith(f"ninfer: {path}"), text
    assert message in text


def test_a_conversion_ends_with_one_line_and_leaves_nothing(bad, tmp_path, capsys):
    fault, path, message = bad
    capsys.readouterr()
    out = tmp_path / "out.ninfer"
    status, printed = ninfer(["convert", str(path), str(out)]), capsys.readouterr()
    if fault in LATE:
        assert (status, without_progress(printed.err)) == (0, "")
        return
    assert (status, printed.out, list(tmp_path.iterdir())) == (1, "", [])
    one_line(printed.err, path, message)


def test_an_inspection_lists_what_a_start_would_refuse(bad, capsys):
    _, path, message = bad
    capsys.readouterr()
    assert ninfer(["inspect", str(path)]) == 1
    printed = capsys.readouterr()
    if printed.out:
        head, _, refusals = printed.out.partition("A start with this model is refused\n")
        assert head and printed.err == ""
        assert any(message in line for line in refusals.splitlines())
    else:
        one_line(printed.err, path, message)


SERVE_EACH = """
import sys
from ninfer_core.cli.serve import main
for path in sys.argv[1:]:
    status = main([path, "--port", "0", "--log-level", "error"])
    print("status", status, file=sys.stderr)
"""


def test_a_start_ends_with_status_one_and_one_line(tmp_path):
    """All of them by one process: it takes a while to begin."""
    paths = [make(tmp_path / str(i)) for i, (make, _) in enumerate(FAULTS.values())]
    command = [sys.executable, "-c", SERVE_EACH, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.split(r"status (\d+)\n", done.stderr)
    assert told[1::2] == ["1"] * len(paths)
    assert done.stdout == ""
    for said, path, (_, message) in zip(told[0::2], paths, FAULTS.values(), strict=False):
        one_line(said, path, message)


UNKNOWN_KEYS: dict[str, tuple[Make, str]] = {
    "folder": (
        lambda p: folder(p, text_config=C["text_config"] | {"novelty": 1}),
        "config.json: unknown key 'text_config.novelty' is ignored",
    ),
    "gguf": (lambda p: file(p, metadata={"qwen35.novelty": 1}), "unknown key 'qwen35.novelty' is ignored"),
}


@pytest.mark.parametrize("form", UNKNOWN_KEYS)
def test_an_unknown_key_of_a_foreign_checkpoint_is_named_and_ignored(tmp_path, capsys, form):
    make, message = UNKNOWN_KEYS[form]
    path = make(tmp_path / "m")
    assert ninfer(["convert", str(path), str(tmp_path / "out.ninfer")]) == 0
    said = without_progress(capsys.readouterr().err)
    assert said.startswith(f"warning: {path}: ") and said.endswith(f"{message}\n") and said.count("\n") == 1
    assert ninfer(["inspect", str(path)]) == 0
    assert message in capsys.readouterr().out.partition("Notes\n")[2]


@pytest.mark.parametrize("make", [folder, artifact, file])
def test_the_models_these_are_made_from_are_sound(tmp_path, capsys, make):
    assert ninfer(["inspect", str(make(tmp_path / "m"))]) == 0
    assert "is refused" not in capsys.readouterr().out
