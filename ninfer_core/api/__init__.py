"""All that a plugin imports: ``hookimpl``, the descriptors of each category, the values that cross, the errors.

Importing this module loads neither torch nor a web framework: descriptors are read at discovery. What a plugin does
once
it is chosen may use ``ninfer_core.api.nn`` (torch) and ``ninfer_core.api.http``.
"""

import pluggy

from ninfer_core.errors import (
    ApiError,
    ArtifactError,
    ContextLengthExceeded,
    InvariantError,
    NInferError,
    NotFound,
    OptionError,
    Overloaded,
    QueueTimeout,
    Refusal,
    RequestFailed,
    StartupError,
    Unavailable,
)

from .commands import Command
from .families import (
    ModelFamily,
    Preset,
    PromptFormat,
    ReasoningSyntax,
    StatePart,
    Tokenizer,
)
from .frontends import Frontend, FrontendContext, HttpRequest, HttpResponse, ProtocolFrontend, Route
from .jobs import (
    ChatJob,
    Delta,
    Done,
    Engine,
    Event,
    Generation,
    Message,
    ModelInfo,
    Part,
    Progress,
    RawJob,
    Result,
    SamplingRequest,
    Started,
    Timings,
    TokenLogprob,
    ToolCall,
)
from .kv import KVCodec, KVDtype, KVGeometry, Plane, RowCodec
from .options import Option, OptionValues, boolean, choice, floating, integer, string
from .spec import CopySource, Draft, DraftRequest, SpecContext, SpeculativeBackend
from .weights import (
    Checkpoint,
    EncodedTensor,
    Importer,
    ImportPlan,
    Recipe,
    Source,
    SourceTensor,
    WeightFormat,
)

API_LEVEL = 1
"""The level of this interface. A plugin states the level it was written for as ``NINFER_API``; it rises when a plugin
written for the previous one could break."""

hookimpl = pluggy.HookimplMarker("ninfer")

__all__ = [
    "API_LEVEL",
    "ApiError",
    "ArtifactError",
    "ChatJob",
    "Checkpoint",
    "Command",
    "ContextLengthExceeded",
    "CopySource",
    "Delta",
    "Done",
    "Draft",
    "DraftRequest",
    "EncodedTensor",
    "Engine",
    "Event",
    "Frontend",
    "FrontendContext",
    "Generation",
    "HttpRequest",
    "HttpResponse",
    "ImportPlan",
    "Importer",
    "InvariantError",
    "KVCodec",
    "KVDtype",
    "KVGeometry",
    "Message",
    "ModelFamily",
    "ModelInfo",
    "NInferError",
    "NotFound",
    "Option",
    "OptionError",
    "OptionValues",
    "Overloaded",
    "Part",
    "Plane",
    "Preset",
    "Progress",
    "PromptFormat",
    "ProtocolFrontend",
    "QueueTimeout",
    "RawJob",
    "ReasoningSyntax",
    "Recipe",
    "Refusal",
    "RequestFailed",
    "Result",
    "Route",
    "RowCodec",
    "SamplingRequest",
    "Source",
    "SourceTensor",
    "SpecContext",
    "SpeculativeBackend",
    "Started",
    "StartupError",
    "StatePart",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "ToolCall",
    "Unavailable",
    "WeightFormat",
    "boolean",
    "choice",
    "floating",
    "hookimpl",
    "integer",
    "string",
]
