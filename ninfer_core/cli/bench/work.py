"""The least a step has to do: bytes it has to move, and multiplications with the model's matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import ModelFamily
from ninfer_core.kv.pages import PAGE_TOKENS

Shape = tuple[int, ...]
TABLE, HEAD = "text/token_embedding", "text/output_head"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Sums over the matrices, by the share of tokens they multiply: below 1 for one of many experts."""

    bytes_by_share: Mapping[float, int]  # stored, the head included
    elements_by_share: Mapping[float, int]  # without the head
    head_elements: int
    state_bytes: int  # recurrent state of a sequence
    token_bytes: float  # keys and values of a token

    def round_bytes(self, rows: int, width: int, context: int) -> int:
        """Matrices once, of the experts as many as so many tokens choose by chance; each row's state in and out, its
        keys and values."""
        read = sum(size * (1 - (1 - share) ** (rows * width)) for share, size in self.bytes_by_share.items())
        return round(read + rows * (2 * self.state_bytes + context * self.token_bytes))

    def prompt_flops(self, tokens: int) -> int:
        """Multiplications and additions with matrices; attention and recurrences are not among them."""
        each = sum(share * count for share, count in self.elements_by_share.items())
        return round(2 * (tokens * each + self.head_elements))


def work_of(
    family: ModelFamily,
    config: Mapping[str, Any],
    stored_bytes: Callable[[str, Shape], int],
    *,
    state_bytes: int,
    page_bytes: int,
) -> Work:
    """``stored_bytes`` of each matrix; the state's of a sequence; the keys' and values' of a page."""
    sizes: dict[float, int] = defaultdict(int)
    elements: dict[float, int] = defaultdict(int)
    head = 0
    for name, shape in multiplied(family, config).items():
        share = family.token_share(config, name)
        sizes[share] += stored_bytes(name, shape)
        if name == HEAD:
            head = shape[0] * shape[1]
        else:
            elements[share] += shape[0] * shape[1]
    return Work(
        bytes_by_share=dict(sizes),
        elements_by_share=dict(elements),
        head_elements=head,
        state_bytes=state_bytes,
        token_bytes=page_bytes / PAGE_TOKENS,
    )


def multiplied(family: ModelFamily, config: Mapping[str, Any]) -> dict[str, Shape]:
    """The matrices a token is multiplied by; the table it is looked up in is none of them."""
    named = family.uses(config)
    return {
        name: tuple(shape)
        for name, shape in family.inventory(config).items()
        if len(shape) == 2 and name != TABLE and (not named or name in named)
    }
