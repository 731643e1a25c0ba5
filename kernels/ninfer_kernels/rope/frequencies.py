"""Inverse frequencies of rotary embeddings, one per pair of elements, in radians per token.

Computed in fp32 in the same order of operations as transformers does, so that angles far into a context agree.
"""

import math

import torch
from torch import Tensor


def plain(dim: int, theta: float) -> Tensor:
    """``theta^(-2r/dim)`` for r in [0, dim/2): [dim/2] fp32. Source: Su et al. 2021, eq. 15."""
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))


def linear(frequencies: Tensor, factor: float) -> Tensor:
    """Position interpolation: every frequency divided by ``factor``. Source: Chen et al. 2023."""
    return frequencies / factor


def llama3(
    frequencies: Tensor, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_context: int
) -> Tensor:
    """Llama 3.1's scaling: long waves divided by ``factor``, short ones kept, those between blended linearly.

    A wave is long above ``original_context / low_freq_factor`` tokens and short below ``original_context /
    high_freq_factor``. Source: transformers ``rope_type: llama3``, from Meta's llama-models.
    """
    long_wave = original_context / low_freq_factor
    short_wave = original_context / high_freq_factor
    waves = 2 * math.pi / frequencies
    scaled = torch.where(waves > long_wave, frequencies / factor, frequencies)
    share = (original_context / waves - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blended = (1 - share) * scaled / factor + share * scaled
    between = ~(waves < short_wave) & ~(waves > long_wave)
    return torch.where(between, blended, scaled)


def yarn(dim: int, theta: float, *, factor: float, original_context: int) -> Tensor:
    """YaRN: fast pairs keep their frequency, slow ones are divided by ``factor``, those between are blended.

    A pair is fast above 32 turns over ``original_context`` tokens and slow below one. Source: Peng et al. 2023, with
    the constants and the rounding of the limits to whole pairs that transformers has (``rope_type: yarn``).
    """

    def pair_of(turns: float) -> float:
        return dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), dim - 1)
    width = high - low if high != low else 0.001
    slow = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    fast = plain(dim, theta)
    return fast / factor * slow + fast * (1 - slow)


def yarn_attention_factor(factor: float) -> float:
    """What YaRN multiplies cosines and sines by."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def divided(frequencies: Tensor, factors: Tensor) -> Tensor:
    """Each frequency divided by its own factor ([dim/2]), as GGUF files store a scaling (``rope_freqs``)."""
    return frequencies / factors.to(frequencies)
