"""Verification of drafts."""
