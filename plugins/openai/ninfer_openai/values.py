"""Types and values that several bodies of this protocol have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ninfer_core.api.fields import Used

Temperature = Annotated[float, Meta(ge=0, le=2)]
Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=-1)]  # -1: no limit
StopString = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[StopString], Meta(max_length=4)]

SEED = "a signed number of 64 bits"
CONSTRAINED = "Output is not constrained"


class StreamOptions(Struct):
    include_usage: Annotated[bool | None, Used("true: a chunk with the usage before the end")] = None


class PostThinking(Struct, forbid_unknown_fields=True):
    """The answer's own sampler: a misspelt member would be silently sampled with the preset, so it is refused."""

    temperature: Annotated[Temperature | None, Used("0 to 2")] = None
    top_p: Annotated[Unit | None, Used("0 to 1")] = None
    top_k: Annotated[Count | None, Used("0 and up; above 20 it is 20")] = None
    min_p: Annotated[Unit | None, Used("0 to 1")] = None
    presence_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    frequency_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    seed: Annotated[int | None, Used(SEED)] = None
