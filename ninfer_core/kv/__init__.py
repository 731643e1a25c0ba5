"""Paged KV: page accounting and the stored planes."""
