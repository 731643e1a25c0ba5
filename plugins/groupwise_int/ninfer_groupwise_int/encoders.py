"""How scales and codes are chosen: ``grouped_absmax`` and ``grouped_search`` (``spec/artifact.md`` §13.1, §13.2).

Both work on groups [G, width] of fp32 values; a group never crosses a row, and a row that ends inside one is filled up
with zeros. Codes always come from the product with the reciprocal of the scale, which now and then is another code than
division gives. Reciprocals and quotients are formed in fp64 and rounded to fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_kernels.quant_linear import planes, reference_planes

LEAST_SCALE = 2.0**-24  # the smallest binary16 above zero


@dataclass(frozen=True, slots=True)
class Kind:
    bits: int
    group: int  # columns that share a scale
    least: int
    most: int


KINDS = {
    "q4_g64": Kind(4, 64, -8, 7),
    "q5_g64": Kind(5, 64, -16, 15),
    "q6_g64": Kind(6, 64, -32, 31),
    "q8_g32": Kind(8, 32, -127, 127),
}

Method = Callable[[Tensor, Kind], tuple[Tensor, Tensor]]  # groups -> scales [G] fp16, codes [G, width] fp32


def encode_rows(name: str, method: str, x: Tensor) -> list[Tensor]:
    """x: [R, K] fp32 -> the parts of the stored rows; ValueError for a value or scale that cannot be stored."""
    kind = KINDS[name]
    if not bool(torch.isfinite(x).all()):
        raise ValueError("a value is not finite")
    width = planes.up(x.shape[1], planes.ROW_SPLIT_COLUMNS)
    groups = torch.nn.functional.pad(x.float(), (0, width - x.shape[1])).view(-1, kind.group)
    scales, codes = METHODS[method](groups, kind)
    return stored_parts(scales.view(len(x), -1), codes.view(len(x), -1), kind)


def stored_parts(scales: Tensor, codes: Tensor, kind: Kind) -> list[Tensor]:
    """Codes as two's complement of ``bits``: the low four, those above, and the scales."""
    words = codes.to(torch.int16).to(torch.uint8)  # modulo 256
    parts = [words if kind.bits == 8 else reference_planes.packed(words & 15, 4)]
    if 4 < kind.bits < 8:
        upper = (words & ((1 << kind.bits) - 1)) >> 4
        parts.append(reference_planes.packed(upper, kind.bits - 4))
    return [*parts, scales.contiguous().view(torch.uint8)]


def codes_for(groups: Tensor, scales: Tensor, kind: Kind) -> Tensor:
    """clamp(rint(x * (1 / s))); a scale of zero has zeros."""
    wide = scales.double()
    inverse = torch.where(wide != 0, 1 / wide, 0).float()
    return torch.round(groups * inverse[:, None]).clamp_(kind.least, kind.most)


def grouped_absmax(groups: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The scale that just reaches the largest magnitude; one too small for binary16 becomes its smallest."""
    largest = groups.abs().amax(1)
    scales = (largest.double() / kind.most).float().half()
    scales = torch.where((scales == 0) & (largest > 0), LEAST_SCALE, scales)
    if not bool(torch.isfinite(scales).all()):
        raise ValueError(f"the values of a group up to {float(largest.max()):g} need a scale beyond binary16")
    return scales, codes_for(groups, scales, kind)


def grouped_search(groups: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Of many scales, negative ones among them, the first with the least squared error; beginning with absmax."""
    search = Search(groups, kind)
    for candidate in search.candidates():
        search.consider(candidate)
    for candidate in search.refined():
        search.consider(candidate)
    return search.scales, search.codes


class Search:
    """The best scale and codes of every group so far; errors are fp64."""

    def __init__(self, groups: Tensor, kind: Kind) -> None:
        self.groups, self.kind = groups, kind
        self.wide = groups.double()
        self.first, self.first_codes = grouped_absmax(groups, kind)
        self.scales, self.codes = self.first, self.first_codes
        self.errors = self.error(self.scales, self.codes)

    def error(self, scales: Tensor, codes: Tensor) -> Tensor:
        return (self.wide - scales.double()[:, None] * codes.double()).square().sum(1)

    def consider(self, candidate: Tensor) -> None:
        """Take a scale [G] fp64 where it is strictly better; one that binary16 does not hold is passed over."""
        scales = candidate.float().half()
        scales = torch.where((scales == 0) & (candidate != 0), LEAST_SCALE * candidate.sign(), scales.double()).half()
        usable = torch.isfinite(scales) & (scales != 0)
        codes = codes_for(self.groups, torch.where(usable, scales, 0), self.kind)
        errors = self.error(torch.where(usable, scales, 0), codes)
        better = usable & (errors < self.errors)
        self.scales = torch.where(better, scales, self.scales)
        self.codes = torch.where(better[:, None], codes, self.codes)
        self.errors = torch.where(better, errors, self.errors)

    def candidates(self) -> Iterator[Tensor]:
        largest = self.wide.abs().amax(1)
        signed = self.wide.gather(1, self.wide.abs().argmax(1, keepdim=True)).squeeze(1)
        ratios = [0.70 + 0.02 * i for i in range(25)]
        yield from (ratio * largest / self.kind.most for ratio in ratios)
        yield from (ratio * signed / self.kind.least for ratio in ratios)
        first = self.first.double()
        yield from (first * factor for factor in (0.25, 0.5, 2.0, 4.0))
        yield from neighbours(self.first, (-2, -1, 1, 2))
        fit = self.least_squares(self.first_codes)
        yield from (fit * factor for factor in (1.0, 0.5, 2.0))
        yield from neighbours(fit.float().half(), (-2, -1, 1, 2))

    def refined(self) -> Iterator[Tensor]:
        """Once more from the best codes."""
        fit = self.least_squares(self.codes)
        yield fit
        yield from neighbours(fit.float().half(), (-1, 1))

    def least_squares(self, codes: Tensor) -> Tensor:
        """The scale that fits these codes best; zero where all are zero."""
        wide = codes.double()
        power = wide.square().sum(1)
        return torch.where(power > 0, (self.wide * wide).sum(1) / power.clamp(min=1), 0)


def neighbours(scales: Tensor, steps: tuple[int, ...]) -> Iterator[Tensor]:
    """The binary16 so many steps of magnitude away, as fp64; zero where there is none."""
    words = scales.view(torch.int16).int()
    sign, magnitude = words & -0x8000, words & 0x7FFF
    for step in steps:
        moved = (magnitude + step).clamp(0, 0x7C00)
        yield (sign | moved).to(torch.int16).view(torch.float16).double()


METHODS: dict[str, Method] = {"grouped_absmax": grouped_absmax, "grouped_search": grouped_search}
