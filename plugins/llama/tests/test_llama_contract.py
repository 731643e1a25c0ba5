"""The kit's contract for model families, on a tiny random checkpoint."""

from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from ninfer_core.testing import ModelFamilyContract
from ninfer_llama import ninfer_model_families
from ninfer_llama.names import huggingface_name, inventory

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "vocab_size": 97,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 512,
    "attention_bias": True,
}


class TestLlama(ModelFamilyContract):
    family = ninfer_model_families()[0]
    only = frozenset({"llama"})
    vocab_tokens = 97

    def write_model(self, directory: Path) -> str:
        from ninfer_llama.config import read
        from ninfer_llama.from_huggingface import read as from_huggingface

        config, _ = from_huggingface(CONFIG, "config.json")
        g = torch.Generator().manual_seed(0)
        tensors = {
            huggingface_name(name): torch.randn(shape, generator=g) * 0.3
            for name, shape in inventory(read(config)).items()
        }
        save_file(tensors, directory / "model.safetensors")
        (directory / "config.json").write_bytes(msgspec.json.encode(CONFIG))
        return str(directory)
