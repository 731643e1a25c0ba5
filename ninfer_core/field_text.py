"""``docs/protocols/<plugin>.md``: what a frontend does with every field of a body, made from the bodies themselves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence

import msgspec

from ninfer_core.api.fields import Checked, Endpoint, Only, ProtocolDocument, Treatment, Used, ignored, table


def document(made_from: ProtocolDocument) -> str:
    """The whole page."""
    lines = [
        f"# {made_from.title}",
        "",
        "Made by `make docs` from the structs that decode the bodies; change the field there.",
        "",
        *_paragraph(made_from.intro),
    ]
    for endpoint in made_from.endpoints:
        lines += _endpoint(endpoint)
    return "\n".join(lines).rstrip("\n") + "\n"


def _endpoint(endpoint: Endpoint) -> list[str]:
    lines = [f"## `{endpoint.route}`", "", *_paragraph(endpoint.summary)]
    lines += _tables(table(endpoint.body), endpoint.body)
    for name, part in endpoint.parts:
        lines += [f"### {name}", "", *_tables(table(part), part)]
    for note in endpoint.notes:
        lines += _paragraph(note)
    return lines


def _tables(fields: dict[str, Treatment], body: type[msgspec.Struct]) -> list[str]:
    needed = {field.name for field in msgspec.structs.fields(body) if field.required}
    lines = _rows(
        ("field", "accepted"),
        ((_name(name, needed), field.values) for name, field in fields.items() if isinstance(field, Used)),
    )
    lines += _rows(
        ("asks for nothing", "at", "anything else", "because"),
        (
            (
                _name(name, needed),
                field.values or "left out or null",
                f"`{field.code or f'{name}_not_supported'}`",
                field.why,
            )
            for name, field in fields.items()
            if isinstance(field, Only)
        ),
    )
    lines += _rows(
        ("no effect, but of its type", "because"),
        ((_name(name, needed), field.why) for name, field in fields.items() if isinstance(field, Checked)),
    )
    lines += _rows(
        ("not looked at", "because"),
        ((", ".join(f"`{name}`" for name in entry.names), entry.why) for entry in ignored(body)),
    )
    return lines


def _name(name: str, needed: set[str]) -> str:
    return f"`{name}` (required)" if name in needed else f"`{name}`"


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table and an empty line; nothing when there are no rows."""
    made = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if not made:
        return []
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *made, ""]


def _paragraph(text: str) -> list[str]:
    return [text, ""] if text else []


def main(argv: Sequence[str]) -> None:
    """Print the page of one plugin: ``python -m ninfer_core.field_text ninfer_openai.document``."""
    (module,) = argv
    sys.stdout.write(document(importlib.import_module(module).DOCUMENT))


if __name__ == "__main__":
    main(sys.argv[1:])
