"""What stands beside a parameter in its Uses and changes it (``spec/artifact.md`` §3.6, §11.6; §20 rows 39-41).

Roles that a 16-bit activation path has no use for are checked for their form and left alone. A role nobody here knows
is refused: to ignore it would be another model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ninfer_core.api import StoredInput
from ninfer_core.errors import ArtifactError

from .container import Container
from .directory import Binding, TensorObject, Use, elements
from .names import plain, quoted, shaped

if TYPE_CHECKING:
    from torch import Tensor

ROTATED_COLUMNS = 1024
"""Columns that one Hadamard rotation mixes."""

ROTATED = re.compile(
    r"text/layers/\d+/(attention/(query|key|gate|value|output)|gdn/(query|key|value|z|output)|mlp/(gate|up|down))"
    r"|text/output_head|proposal/head"
)
"""Where ``hadamard_signs`` may stand."""

TERNARY = "t2_g128_fp16"
TABLE, HEAD, HEAD_INPUT = "text/token_embedding", "text/output_head", "text/final_hidden"
FORMS = {"hadamard_signs": "bf16", "input_columns": "int32", "activation_input_divisor": "fp32"}


class Auxiliaries:
    """The stored inputs of an artifact's parameters. Vectors that several of them share are read once."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.path = container.path
        self._read: dict[Binding, StoredInput] = {}

    def check(self, parameter: str, shape: tuple[int, ...], parents: Sequence[TensorObject]) -> None:
        """Refuse what cannot be honoured for this parameter; reads nothing but the directory."""
        for use in self.container.directory.uses_of.get(parameter, ()):
            for role, binding in use.auxiliaries.items():
                self._check_role(use, role, binding, shape, parents)
            if len(changing(use)) > 1:
                self._refuse(use, "input_columns", "cannot stand beside hadamard_signs")
        if len({_key(use) for use in self.container.directory.uses_of.get(parameter, ())}) > 1:
            raise ArtifactError(f"{self.path}: parameter {quoted(parameter)}: its Uses disagree about auxiliaries")
        if parameter == TABLE and any(parent.format == TERNARY for parent in parents):
            self._table_use(shape)

    def of(self, parameter: str, shape: tuple[int, ...], parents: Sequence[TensorObject]) -> StoredInput | None:
        """What the parameter multiplies instead of its input; ArtifactError for values that are none."""
        if parameter == TABLE and any(parent.format == TERNARY for parent in parents):
            use = self._table_use(shape)
        else:
            uses = self.container.directory.uses_of.get(parameter, ())
            if not uses or not changing(uses[0]):
                return None
            use = uses[0]
        ((role, binding),) = changing(use).items()
        if binding not in self._read:
            self._read[binding] = self._value(use, role, binding)
        return self._read[binding]

    def _table_use(self, shape: tuple[int, ...]) -> Use:
        """The head's Use, whose signs turn the rows of a ternary token table back."""
        for use in self.container.directory.uses_of.get(HEAD, ()):
            signs = use.auxiliaries.get("hadamard_signs")
            if use.input == HEAD_INPUT and signs is not None and signs.elements == shape[-1]:
                return use
        raise ArtifactError(f"{self.path}: ternary token embedding needs hadamard_signs on {HEAD}")

    def _check_role(
        self, use: Use, role: str, binding: Binding, shape: tuple[int, ...], parents: Sequence[TensorObject]
    ) -> None:
        if role not in FORMS:
            self._refuse(use, role, "is not supported")
        if role == "hadamard_signs" and not ROTATED.fullmatch(use.parameter):
            self._refuse(use, role, "is not supported here")
        if role == "input_columns" and not all(parent.format.startswith("gguf_") for parent in parents):
            self._refuse(use, role, "is supported for gguf formats only")
        formats = {self.container.tensor_object(part.object).format for part in binding.parts}
        wanted = 1 if role == "activation_input_divisor" else shape[-1] if shape else 1
        if formats != {FORMS[role]} or binding.elements != wanted:
            self._refuse(
                use,
                role,
                f"needs {FORMS[role]} {shaped((wanted,))}, artifact provides {', '.join(sorted(map(plain, formats)))} "
                f"{shaped((binding.elements,))}",
            )
        if role == "hadamard_signs" and wanted % ROTATED_COLUMNS:
            self._refuse(use, role, f"needs a multiple of {ROTATED_COLUMNS} columns, not {wanted}")

    def _value(self, use: Use, role: str, binding: Binding) -> StoredInput:
        import torch

        values = torch.cat([self._elements(part.object, part.begin, part.end) for part in binding.parts])
        if role == "hadamard_signs":
            signs = values.view(torch.bfloat16).float()
            if not bool((signs.abs() == 1).all()):
                self._refuse(use, role, "has a value that is neither +1 nor -1")
            return StoredInput(signs=signs)
        columns = values.view(torch.int32).long()
        if not torch.equal(columns.sort().values, torch.arange(len(columns))):
            self._refuse(use, role, f"is not a permutation of 0..{len(columns) - 1}")
        return StoredInput(columns=columns)

    def _elements(self, name: str, begin: int, end: int) -> Tensor:
        """Bytes of elements of a direct object, as a copy."""
        import torch

        item = self.container.tensor_object(name)
        word = item.bytes // elements(item.shape)
        view = self.container.read_range(item.offset + begin * word, (end - begin) * word, holds=plain(name))
        return torch.frombuffer(view, dtype=torch.uint8).clone()

    def _refuse(self, use: Use, role: str, why: str) -> NoReturn:
        raise ArtifactError(
            f"{self.path}: Use {plain(use.parameter)}@{plain(use.input)}: auxiliary {quoted(role)} {why}"
        )


def changing(use: Use) -> Mapping[str, Binding]:
    """The auxiliaries that change what the stored matrix means."""
    return {role: use.auxiliaries[role] for role in ("hadamard_signs", "input_columns") if role in use.auxiliaries}


def _key(use: Use) -> tuple[tuple[str, Binding], ...]:
    return tuple(changing(use).items())
