"""Who may come in: what is checked of every request, on every listener, before it reaches a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer_core.api import ApiError, HttpResponse, OptionValues
from ninfer_core.errors import Unauthorized

from . import cors
from .auth import ApiKey, is_open, is_preflight
from .hosts import HostRule, foreign_post, host_rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The checks of one server, the same on each of its listeners. Without any, everybody may come in."""

    key: ApiKey | None = None
    hosts: HostRule | None = None
    cors: bool = False

    @classmethod
    def of(cls, values: OptionValues) -> Gate:
        """The gate that the operator's options describe."""
        key = values["api_key"]
        return cls(
            key=None if key is None else ApiKey(key),
            hosts=host_rule(values["host"], values["allowed_host"]),
            cors=values["cors"],
        )

    def refusal(self, scope: Any, path: str) -> ApiError | None:
        """Why this request is not let in; None when it is. ``path`` is the one that routing uses.

        The key comes first: without it nothing else is told.
        """
        method, headers = scope["method"], scope["headers"]
        if self.key is not None and not is_open(method, path, headers) and not self.key.admits(headers):
            return Unauthorized()
        if self.hosts is not None:
            refusal = self.hosts.refusal(headers, scope.get("http_version", "1.1"))
            if refusal is not None:
                return refusal
        return None if self.cors else foreign_post(method, headers)

    def preflight(self, scope: Any) -> HttpResponse | None:
        """The answer to a preflight, whatever route it is for; None for other requests, and without ``--cors``."""
        if self.cors and is_preflight(scope["method"], scope["headers"]):
            return cors.preflight(scope["headers"])
        return None

    @property
    def marks(self) -> list[tuple[bytes, bytes]]:
        """Headers of every answer."""
        return list(cors.ON_EVERY_ANSWER) if self.cors else []
