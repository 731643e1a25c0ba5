"""Qwen3.5, 3.6 and 3.8, dense and mixture of experts: Hugging Face folders, GGUF files and artifacts."""

from ninfer_core.api import ModelFamily, Option, hookimpl

from . import family
from .geometries import GEOMETRIES, token_share
from .rope_plan import ROPE_OPTIONS

NINFER_API = 1

GDN_STATE_FP16 = Option(
    flag="--gdn-state-fp16",
    default=False,
    help="keep the recurrent state of Gated DeltaNet in fp16 between steps, in half the memory; trades quality",
)

QWEN35 = ModelFamily(
    name="qwen35",
    summary="Qwen3.5, 3.6 and 3.8: Gated DeltaNet with gated attention, dense or mixture of experts",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    sources={
        "huggingface": (
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5ForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
        ),
        "gguf": ("qwen35", "qwen35moe"),
    },
    adapt=family.adapt,
    inventory=family.inventory,
    kv_geometry=family.kv_geometry,
    state_layout=family.state_layout,
    context_length=family.context_length,
    context_limit=family.context_limit,
    hidden_size=family.hidden_size,
    prompt=family.prompt,
    build=family.build,
    companions={"mtp": family.mtp_inventory},
    weight_recipe=family.weight_recipe,
    direct_formats=family.direct_formats,
    uses=family.uses,
    geometries=GEOMETRIES,
    token_share=token_share,
    options=(GDN_STATE_FP16, *ROPE_OPTIONS),
)


@hookimpl
def ninfer_model_families() -> list[ModelFamily]:
    return [QWEN35]
