"""Command lines: ``parse`` turns a list of strings into positionals and values; it reads nothing else.

Rules of every command: ``--flag value`` or ``--flag=value``; a value that begins with ``--`` needs the second form, and
``--`` ends the options. A flag may stand once, unless its option is repeatable: no answer is silently dropped.
``--help`` and ``--version`` win over everything else on the line and arrive as ``Shown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Option, OptionValues, string
from ninfer_core.errors import NInferError, OptionError, PluginConflict
from ninfer_core.plugins import CORE, Plugins, load
from ninfer_core.registry import nearest

ENGINE_COMMANDS = ("serve", "run", "bench")
"""The commands that load a model: only they offer what plugins, the engine and the server declare."""


class Shown(NInferError):
    """Not an error: the line asked for ``--help`` or ``--version``. ``text`` goes to stdout, the exit status is 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One option as a command offers it, with the plugin it comes from."""

    option: Option
    owner: str

    @property
    def takes_value(self) -> bool:
        return self.option.parse is not None or self.option.choices_from is not None


def names(value: str) -> tuple[str, ...]:
    """``a,b`` -> ("a", "b"); ValueError for an empty name."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found):
        raise ValueError("names with commas between them: a,b")
    return found


CORE_OPTIONS = (
    Option(
        flag="--plugins",
        metavar="A,B",
        parse=names,
        default_text="NINFER_PLUGINS, else all",
        help="load these plugins only",
    ),
    Option(flag="--no-plugin", metavar="A,B", parse=names, repeatable=True, help="leave these plugins out"),
    Option(flag="--help", aliases=("-h",), help="show this text and exit"),
    Option(flag="--version", help="show the version and exit"),
)


def core_options() -> tuple[Option, ...]:
    """The options every command has."""
    return CORE_OPTIONS


def compose(argv: Sequence[str]) -> Plugins:
    """The plugins this command line asks for: ``--plugins`` and ``--no-plugin`` act before the rest can be parsed.

    Raises OptionError, UnknownChoice or PluginConflict.
    """
    only: tuple[str, ...] | None = None
    without: list[str] = []
    selecting = {offer.option.flag: offer for offer in _offers(CORE_OPTIONS, CORE) if offer.takes_value}
    rest = list(argv)
    while rest and (word := rest.pop(0)) != "--":
        flag, has_value, value = word.partition("=")
        if flag not in selecting:
            continue
        chosen = _parsed(selecting[flag], value if has_value else _next(flag, rest), None)
        if flag == "--plugins":
            only = chosen
        else:
            without.extend(chosen)
    return load(only, without)


def parse(
    argv: Sequence[str],
    plugins: Plugins,
    command: str,
    *,
    own: Iterable[Option] = (),
    usage: str | None = None,
) -> tuple[list[str], OptionValues]:
    """Positionals and values of one command line, defaults filled in.

    ``own``: options of this command alone. ``usage``: the first line of its help. Raises OptionError (one line: flag,
    value, what is accepted), UnknownChoice for a name no plugin offers, or Shown.
    """
    table = offered(plugins, command, own)
    words = {word: offer for offer in table for word in (offer.option.flag, *offer.option.aliases)}
    _answer_help(argv, words, table, command, usage, plugins)
    positionals: list[str] = []
    found: dict[str, list[tuple[str, Any]]] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            positionals += rest
            break
        if not word.startswith("-") or word == "-":
            positionals.append(word)
            continue
        flag, has_value, raw = word.partition("=")
        offer = words.get(flag)
        if offer is None:
            raise OptionError(_unknown(flag, words, command))
        if not offer.takes_value:
            if has_value:
                raise OptionError(f"{flag} takes no value; got {raw!r}")
            raw, value = "", True
        else:
            raw = raw if has_value else _next(flag, rest)
            value = _parsed(offer, raw, plugins)
        answers = found.setdefault(offer.option.flag, [])
        if answers and not offer.option.repeatable:
            shown = offer.takes_value and not offer.option.secret
            before = f" ({answers[0][0]!r}, then {raw!r})" if shown else ""
            raise OptionError(f"{offer.option.flag} is given twice{before}; give it once")
        answers.append((raw, value))
    return positionals, _values(table, found)


def offered(plugins: Plugins, command: str, own: Iterable[Option] = ()) -> list[Offer]:
    """What ``command`` accepts, in the order help lists it. PluginConflict when two options share a spelling."""
    table = _offers(own, command)
    if command in ENGINE_COMMANDS:
        declared = [Offer(option=o, owner=plugins.options.origin(o.flag)) for o in plugins.options]
        declared = [offer for offer in declared if command not in offer.option.hidden_in]
        table += sorted(declared, key=lambda offer: (offer.owner != CORE, offer.owner))
    table += [offer for offer in _offers(CORE_OPTIONS, CORE) if offer.option.flag not in plugins.options]
    owners: dict[str, str] = {}
    for offer in table:
        for word in (offer.option.flag, *offer.option.aliases):
            if word in owners:
                raise PluginConflict("option", word, owners[word], offer.owner)
            owners[word] = offer.owner
    return table


def exactly(positionals: Sequence[str], command: str, *wanted: str) -> list[str]:
    """The positionals, when there are as many as ``wanted`` names; a name in brackets ("[PROMPT]") may be missing."""
    needed = [name for name in wanted if not name.startswith("[")]
    if len(positionals) < len(needed):
        raise OptionError(f"{command} needs {needed[len(positionals)]}: {command} {' '.join(wanted)}")
    if len(positionals) > len(wanted):
        extra = positionals[len(wanted)]
        raise OptionError(
            f"{command} got {extra!r} beyond {' '.join(wanted) or 'its options'}; put quotes around a text"
        )
    return list(positionals)


def _offers(options: Iterable[Option], owner: str) -> list[Offer]:
    return [Offer(option=option, owner=owner) for option in options]


def _next(flag: str, rest: list[str]) -> str:
    """Take the value of ``flag`` from the words after it."""
    if not rest:
        raise OptionError(f"{flag} needs a value")
    if rest[0].startswith("--"):
        raise OptionError(f"{flag} needs a value before {rest[0]}; for a value that begins with -- write {flag}=VALUE")
    return rest.pop(0)


def _parsed(offer: Offer, raw: str, plugins: Plugins | None) -> Any:
    option = offer.option
    try:
        value = option.parse(raw) if option.parse is not None else string(raw)
    except ValueError as error:
        shown = "VALUE" if option.secret else repr(raw)
        raise OptionError(f"{option.flag} {shown} is not accepted; it takes {error}") from None
    except Exception as error:
        raise OptionError(f"plugin {offer.owner!r} failed to read {option.flag}: {type(error).__name__}") from error
    if option.choices_from is not None and plugins is not None:
        registry = getattr(plugins, option.choices_from)
        for name in (value,) if isinstance(value, str) else value:
            plugins.choose(registry, name)
    return value


def _values(table: Iterable[Offer], found: dict[str, list[tuple[str, Any]]]) -> OptionValues:
    values: dict[str, Any] = {}
    for offer in table:
        option, answers = offer.option, [value for _, value in found.get(offer.option.flag, [])]
        if option.repeatable:
            values[option.key] = tuple(answers) or option.default or ()
        elif answers:
            values[option.key] = answers[0]
        else:
            values[option.key] = False if option.default is None and not offer.takes_value else option.default
    given = frozenset(offer.option.key for offer in table if offer.option.flag in found)
    shown = [offer for offer in table if not offer.option.secret]
    words = [word for offer in shown for raw, _ in found.get(offer.option.flag, []) for word in _spelled(offer, raw)]
    return OptionValues(values, given, tuple(words))


def _spelled(offer: Offer, raw: str) -> tuple[str, ...]:
    """One answer as a command line has it."""
    flag = offer.option.flag
    if not offer.takes_value:
        return (flag,)
    return (f"{flag}={raw}",) if raw.startswith("--") else (flag, raw)


def _unknown(flag: str, words: Iterable[str], command: str) -> str:
    longer = sorted(word for word in words if word.startswith(flag))
    close = longer[0] if longer and len(flag) > 3 else nearest(flag, list(words))
    program = "ninfer-serve" if command == "serve" else f"ninfer {command}"
    hint = f"; did you mean {close}?" if close else f"; {program} --help lists what there is"
    return f"{flag} is not an option of {program}{hint}"


def _answer_help(
    argv: Sequence[str],
    words: dict[str, Offer],
    table: list[Offer],
    command: str,
    usage: str | None,
    plugins: Plugins,
) -> None:
    """Raise Shown when the line asks for help or the version before a ``--``."""
    asked = list(argv[: argv.index("--")] if "--" in argv else argv)
    # the word after a flag that takes a value is that value, unless it begins with "--"
    for before, word in zip(["", *asked], asked, strict=False):
        if word == "-h" and before in words and words[before].takes_value:
            continue
        if word in ("--help", "-h"):
            from ninfer_core.option_text import help_text

            raise Shown(help_text(table, command, usage, plugins))
        if word == "--version":
            raise Shown(version_line())


def version_line() -> str:
    """``ninfer <version>``."""
    from ninfer_core.serve.version import build_version

    return f"ninfer {build_version()}"
