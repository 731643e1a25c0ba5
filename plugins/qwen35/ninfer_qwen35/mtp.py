"""The multi-token prediction block: one attention block that reads the model's hidden rows and the tokens after them.

It has a cache layer of its own, with an entry for every position of the text model. Token ``t`` of a call pairs the
final-normed hidden row of position ``p_t`` with the token at ``p_t + 1``; its output predicts the token at ``p_t + 2``,
and stands in for the hidden row of ``p_t + 1`` when drafts are chained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ninfer_core.api.nn import Cache, Step, Weights
from ninfer_kernels.gdn import Rows

from .blocks import Block, Context, GatedAttention
from .names import MTP_LAYER, block_shapes, mtp_inventory
from .parts import Parameters, Rotary

if TYPE_CHECKING:
    from .model import Qwen35Model


class MtpBlock:
    """Embedding and head are the text model's."""

    def __init__(self, model: Qwen35Model, weights: Weights) -> None:
        config, kernels = model.config, model.kernels
        top = Parameters("mtp/", {name.removeprefix("mtp/"): s for name, s in mtp_inventory(config).items()}, weights)
        layer = Parameters(MTP_LAYER, block_shapes(config, "full_attention"), weights)
        self.embed, self.head, self.rms_norm = model.embed, model.head, kernels.norm.rms_norm
        self.eps = config.rms_norm_eps
        self.rotary = model.rotary if model.rotary is not None else Rotary(config, model.runtime)
        self.input_projection = top.linear("input_projection")
        self.embedding_norm, self.hidden_norm = top.centred("embedding_norm"), top.centred("hidden_norm")
        self.final_norm = top.centred("final_norm")
        self.block = Block(GatedAttention(0, config, layer, kernels), config, layer, kernels)

    @torch.inference_mode()
    def forward(self, step: Step, next_ids: Tensor, hidden_TN: Tensor, cache: Cache) -> Tensor:
        """[T, N]: what predicts the token two past each position, after the block's own final norm.

        ``step`` describes positions and the cache of this block; its token ids are not read. next_ids: [T] the token
        after each position; hidden_TN: the final-normed hidden row of each position, or this block's output for the
        position before.
        """
        rows = Rows(step.starts, step.state_slots, next_ids.device)
        context = Context(step=step, angles=self.rotary(step.positions), rows=rows, cache=cache)
        embedded = self.rms_norm(self.embed(next_ids), self.embedding_norm, self.eps)
        read = self.rms_norm(hidden_TN, self.hidden_norm, self.eps)
        x = self.input_projection(torch.cat((embedded, read), dim=-1))
        mixed = self.block.mix(x, context)
        return self.rms_norm(self.block.finish(x, mixed), self.final_norm, self.eps)

    @torch.inference_mode()
    def logits(self, output_TN: Tensor) -> Tensor:
        """[T, V] fp32 from what ``forward`` gave."""
        return self.head(output_TN).float()
