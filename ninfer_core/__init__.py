"""NInfer: a local LLM inference server composed from plugins.

Importing this package is cheap; everything lives in its submodules (``docs/map.md``).
"""

__version__ = "0.1.0"
