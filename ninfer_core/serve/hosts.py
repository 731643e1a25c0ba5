"""Pages a browser has open elsewhere: they may neither rebind a name of theirs to this server, nor post to it unasked.

A page whose name is made to resolve to 127.0.0.1 speaks to a local server as its own origin; its Host header still
holds the page's name. A page of any other origin may send what a form can send, without asking first.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from ninfer_core.api import ApiError

from .auth import Headers

AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{0,5})?")
NAME = re.compile(r"[a-z0-9._-]*[a-z0-9]")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class HostRule:
    """Which names a request's Host may hold: loopback's own and the allowed ones, with any port."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(_spelled_once(name.lower()) for name in allowed)

    def refusal(self, headers: Headers, http_version: str = "1.1") -> ApiError | None:
        """400 for no Host or an unreadable one (RFC 9112), 403 for a name that is not let in.

        HTTP/1.0 may leave Host out; no browser does.
        """
        sent = [value for name, value in headers if name == b"host"]
        if not sent and http_version == "1.0":
            return None
        name = host_name(sent[0]) if len(sent) == 1 else None
        if name is None:
            return ApiError("invalid_host", "A request needs one Host header that holds a name or an address.")
        if is_loopback(name) or name in self._allowed:
            return None
        text = f"The host name {name!r} is not served here. To let it in, start the server with --allowed-host {name}."
        return ApiError("host_not_allowed", text, status=403)


def host_rule(bound: str, allowed: Iterable[str]) -> HostRule | None:
    """The rule of a server bound to ``bound``; None when every name is let in.

    There is a rule on loopback addresses, and on others once ``allowed`` names something. The name the server was
    told to bind is one of the allowed.
    """
    names = tuple(allowed)
    return HostRule((*names, bound)) if names or binds_loopback(bound) else None


def foreign_post(method: str, headers: Headers) -> ApiError | None:
    """403 for what a page of another origin can send without a preflight and could change something here.

    Clients that are no browsers send no Origin. Browsers always do, and may not call a body JSON unasked.
    """
    if method in SAFE_METHODS:
        return None
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value.strip().lower())
    origins, own = values.get(b"origin"), values.get(b"host", [b""])[0]
    # a proxy in front may speak TLS for this server
    if origins is None or origins in ([b"http://" + own], [b"https://" + own]) or _is_json(values):
        return None
    text = "A page of another origin may only send application/json here, or needs a server started with --cors."
    return ApiError("origin_not_allowed", text, status=403)


def host_name(value: bytes) -> str | None:
    """The name in a Host header, lower case, without port and brackets; None when it is none."""
    found = AUTHORITY.fullmatch(value.decode("latin-1").strip().lower())
    return None if found is None else _spelled_once(found[1].strip("[]")) or None


def allowed_name(value: str) -> str:
    """An ``--allowed-host``: a name or an address, without scheme and port."""
    name = _spelled_once(value.lower().strip("[]"))
    if not NAME.fullmatch(name) and _address(name) is None:
        raise ValueError("a host name or address without scheme and port (ninfer.example, 192.168.1.5)")
    return name


def is_loopback(name: str) -> bool:
    """``localhost``, names below it, 127.0.0.0/8 and ::1."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def binds_loopback(bound: str) -> bool:
    """Whether listening on ``bound`` is listening to this machine alone."""
    try:
        found = socket.getaddrinfo(bound, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0]
    except (OSError, UnicodeError, IndexError):
        return is_loopback(bound)
    return is_loopback(str(found))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _spelled_once(name: str) -> str:
    """One spelling per address, and names without the root's dot."""
    return str(_address(name) or name.rstrip("."))


def _is_json(values: dict[bytes, list[bytes]]) -> bool:
    kinds = values.get(b"content-type", [])
    kind = kinds[0].partition(b";")[0].strip() if len(kinds) == 1 else b""
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))
