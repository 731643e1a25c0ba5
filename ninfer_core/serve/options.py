"""The server's own options. Imports nothing heavy: it is read at discovery."""

from __future__ import annotations

from ninfer_core.api.options import Option, integer, string

from .hosts import allowed_name

NOT_HERE = ("run", "bench")


def names(value: str) -> tuple[str, ...]:
    """``a,b`` -> ("a", "b"); at least one name."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ValueError("names separated by commas")
    return found


def key(value: str) -> str:
    """An API key: what a header value can carry as it is."""
    if not value or value != value.strip() or any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("a text without control characters and without spaces around it")
    return value


OPTIONS = (
    Option(
        flag="--host",
        metavar="H",
        parse=string,
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 or :: is every interface",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--port",
        metavar="N",
        parse=integer(0, 65535),
        default=8080,
        help="port to listen on; 0 takes a free one",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--stats-port",
        metavar="N",
        parse=integer(0, 65535),
        default_text="off",
        help="also serve /health, /stats, /v1/load and /metrics on this port of the same address; 0 takes a free one",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--model-id",
        metavar="ID",
        parse=string,
        default_text="the model's stored name, else its architecture",
        help="public model id that requests name and responses carry",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--frontends",
        metavar="A,B",
        parse=names,
        default_text="every installed one",
        choices_from="protocol_frontends",
        help="HTTP protocols to serve",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--max-request-mib",
        metavar="N",
        parse=integer(1, 65536),
        default=384,
        help="largest request body, in MiB, before it is parsed",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--api-key",
        metavar="KEY",
        parse=key,
        default_text="none: everybody may use the server",
        help="what requests have to send as bearer token or x-api-key; GET /health and preflights need none",
        hidden_in=NOT_HERE,
        secret=True,
    ),
    Option(
        flag="--cors",
        default=False,
        help="let pages of any origin use the server from a browser",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--allowed-host",
        metavar="NAME",
        parse=allowed_name,
        default_text="loopback names where --host is loopback, else every name",
        repeatable=True,
        help="a further name, without port, that requests may call this server by in their Host header",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--lenient-tools",
        default=False,
        help="drop tool definitions that cannot be honoured (hosted, remote, deferred) instead of refusing the "
        "request; the response header X-NInfer-Dropped-Tools names them",
        hidden_in=NOT_HERE,
    ),
)
