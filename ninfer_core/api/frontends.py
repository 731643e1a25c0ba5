"""Protocol frontends: HTTP routes in one protocol's words. A frontend sees decoded requests and returns responses; the
core owns the connection, readiness, authentication, disconnects and framing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .options import Option, OptionValues

if TYPE_CHECKING:
    from ninfer_core.errors import ApiError

    from .bodies import Body
    from .jobs import ChatJob, Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    method: str
    path: str  # without a doubled /v1
    params: Mapping[str, str]  # path parameters
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: Body  # a large one is not in memory; ``http.decode`` and ``http.beside`` take either
    request_id: str


@dataclass(kw_only=True, slots=True)
class HttpResponse:
    """A whole body, or a stream of already framed chunks. Closing the stream early must cancel what feeds it.

    The status line of a stream goes out with its first chunk or its first heartbeat: an ApiError raised before either
    is an ordinary error response, one raised later becomes ``late_error`` (None: the connection is cut).
    """

    status: int = 200
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    heartbeat: bytes = b""  # sent after five seconds without a chunk; empty: nothing is
    late_error: Callable[[ApiError], bytes] | None = None


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """``path`` may hold parameters: ``/v1/models/{model_id:path}``. GET also answers HEAD. ``/v1/...`` also answers
    under ``/v1/v1/...``."""

    method: str
    path: str
    handler: Handler
    summary: str = ""  # one line for the endpoint index at ``GET /v1``


class FrontendContext(Protocol):
    """What the core offers to a frontend when it is opened."""

    options: OptionValues
    version: str

    def engine(self, model: str | None, *, param: str = "model") -> Engine:
        """The engine that serves this model name (None or empty: the loaded one); NotFound ``model_not_found``."""

    def engines(self) -> tuple[Engine, ...]:
        """Every loaded engine."""

    async def ended(self) -> None:
        """Returns once the server stops: streams that would go on for ever end then."""

    async def read_chat(self, body: Body) -> tuple[Engine, ChatJob]:
        """A Chat Completions body, read by the frontend that offers ``read_chat``; NotFound when none is loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontend:
    """An opened frontend. ``envelope(error, request_id)`` renders any refusal raised by its routes, and the core's own
    refusals (404, 405, 413, loading) for paths under ``prefixes``."""

    routes: tuple[Route, ...]
    envelope: Callable[[ApiError, str], HttpResponse]
    prefixes: tuple[str, ...]  # path prefixes whose unknown routes answer in this envelope; the longest match wins
    request_id_header: str = "x-request-id"
    read_chat: Callable[[Body], Awaitable[tuple[Engine, ChatJob]]] | None = None  # for ``FrontendContext.read_chat``


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolFrontend:
    name: str
    summary: str
    open: Callable[[FrontendContext], Frontend]
    options: tuple[Option, ...] = ()
