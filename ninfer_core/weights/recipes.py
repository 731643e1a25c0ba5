"""Which parameter is stored in which format: the schemes of ``ninfer convert --weights``."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core.api import ModelFamily, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .names import quoted
from .stored import StoredCheckpoint, full_inventory

Shape = tuple[int, ...]

KEEP = "keep"
SCHEMES = (KEEP, "bf16", "fp32", "fp8", "groupwise-int", "nvfp4")
DIRECT = ("bf16", "fp32")
ROW_FP8, NVFP4 = "fp8_e4m3fn_row_bf16", "nvfp4"
USUAL = {"fp8": (ROW_FP8, ROW_FP8), "groupwise-int": ("q4_g64_fp16", "q8_g32_fp16"), "nvfp4": (NVFP4, ROW_FP8)}
"""Scheme -> format of matrices, and of the token table and the head, whose errors show most."""

TABLES = ("token_embedding", "output_head")


def targets(
    family: ModelFamily, checkpoint: StoredCheckpoint, formats: Registry[WeightFormat], scheme: str
) -> dict[str, str]:
    """Parameter -> the format it is to be stored in; those left out keep their own. ArtifactError for a format that is
    not installed."""
    inventory = full_inventory(family, checkpoint)
    found: dict[str, str] = {}
    if scheme in DIRECT or (scheme != KEEP and family.weight_recipe is None):
        found = usual(inventory, formats, scheme)
    elif scheme != KEEP and family.weight_recipe is not None:
        recipe = family.weight_recipe(checkpoint.config, scheme)
        found = {name: recipe[name] for name in inventory if name in recipe}
    direct = family.direct_formats(checkpoint.config)
    found |= {name: direct[name] for name in inventory if name in direct}
    for name, form in found.items():
        if form not in formats:
            raise ArtifactError(
                f"{checkpoint.path}: --weights {scheme} stores parameter {quoted(name)} as {form}, "
                "and no plugin offers that format"
            )
    return found


def usual(inventory: Mapping[str, Shape], formats: Registry[WeightFormat], scheme: str) -> dict[str, str]:
    """Every matrix in the scheme's usual format; one that NVFP4 cannot hold as row FP8."""
    matrices = {name: shape for name, shape in inventory.items() if len(shape) > 1}
    if scheme in DIRECT:
        return dict.fromkeys(matrices, scheme)
    matrix, table = USUAL[scheme]
    found = {}
    for name, shape in matrices.items():
        if len(shape) == 2:
            form = table if name.rpartition("/")[2] in TABLES else matrix
            found[name] = form if form != NVFP4 or holds(formats, form, shape) else ROW_FP8
    return found


def holds(formats: Registry[WeightFormat], name: str, shape: Shape) -> bool:
    """Whether a format can store this shape; True for one that is not installed, which is refused elsewhere."""
    if name not in formats:
        return True
    try:
        formats[name].encoded_bytes(shape)
    except ValueError:
        return False
    return True
