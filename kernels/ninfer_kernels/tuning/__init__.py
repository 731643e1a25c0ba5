"""Block sizes of kernels: which ones a launch takes on its device, and the search for better ones."""

from .facts import Facts, device_facts, stages_that_fit
from .search import GraphTimer, Measured, input_bytes, rotating_inputs, search
from .table import BUILT_IN, Blocks, Choice, Key, Shape, Table, table
from .tunable import Tunable

__all__ = [
    "BUILT_IN",
    "Blocks",
    "Choice",
    "Facts",
    "GraphTimer",
    "Key",
    "Measured",
    "Shape",
    "Table",
    "Tunable",
    "device_facts",
    "input_bytes",
    "rotating_inputs",
    "search",
    "stages_that_fit",
    "table",
]
