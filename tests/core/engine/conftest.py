import sys
from pathlib import Path

import pytest
import structlog

from ninfer_core.engine import publisher, scoring, worker

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `engines`


@pytest.fixture(autouse=True)
def loggers_of_this_test(monkeypatch):
    """A logger keeps what it was first used with, and another test may have configured logging."""
    for module in (publisher, scoring, worker):
        monkeypatch.setattr(module, "log", structlog.get_logger())
