"""How much memory a conversion and a load may take: measured in processes of their own, on files of mostly zeros."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
LAYERS, HIDDEN, INNER, VOCAB = 6, 1024, 4096, 32768
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LARGEST = 2 * VOCAB * HIDDEN  # bytes of the token table in bf16

MEASURED = """
import resource, sys, threading
import torch
from ninfer_core import options
from ninfer_core.testing import compose
from ninfer_kernels import quant_linear

torch.set_num_threads(1)
plugins = compose({plugins!r})
options.compose = lambda argv: plugins
torch.zeros(8, 64) @ torch.zeros(64, 8)
for form in ("bf16", "q4_g64", "q5_g64", "q8_g32"):
    # code is compiled once whatever the model's size
    size = quant_linear.planes.layout(form, 8, 64)[1]
    quant_linear.linear(form, [quant_linear.Matrix(torch.zeros(size, dtype=torch.uint8), 8, 64)])(torch.zeros(1, 64))

def now():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) << 10

peak, over = now(), threading.Event()
before = peak
def watch():
    global peak
    while not over.wait(0.002):
        peak = max(peak, now())
watcher = threading.Thread(target=watch)
watcher.start()
{work}
over.set(); watcher.join()
print("grew", max(peak, now()) - before)
"""
PLUGINS = {"llama", "gguf", "groupwise_int", "row_fp8", "nvfp4"}
CONVERT = """
from ninfer_core.cli import convert
from ninfer_core.cli.main import guarded
assert guarded(convert.COMMAND.run, {words!r}) == 0
"""
LOAD = """
from ninfer_core.api.nn import Runtime
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.weights.checkpoint import open_checkpoint
family, checkpoint = open_checkpoint({path!r}, plugins)
runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=False, max_context=512, options={{}})
model = family.build(checkpoint, CheckpointWeights(checkpoint, plugins.weight_formats, runtime), runtime)
for layer in model.layers:
    for linear in (layer.query_key_value, layer.output, layer.gate_up, layer.down):
        linear(torch.ones(1, {inner} if linear is layer.down else {hidden}))
model.head(torch.ones(1, {hidden}))
"""


def grew(work: str) -> int:
    """Bytes a process's resident memory grew by while it did this."""
    code = MEASURED.format(plugins=PLUGINS, work=work)
    out = subprocess.run([sys.executable, "-c", code], check=True, timeout=600, capture_output=True, text=True).stdout
    return int(out.split("grew ")[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of 240 MB whose tensors are a hole in the file."""
    path = tmp_path_factory.mktemp("wide")
    (path / "config.json").write_text(json.dumps(CONFIG))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        shapes |= {p + f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        shapes |= {p + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qo"}
        shapes |= {p + f"self_attn.{name}_proj.weight": (HIDDEN // 2, HIDDEN) for name in "kv"}
        shapes |= {p + f"mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[p + "mlp.down_proj.weight"] = (HIDDEN, INNER)
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    assert end > 200 * MIB
    return path


@pytest.fixture(scope="module")
def artifacts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["keep", "fp8", "groupwise-int", "nvfp4"])
def test_a_conversion_holds_one_tensor_and_never_the_checkpoint(folder, artifacts, scheme):
    out = artifacts / f"{scheme}.ninfer"
    words = [str(folder), str(out), "--weights", scheme]
    # the largest tensor, what it becomes, and the rows being encoded
    assert grew(CONVERT.format(words=words)) < LARGEST + 100 * MIB
    assert out.stat().st_size > 60 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["keep", "fp8", "groupwise-int", "nvfp4"])
def test_a_load_takes_little_more_than_the_artifact(folder, artifacts, scheme):
    out = artifacts / f"{scheme}.ninfer"
    if not out.exists():
        grew(CONVERT.format(words=[str(folder), str(out), "--weights", scheme]))
    work = LOAD.format(path=str(out), inner=INNER, hidden=HIDDEN)
    assert grew(work) < out.stat().st_size + 60 * MIB
