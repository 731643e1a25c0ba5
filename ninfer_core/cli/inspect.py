"""``ninfer inspect MODEL``: what is in a model and whether it would load. Needs no GPU and reads no weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ninfer_core.api import Command, Option

if TYPE_CHECKING:
    from ninfer_core.weights.inspection import Report, TensorRow

USAGE = "ninfer inspect MODEL [--json]"
OPTIONS = (Option(flag="--json", help="print one JSON object instead of tables"),)
WIDEST = 100  # characters of a value in a table


def run(argv: Sequence[str]) -> int:
    """Print the report; 0, or 1 for a model that a start would refuse. ArtifactError for a file that is unreadable."""
    from ninfer_core import demo, options

    plugins = options.compose(argv)
    words, values = options.parse(argv, plugins, "inspect", own=OPTIONS, usage=USAGE)
    (path,) = options.exactly(words, "inspect", "MODEL")
    path = demo.resolve(path)
    import msgspec

    from ninfer_core.weights.inspection import inspect_model

    report = inspect_model(path, plugins)
    if values["json"]:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(report)) + "\n")
    return 1 if report.refusals else 0


COMMAND = Command(name="inspect", summary="what is in a model file, and whether it would load", run=run)


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    from ninfer_core.weights.names import plain, shaped

    kind = "NInfer artifact, container version 3" if report.kind == "ninfer" else f"read by importer {report.kind}"
    yield plain(report.path)
    yield from _table(
        {
            "kind": kind,
            "artifact id": report.artifact_id,
            "architecture": report.architecture,
            "family": report.family,
            "name": report.name,
            "parameters": f"{report.parameters:,}" if report.parameters else None,
            "weights": size(report.weight_bytes) if report.weight_bytes else None,
        }
    )
    yield from _section("Config", _table(report.config))
    yield from _section("Tensors", _tensors(report, shaped))
    yield from _section("Bytes per format", _table({name: size(n) for name, n in report.formats.items()}))
    yield from _section("Resources", _table({role: size(n) for role, n in report.resources.items()}))
    if len(report.files) > 1:
        yield from _section("Files", _table({file.name: size(file.payload_bytes) for file in report.files}))
    if report.description:
        yield from _section("Description", iter(report.description.splitlines()))
    yield from _section("Notes", (f"  {note}" for note in report.notes))
    yield from _section("A start with this model is refused", (f"  {refusal}" for refusal in report.refusals))


def size(count: int) -> str:
    """``84.9 MiB``."""
    if count < 1024:
        return f"{count} bytes"
    amount, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}"


def _section(title: str, body: Iterator[str]) -> Iterator[str]:
    found = list(body)
    if found:
        yield ""
        yield title
        yield from found


def _table(rows: Mapping[str, Any]) -> Iterator[str]:
    from ninfer_core.weights.names import plain

    shown = {plain(name): _value(value) for name, value in rows.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        yield f"  {name.ljust(width)}  {value}"


def _value(value: Any) -> str:
    import msgspec

    from ninfer_core.weights.names import plain

    text = plain(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _stored_as(row: TensorRow) -> str:
    from ninfer_core.weights.names import plain

    return plain(row.format) if row.divisors == 1 else f"{plain(row.format)}/{row.divisors}"


def _tensors(report: Report, shaped: Any) -> Iterator[str]:
    from ninfer_core.weights.names import plain

    rows = [
        (plain(t.name), _stored_as(t), shaped(t.shape), "?" if t.bytes is None else f"{t.bytes:,}", plain(t.origin))
        for t in report.tensors
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)] if rows else []
    for name, form, shape, count, origin in rows:
        yield (
            f"  {name.ljust(widths[0])}  {form.ljust(widths[1])}  {shape.ljust(widths[2])}  "
            f"{count.rjust(widths[3])}  {origin if origin != name else ''}".rstrip()
        )
