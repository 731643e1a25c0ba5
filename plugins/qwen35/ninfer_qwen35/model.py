"""The text model: blocks of Gated DeltaNet and gated attention, and the head.

Legend: T tokens of this step, B rows, L wanted logits, N hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import CopySource, StatePart
from ninfer_core.api.nn import Cache, Runtime, Step, StepOutput, Weights
from ninfer_kernels.gdn import OnDevice, Parts, Rows, Tape

from .blocks import Block, Context, DeltaNet, GatedAttention, conv_part, delta_part
from .config import Qwen35Config
from .mtp import MtpBlock
from .names import block_shapes, inventory, layer_prefix
from .parts import Kernels, Parameters, Rotary

HIDDEN = "hidden"
"""The state part that holds the final-normed hidden row of the last token: the next MTP step begins with it."""


def state_layout(c: Qwen35Config, runtime: Runtime) -> tuple[StatePart, ...]:
    """Convolution histories, delta states (value row by key column), the frontier's hidden row."""
    activations = str(runtime.dtype).removeprefix("torch.")
    kept = "float16" if runtime.options.get("gdn_state_fp16") else "float32"
    out: list[StatePart] = []
    if c.gdn_layers:
        g = c.gdn
        history, matrix = (g.taps - 1, g.channels), (g.value_heads, g.value_dim, g.key_dim)
        out += [StatePart(name=conv_part(i), dtype=activations, shape=history, layer=i) for i in c.gdn_layers]
        out += [StatePart(name=delta_part(i), dtype=kept, shape=matrix, layer=i) for i in c.gdn_layers]
    return (*out, StatePart(name=HIDDEN, dtype=activations, shape=(c.hidden_size,)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """What ``fold`` needs of a provisional step."""

    tape: Tape | None
    hidden: Tensor  # [T, N] final-normed
    rows: Rows


class Qwen35Model:
    """``api.nn.Model``."""

    draft_source: CopySource | None = None

    def __init__(self, config: Qwen35Config, weights: Weights, runtime: Runtime) -> None:
        self.config, self.runtime = config, runtime
        self.kernels = Kernels(runtime)
        self._known: tuple[Mapping[str, Tensor], Parts] | None = None
        # first: options that exclude each other are refused before a weight is read
        self.rotary = Rotary(config, runtime) if config.rope_parameters is not None else None
        shapes = inventory(config)
        self.embed = weights.embedding("text/token_embedding", shapes["text/token_embedding"])
        self.blocks = [self._block(i, kind, weights) for i, kind in enumerate(config.layer_types)]
        self.records_steps = all(block.ffn.records_steps for block in self.blocks)
        self.final_norm = 1.0 + weights.tensor("text/final_norm", shapes["text/final_norm"])
        head = "text/token_embedding" if config.tie_word_embeddings else "text/output_head"
        self.head = weights.linear(head, shapes[head])

    def _block(self, i: int, kind: str, weights: Weights) -> Block:
        p = Parameters(layer_prefix(i), block_shapes(self.config, kind), weights)
        if kind == "linear_attention":
            return Block(DeltaNet(i, self.config, p, self.kernels), self.config, p, self.kernels)
        cache_layer = self.config.attention_layers.index(i)
        return Block(GatedAttention(cache_layer, self.config, p, self.kernels), self.config, p, self.kernels)

    @torch.inference_mode()
    def forward(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> StepOutput:
        """Logits [L, V] of the wanted tokens; what follows the last mixer runs for those and the rows' ends."""
        context = self.context(step, cache, state)
        x = self.embed(step.token_ids)
        mixed = self.blocks[0].mix(x, context)
        for before, block in pairwise(self.blocks):
            mixed = block.mix(x, context, before.feed_forward(x, mixed))
        wanted = step.logit_index
        if step.provisional:
            hidden = self._ended(x, mixed)
            kept = Records(tape=context.tape, hidden=hidden, rows=context.rows)
            if step.on_device is not None:
                # all tokens are wanted, in order, and whoever draws widens the logits
                return StepOutput(logits=self.head(hidden), records=kept)
            return StepOutput(logits=self._logits(hidden.index_select(0, wanted)), records=kept)
        ends = torch.tensor(step.starts[1:], device=x.device) - 1
        needed = torch.cat((wanted, ends))
        hidden = self._ended(x.index_select(0, needed), mixed.index_select(0, needed))
        context.rows.put(state[HIDDEN], hidden[wanted.shape[0] :])
        return StepOutput(logits=self._logits(hidden[: wanted.shape[0]]))

    @torch.inference_mode()
    def fold(self, step: Step, records: Any, kept: Sequence[int] | Tensor, state: Mapping[str, Tensor]) -> None:
        """Convolutions, delta states and the hidden row move over ``kept[b]`` tokens; 0 leaves a row's bits alone."""
        rows = records.rows
        if (parts := self._parts(state)) is not None:
            self.kernels.gdn.fold(records.tape, parts, rows, kept)
        self.kernels.gdn.keep_last(records.hidden, state[HIDDEN], rows, kept)

    def context(self, step: Step, cache: Cache, state: Mapping[str, Tensor]) -> Context:
        device = step.token_ids.device
        # a model without full attention has no angles to turn by
        angles = self.rotary(step.positions) if self.rotary is not None else (torch.empty(0), torch.empty(0))
        on = step.on_device
        uploaded = None if on is None else OnDevice(on.firsts, on.widths, on.state_slots)
        rows = Rows(step.starts, step.state_slots, device, uploaded)
        parts = self._parts(state)
        tape = Tape.of(len(parts)) if parts is not None and step.provisional else None
        return Context(step=step, angles=angles, rows=rows, cache=cache, parts=parts, tape=tape)

    def _parts(self, state: Mapping[str, Tensor]) -> Parts | None:
        """The states of the layers of Gated DeltaNet; found once for each pool of states."""
        layers = self.config.gdn_layers
        if not layers:
            return None
        if self._known is None or self._known[0] is not state:
            found = Parts([state[conv_part(i)] for i in layers], [state[delta_part(i)] for i in layers])
            self._known = (state, found)
        return self._known[1]

    def open_mtp(self, weights: Weights) -> MtpBlock:
        """The multi-token prediction block of the same checkpoint; ArtifactError where it has none."""
        return MtpBlock(self, weights)

    def _ended(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The last block's second half and the final norm."""
        owed = self.blocks[-1].feed_forward(x, mixed)
        return self.kernels.norm.add_rms_norm(x, owed, self.final_norm, self.config.rms_norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        """fp32."""
        if not hidden.shape[0]:
            return torch.empty(0, self.head.rows, device=hidden.device)
        return self.head(hidden).float()
