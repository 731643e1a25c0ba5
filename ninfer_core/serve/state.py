"""Where the server stands, and what frontends are offered: the loaded engine by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ninfer_core.api import ChatJob, Engine, Frontend, NotFound, OptionValues, Unavailable
from ninfer_core.api.http import Body
from ninfer_core.errors import ApiError

if TYPE_CHECKING:
    from ninfer_core.engine.engine import LocalEngine

Phase = Literal["loading", "ready", "stopping", "failed"]

REFUSALS = {
    "loading": ("model_loading", "The model is still loading. Retry shortly."),
    "stopping": ("service_unavailable", "The server is stopping."),
    "failed": ("service_unavailable", "The engine has failed; the server needs a restart."),
}


@dataclass(kw_only=True, slots=True)
class ServerState:
    """Read by every request, changed by ``run`` alone; both on the event loop."""

    phase: Phase = "loading"
    engine: LocalEngine | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # set once nothing new is answered any more

    def refusal(self) -> ApiError | None:
        """What a request gets instead of an answer now; None when the server is ready."""
        if self.phase == "ready":
            return None
        code, message = REFUSALS[self.phase]
        return Unavailable(code, message)


@dataclass(kw_only=True, slots=True)
class Context:
    """The ``FrontendContext`` of one server."""

    options: OptionValues
    version: str
    state: ServerState
    frontends: Sequence[Frontend] = field(default_factory=tuple)  # filled once all are open

    def engine(self, model: str | None, *, param: str = "model") -> Engine:
        engine = self._loaded()
        if model and model != engine.info.id:
            text = f"The model {model!r} is not served here; this server serves {engine.info.id!r}."
            raise NotFound("model_not_found", text, param=param)
        return engine

    def engines(self) -> tuple[Engine, ...]:
        return () if self.state.engine is None else (self.state.engine,)

    async def ended(self) -> None:
        await self.state.ended.wait()

    async def read_chat(self, body: Body) -> tuple[Engine, ChatJob]:
        for frontend in self.frontends:
            if frontend.read_chat is not None:
                return await frontend.read_chat(body)
        raise NotFound("chat_not_served", "No protocol served here reads a chat body.")

    def _loaded(self) -> Engine:
        if self.state.engine is None:
            raise self.state.refusal() or Unavailable()
        return self.state.engine
