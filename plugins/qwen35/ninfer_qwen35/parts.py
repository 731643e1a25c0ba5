"""What every block is built with: the kernels of this runtime, the parameters under one prefix, rotary angles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api.nn import Linear, Runtime, Weights
from ninfer_kernels import activation, gdn, moe, norm, rope
from ninfer_kernels.rope import frequencies

from .config import Qwen35Config, interleaved_axes
from .rope_plan import RopePlan, rope_plan


class Kernels:
    """Each family of operations as its routes, or with ``--reference-ops`` as its definitions."""

    def __init__(self, runtime: Runtime) -> None:
        def chosen(module: Any) -> Any:
            return module.reference if runtime.reference else module

        self.norm, self.rope, self.activation = chosen(norm), chosen(rope), chosen(activation)
        self.gdn, self.moe = chosen(gdn), chosen(moe)


class Parameters:
    """The parameters under one prefix, by their names within it."""

    def __init__(self, prefix: str, shapes: Mapping[str, tuple[int, ...]], weights: Weights) -> None:
        self.prefix, self.shapes, self.weights = prefix, shapes, weights

    def tensor(self, name: str) -> Tensor:
        return self.weights.tensor(self.prefix + name, self.shapes[name])

    def centred(self, name: str) -> Tensor:
        """A norm weight that is stored as its distance from one."""
        return 1.0 + self.tensor(name)

    def linear(self, *names: str) -> Linear:
        """One operation over the rows of all ``names``, in order."""
        return self.weights.linear([self.prefix + name for name in names], [self.shapes[name] for name in names])

    def packed(self, *names: str) -> Linear | None:
        """The same on packed bytes, where all are stored in one format that has such an operation."""
        return self.weights.packed([self.prefix + name for name in names], [self.shapes[name] for name in names])

    def dense(self, *names: str) -> Tensor:
        """The same as one matrix, decoded whatever it is stored as."""
        return self.weights.dense([self.prefix + name for name in names], [self.shapes[name] for name in names])


class Rotary:
    """Angles of positions, as the runtime's options say."""

    def __init__(self, config: Qwen35Config, runtime: Runtime) -> None:
        attention = config.attention
        self.rope: Any = rope.reference if runtime.reference else rope
        self.plan: RopePlan = rope_plan(config, runtime.options, runtime.max_context)
        dim, theta, factor = attention.rotary_dim, attention.rope.rope_theta, self.plan.yarn_factor
        if factor > 1:
            turns = frequencies.yarn(dim, theta, factor=factor, original_context=self.plan.native_context)
        else:
            turns = frequencies.plain(dim, theta)
        self.frequencies = turns.to(runtime.device)
        self.attention_factor = frequencies.yarn_attention_factor(factor)
        self.axes = torch.tensor(interleaved_axes(attention.rope.mrope_section), device=runtime.device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: [T], the same on every axis, or [3, T] -> cosines and sines as ``rope.rotate`` takes them."""
        if self.plan.linear_factor > 1:
            positions = self.rope.interpolated(positions, self.plan.linear_from, self.plan.linear_factor)
        on_axes = positions if positions.dim() == 2 else positions.expand(3, -1)
        return self.rope.axis_rotation(on_axes, self.frequencies, self.axes, self.attention_factor)  # type: ignore[no-any-return]
