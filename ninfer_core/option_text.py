"""What declarations read like: ``--help`` of a command and ``docs/options.md``, both made from the Option values."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ninfer_core.plugins import CORE, Plugins

if TYPE_CHECKING:
    from ninfer_core.api import Option
    from ninfer_core.options import Offer

WIDTH = 100  # columns of a help text
INDENT = 30  # column at which meanings begin


def help_text(table: Sequence[Offer], command: str, usage: str | None, plugins: Plugins) -> str:
    """The options of one command, grouped by who declares them; no trailing newline."""
    if usage is None:
        usage = "ninfer-serve [MODEL] [options]" if command == "serve" else f"ninfer {command} [options]"
    lines = [f"Usage: {usage}"]
    for owner in dict.fromkeys(offer.owner for offer in table):
        lines += ["", f"Options of {_owner(owner, command)}:"]
        for offer in table:
            if offer.owner == owner:
                lines += _entry(offer.option, plugins)
    return "\n".join(lines)


def markdown(table: Sequence[Offer], plugins: Plugins) -> str:
    """One table per owner: flag, meaning, default, and the commands that do not offer it."""
    lines = [
        "# Options",
        "",
        "Made by `make docs` from the declarations; change the `Option` beside the code that reads it.",
        "`ninfer-serve`, `ninfer run` and `ninfer bench` take all of them but those a row excepts; the other commands",
        "take the options of the last table and their own (`ninfer COMMAND --help`).",
    ]
    for owner in dict.fromkeys(offer.owner for offer in table):
        lines += ["", f"## {_owner(owner, 'every command')}", "", "| option | meaning | default |"]
        lines += ["|---|---|---|"]
        for offer in table:
            if offer.owner == owner:
                lines.append(_row(offer.option, plugins))
    return "\n".join(lines) + "\n"


def document(plugins: Plugins) -> str:
    """``docs/options.md`` of this set of plugins."""
    from ninfer_core.options import Offer, core_options

    declared = [Offer(option=option, owner=plugins.options.origin(option.flag)) for option in plugins.options]
    declared.sort(key=lambda offer: (offer.owner != CORE, offer.owner))
    shared = [Offer(option=option, owner="every command") for option in core_options()]
    return markdown(declared + shared, plugins)


def _owner(owner: str, command: str) -> str:
    if owner == CORE:
        return "the core"
    return command if owner == command else f"plugin {owner}"


def _spelling(option: Option) -> str:
    spelled = ", ".join((option.flag, *option.aliases))
    return f"{spelled} {option.metavar or 'VALUE'}" if _takes_value(option) else spelled


def _takes_value(option: Option) -> bool:
    return option.parse is not None or option.choices_from is not None


def _meaning(option: Option, plugins: Plugins) -> str:
    text = option.help
    if option.choices_from is not None:
        text += f" ({', '.join(getattr(plugins, option.choices_from).names()) or 'none installed'})"
    return text + ("; may be repeated" if option.repeatable else "")


def _default(option: Option) -> str:
    if option.default_text is not None:
        return option.default_text
    if not _takes_value(option):
        return ""
    if option.default is None or option.default == ():
        return "none" if option.repeatable else "unset"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    if isinstance(option.default, tuple):
        return ",".join(map(str, option.default))
    return str(option.default)


def _entry(option: Option, plugins: Plugins) -> list[str]:
    default = _default(option)
    meaning = _meaning(option, plugins) + (f" [default: {default}]" if default else "")
    head = "  " + _spelling(option)
    wrapped = textwrap.wrap(meaning, WIDTH - INDENT, break_on_hyphens=False)
    if len(head) + 2 > INDENT:
        return [head, *(" " * INDENT + line for line in wrapped)]
    return [head.ljust(INDENT) + wrapped[0], *(" " * INDENT + line for line in wrapped[1:])]


def _row(option: Option, plugins: Plugins) -> str:
    except_for = f" (not in {', '.join(option.hidden_in)})" if option.hidden_in else ""
    cells = (f"`{_spelling(option)}`", _meaning(option, plugins) + except_for, _default(option))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def main(argv: Sequence[str]) -> None:
    """Print the document for the plugins that ``argv`` selects."""
    from ninfer_core.options import compose

    sys.stdout.write(document(compose(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
