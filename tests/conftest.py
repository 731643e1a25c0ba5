"""Without a GPU the Triton kernels run under their interpreter, which has to be chosen before they are imported."""

import os

import pytest
import structlog
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="module")
def logging_of_this_file():
    """What another file configured, a level that drops lines for one, is not heard here."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def logging_of_this_test():
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def device() -> torch.device:
    """Where a Triton kernel runs here."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
