"""A small artifact to damage, and a toy family whose parameters come from its config."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ninfer_core import plugins as discovery
from ninfer_core.api import ArtifactError, ImportPlan, KVGeometry, ModelFamily, Recipe, Source, WeightFormat, hookimpl
from ninfer_core.registry import Registry
from ninfer_core.weights.formats import FORMATS

ARTIFACT_ID = bytes(range(16))
DIRECTORY = {
    "components": {"text": {"config": {}}},
    "objects": [
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 0, "bytes": 2},
        {
            "id": "w",
            "kind": "tensor",
            "shape": [3],
            "format": "fp32",
            "layout": "contiguous_le_v1",
            "offset": 256,
            "bytes": 12,
        },
    ],
    "bindings": {"text/final_norm": {"object": "w"}},
    "uses": [],
    "files": [{"path": None, "payload_bytes": 268}],
}
PAYLOAD = b"hi" + bytes(254) + bytes.fromhex("0000803f000000c00000003f")


def entry_bytes(directory: Any, payload: bytes, *, raw: bytes | None = None) -> bytes:
    """An entry file around a directory (or its raw text), padded as the writer pads."""
    text = raw if raw is not None else json.dumps(directory, separators=(",", ":")).encode()
    reserve = -(-(32 + len(text)) // 4096) * 4096 - 32
    header = b"NINFER\x00\x03" + reserve.to_bytes(8, "little") + ARTIFACT_ID
    return header + text.ljust(reserve, b" ") + payload


@pytest.fixture
def directory() -> dict[str, Any]:
    return deepcopy(DIRECTORY)


@pytest.fixture
def write_entry(tmp_path: Path) -> Callable[..., Path]:
    """Write an entry file; returns its path."""

    def write(directory: Any = DIRECTORY, payload: bytes = PAYLOAD, raw: bytes | None = None) -> Path:
        path = tmp_path / "model.ninfer"
        path.write_bytes(entry_bytes(directory, payload, raw=raw))
        return path

    return write


@pytest.fixture
def formats() -> Registry[WeightFormat]:
    registry: Registry[WeightFormat] = Registry("weight format")
    for form in FORMATS:
        registry.add(form.name, form, origin="core")
    return registry


def toy_inventory(config: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    if unknown := sorted(set(config) - {"architectures", "vocab_size", "width"}):
        raise ArtifactError(f'text config: unknown member "{unknown[0]}"')
    shape = (config["vocab_size"], config["width"])
    return {"text/token_embedding": shape, "text/final_norm": shape[1:], "text/output_head": shape}


def toy_adapt(source: Source) -> ImportPlan:
    config = {name: source.config[name] for name in ("architectures", "vocab_size", "width")}
    shapes = toy_inventory(config)
    tensors = {
        "text/token_embedding": "embed.weight",
        "text/final_norm": "norm.weight",
        "text/output_head": "embed.weight",
    }
    unknown = sorted(set(source.config) - set(config))
    return ImportPlan(
        architecture="ToyForCausalLM",
        config=config,
        parameters={name: Recipe(tensors=(tensors[name],), shape=shape) for name, shape in shapes.items()},
        warnings=tuple(f"unknown key {name}" for name in unknown),
    )


def never(*args: Any) -> Any:
    raise AssertionError("weights are not needed here")


def toy_prompt(checkpoint: Any) -> Any:
    """Nothing here prompts it."""
    return None


TOY = ModelFamily(
    name="toy",
    summary="an embedding and a norm",
    architectures=("ToyForCausalLM",),
    sources={"huggingface": ("ToyForCausalLM",)},
    adapt=toy_adapt,
    inventory=toy_inventory,
    kv_geometry=lambda config: KVGeometry(heads=(1,), head_dims=(8,)),
    context_length=lambda config: 8,
    hidden_size=lambda config: config["width"],
    prompt=toy_prompt,
    build=never,
)


@pytest.fixture
def plugins() -> discovery.Plugins:
    module = types.ModuleType("toy")
    module.NINFER_API = 1  # type: ignore[attr-defined]

    @hookimpl
    def ninfer_model_families() -> list[ModelFamily]:
        return [TOY]

    module.ninfer_model_families = ninfer_model_families  # type: ignore[attr-defined]
    return discovery.load(only=[], modules=[("toy", module)])


@pytest.fixture
def toy_folder(tmp_path: Path) -> Callable[..., Path]:
    """A Hugging Face folder of the toy family, bf16 unless told otherwise."""

    def write(name: str = "toy-model", dtype: str = "bfloat16", **config: Any) -> Path:
        import torch
        from safetensors.torch import save_file

        folder = tmp_path / name
        folder.mkdir()
        values = {"architectures": ["ToyForCausalLM"], "vocab_size": 4, "width": 8, **config}
        (folder / "config.json").write_text(json.dumps(values))
        (folder / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}}, "added_tokens": []})
        )
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
        draw = torch.Generator().manual_seed(0)
        tensors = {"embed.weight": torch.randn(4, 8, generator=draw), "norm.weight": torch.randn(8, generator=draw)}
        save_file({k: v.to(getattr(torch, dtype)) for k, v in tensors.items()}, folder / "model.safetensors")
        return folder

    return write
