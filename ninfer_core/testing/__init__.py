"""The tests a plugin has to pass, as classes to subclass, and the fakes they run on. Needs pytest.

    from ninfer_core.testing import KVDtypeContract

    class TestHalf(KVDtypeContract):
        dtype = ninfer_kv_dtypes()[0]
        tolerance = 1e-3

Each class names the attributes a subclass sets; a failing test names what the plugin promises and does not keep.
"""

from . import explained  # first: what is imported after it says why an assertion failed
from .cache import SimpleCache
from .compose import compose
from .fakes import FakeContext, FakeEngine, FakeGeneration
from .family import ModelFamilyContract
from .frontend import ProtocolFrontendContract
from .importer import ImporterContract
from .kv import KVDtypeContract
from .opened import Opened
from .rig import Rig, make_step
from .spec import CopySourceContract, SpeculativeBackendContract
from .tools import ToolSyntaxContract, prompts
from .weights import WeightFormatContract

__all__ = [
    "CopySourceContract",
    "FakeContext",
    "FakeEngine",
    "FakeGeneration",
    "ImporterContract",
    "KVDtypeContract",
    "ModelFamilyContract",
    "Opened",
    "ProtocolFrontendContract",
    "Rig",
    "SimpleCache",
    "SpeculativeBackendContract",
    "ToolSyntaxContract",
    "WeightFormatContract",
    "compose",
    "explained",
    "make_step",
    "prompts",
]
