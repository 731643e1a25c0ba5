"""Llama-shaped models: ``LlamaForCausalLM`` checkpoints of Hugging Face and GGUF files of architecture ``llama``."""

from ninfer_core.api import ModelFamily, hookimpl

from . import family
from .geometries import GEOMETRIES

NINFER_API = 1

LLAMA = ModelFamily(
    name="llama",
    summary="Llama and SmolLM2 shapes: GQA, RoPE, RMSNorm, SwiGLU",
    architectures=("LlamaForCausalLM",),
    sources={"huggingface": ("LlamaForCausalLM",), "gguf": ("llama",)},
    adapt=family.adapt,
    inventory=family.inventory,
    kv_geometry=family.kv_geometry,
    context_length=family.context_length,
    hidden_size=family.hidden_size,
    prompt=family.prompt,
    build=family.build,
    weight_recipe=family.weight_recipe,
    geometries=GEOMETRIES,
)


@hookimpl
def ninfer_model_families() -> list[ModelFamily]:
    return [LLAMA]
