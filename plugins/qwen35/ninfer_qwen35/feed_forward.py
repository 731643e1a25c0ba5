"""The second half of a block: one gated expert, or the chosen ones of many.

Legend: T tokens of this step, N hidden width, E experts, I inner width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ninfer_core.api.nn import Linear
from ninfer_kernels import device
from ninfer_kernels.moe import Experts, PackedExperts, fits
from ninfer_kernels.tiled_linear import TiledLinear

from .config import Qwen35Config
from .parts import Kernels, Parameters

SHARED = "moe/shared/"


class GatedMlp:
    """``down(SiLU(gate) * up)``."""

    records_steps = True

    def __init__(self, gate: str, up: str, down: str, p: Parameters, kernels: Kernels) -> None:
        self.swiglu = kernels.activation.swiglu
        self.gate_up: Linear = p.linear(gate, up)
        self.down: Linear = p.linear(down)

    def __call__(self, h: Tensor) -> Tensor:
        return self.down(self.swiglu(self.gate_up(h)))


class SparseMlp:
    """The most probable experts of each token, and one expert for all of them behind a gate of its own."""

    def __init__(self, config: Qwen35Config, p: Parameters, kernels: Kernels) -> None:
        self.chosen, self.k = config.num_experts_per_tok or 0, kernels
        # fp32: two experts a rounding apart must not trade places
        self.router, self.shared_score = p.tensor("moe/router"), p.tensor("moe/shared_score")
        stems = [f"moe/experts/{e}/" for e in range(config.num_experts or 0)]
        self.records_steps = device.launches(self.router)
        if self.records_steps:
            # one stack for all experts, which kernels read without asking the host who was chosen
            self.stacked: Experts | PackedExperts = self._packed(stems, p) or self._dense(stems, p)
            return
        self.shared = GatedMlp(SHARED + "gate", SHARED + "up", SHARED + "down", p, kernels)
        self.experts = [GatedMlp(stem + "gate", stem + "up", stem + "down", p, kernels) for stem in stems]

    def __call__(self, h: Tensor) -> Tensor:
        if self.records_steps:
            return self.k.moe.sparse(h, self.stacked, self.chosen)  # type: ignore[no-any-return]
        wide = h.float()
        shares, ids = self.k.moe.route(wide @ self.router.t(), self.chosen)
        routed = self.k.moe.mix(h, shares, ids, self.experts)
        shared = self.k.activation.sigmoid_gate(self.shared(h).float(), wide @ self.shared_score.t())
        return (routed + shared).to(h.dtype)

    def _packed(self, stems: Sequence[str], p: Parameters) -> PackedExperts | None:
        """All experts as they are stored; None where kernels cannot read them so."""
        if not fits(*p.shapes[stems[0] + "down"]):
            return None
        gate_up = p.packed(*(stem + part for stem in stems for part in ("gate", "up")))
        if not isinstance(gate_up, TiledLinear):
            return None
        down = p.packed(*(stem + "down" for stem in stems))
        if not isinstance(down, TiledLinear):
            return None
        shared = p.linear(SHARED + "gate", SHARED + "up"), p.linear(SHARED + "down")
        return PackedExperts.of(self.router, self.shared_score, gate_up.tiles, down.tiles, *shared, self.chosen)

    def _dense(self, stems: Sequence[str], p: Parameters) -> Experts:
        """All experts as numbers."""
        gate_up = p.dense(*(stem + part for stem in stems for part in ("gate", "up")))
        down = p.dense(*(stem + "down" for stem in stems))
        E, shared = len(stems), (p.dense(SHARED + "gate", SHARED + "up"), p.dense(SHARED + "down"))
        return Experts.of(
            self.router, self.shared_score, gate_up.unflatten(0, (E, -1)), down.unflatten(0, (E, -1)), *shared
        )
