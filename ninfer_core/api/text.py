"""Text helpers for model families: a checkpoint's text files, the tokenizer of a ``tokenizer.json``, tool calls written
as tags. Loads the ``tokenizers`` library."""

from ninfer_core.text.files import TextFiles
from ninfer_core.text.tag_calls import TagToolSyntax
from ninfer_core.text.tokenizer import HFTokenizer

__all__ = ["HFTokenizer", "TagToolSyntax", "TextFiles"]
