"""Text helpers for model families: the tokenizer of a ``tokenizer.json``. Loads the ``tokenizers`` library."""

from ninfer_core.text.tokenizer import HFTokenizer

__all__ = ["HFTokenizer"]
