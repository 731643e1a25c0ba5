"""Gated DeltaNet: a causal convolution and the gated delta rule over the rows of a step, each with a state of its own.

A step either advances the states where they lie, or leaves them alone and keeps on a tape what ``fold`` needs to
advance them over the tokens that were kept.
"""

from . import batched, reference
from .layer import Layer, Parts, Tape
from .routes import fold, keep_last, step
from .rows import OnDevice, Rows

__all__ = ["Layer", "OnDevice", "Parts", "Rows", "Tape", "batched", "fold", "keep_last", "reference", "step"]
