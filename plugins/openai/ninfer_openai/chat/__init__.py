"""Chat Completions: the body, what it becomes, what goes back."""

from .calls import Calls
from .render import Rendering, chunks, completion
from .to_job import Leniency, to_job
from .tools import ToolSet
from .types import ChatBody

__all__ = ["Calls", "ChatBody", "Leniency", "Rendering", "ToolSet", "chunks", "completion", "to_job"]
