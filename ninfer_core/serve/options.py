"""The server's own options. Imports nothing heavy: it is read at discovery."""

from __future__ import annotations

from ninfer_core.api.options import Option, integer, text

NOT_HERE = ("run", "bench")


def names(value: str) -> tuple[str, ...]:
    """``a,b`` -> ("a", "b"); at least one name."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ValueError("names separated by commas")
    return found


OPTIONS = (
    Option(
        flag="--host",
        metavar="H",
        parse=text,
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
        flag="--model-id",
        metavar="ID",
        parse=text,
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
)
