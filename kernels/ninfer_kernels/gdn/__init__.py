"""Gated DeltaNet: a causal convolution and the gated delta rule over the rows of a step, each with a state of its own.

A step either advances the states where they lie or leaves them alone and returns a record, from which ``*_fold``
advances them over the tokens that were kept.
"""

from . import reference
from .routes import conv_fold, conv_step, gates, rule_fold, rule_step
from .rows import OnDevice, Rows

__all__ = ["OnDevice", "Rows", "conv_fold", "conv_step", "gates", "reference", "rule_fold", "rule_step"]
