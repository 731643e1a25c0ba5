"""Completions of a raw prompt, in OpenAI's legacy shape."""

from .render import chunks, completion, prompt_text
from .to_job import to_job
from .types import CompletionBody

__all__ = ["CompletionBody", "chunks", "completion", "prompt_text", "to_job"]
