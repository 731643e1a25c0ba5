"""Tensor operations; each has a plain torch reference beside its fast routes."""
