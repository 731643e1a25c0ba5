"""``scripted:FILE.json``: a model family whose weights are a list of replies.

It runs through the real engine, so that a test or a demonstration can have a model say exactly what it wants, token by
token.
"""

from typing import Any

from ninfer_core.api import (
    Checkpoint,
    Importer,
    ImportPlan,
    KVGeometry,
    ModelFamily,
    PromptFormat,
    Source,
    StatePart,
    hookimpl,
)

NINFER_API = 1
ARCHITECTURE = "ScriptedForCausalLM"
PREFIX = "scripted:"
CONTEXT_TOKENS = 131_072
HEAD_DIM = 128  # two copies of 64 bits, one bit an element


def open_source(path: str) -> Source:
    from .script import open_source

    return open_source(path)


def adapt(source: Source) -> ImportPlan:
    return ImportPlan(architecture=ARCHITECTURE, config=dict(source.config), parameters={})


def prompt(checkpoint: Checkpoint) -> PromptFormat:
    from .prompt import prompt_format

    return prompt_format(checkpoint)


def build(checkpoint: Checkpoint, weights: Any, runtime: Any) -> Any:
    from .model import build

    return build(checkpoint)


def describe(checkpoint: Checkpoint) -> str:
    from .describe import describe

    return describe(checkpoint)


FAMILY = ModelFamily(
    name="scripted",
    summary="plays the replies of a JSON file; for tests and demonstrations",
    architectures=(ARCHITECTURE,),
    sources={"scripted": (ARCHITECTURE,)},
    adapt=adapt,
    inventory=lambda config: {},
    kv_geometry=lambda config: KVGeometry(heads=(1,), head_dims=(HEAD_DIM,)),
    context_length=lambda config: CONTEXT_TOKENS,
    hidden_size=lambda config: HEAD_DIM,
    prompt=prompt,
    build=build,
    state_layout=lambda config, runtime: (StatePart(name="consumed", dtype="int64", shape=(2,)),),
    describe=describe,
)


@hookimpl
def ninfer_model_families() -> list[ModelFamily]:
    return [FAMILY]


@hookimpl
def ninfer_importers() -> list[Importer]:
    return [
        Importer(
            name="scripted",
            summary="scripted:FILE.json, a list of replies",
            claims=lambda path: path.startswith(PREFIX),
            open=open_source,
        )
    ]
