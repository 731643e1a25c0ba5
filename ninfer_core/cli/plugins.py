"""``ninfer plugins``: every installed plugin, what it offers, and why one does not."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ninfer_core import api, options
from ninfer_core.api import Command, Option
from ninfer_core.plugins import PluginRecord

OPTIONS = (Option(flag="--json", help="print one JSON object instead of text"),)
INDENT = " " * 4
WRAP = textwrap.TextWrapper(100, initial_indent=INDENT, subsequent_indent=INDENT * 2, break_on_hyphens=False)
USAGE = "ninfer plugins [--json] [--plugins A,B] [--no-plugin A,B]"


def run(argv: Sequence[str]) -> int:
    """List the plugins; 0 even when one is broken: saying so is what the command is for."""
    plugins = options.compose(argv)
    positionals, values = options.parse(argv, plugins, "plugins", own=OPTIONS, usage=USAGE)
    options.exactly(positionals, "ninfer plugins")
    if values["json"]:
        import msgspec

        records = [_fields(record) for record in plugins.records]
        print(msgspec.json.format(msgspec.json.encode({"api_level": api.API_LEVEL, "plugins": records})).decode())
        return 0
    print("\n".join(line for record in plugins.records for line in _lines(record)))
    return 0


def _fields(record: PluginRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in PluginRecord.__slots__}


def _lines(record: PluginRecord) -> list[str]:
    level = "no API level" if record.api_level is None else f"API {record.api_level}"
    source = f"{record.distribution or 'not installed as a distribution'}: {record.module}"
    lines = [f"{record.name:<16} {record.version or '-':<10} {level:<12} {record.status:<9} {source}"]
    if record.reason:
        lines.append(f"{INDENT}{record.reason}")
    for what, names in sorted(record.offers.items()):
        offered = f"{what.replace('_', ' ')}: {', '.join(names)}"
        lines += WRAP.wrap(offered)
    return lines


COMMAND = Command(name="plugins", summary="list the installed plugins and what each offers", run=run)
