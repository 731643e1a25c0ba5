"""``ninfer new-plugin KIND NAME``: a folder with a working plugin of that kind and its contract test."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from collections.abc import Sequence
from importlib import resources, util
from importlib.resources.abc import Traversable
from pathlib import Path

from ninfer_core import options
from ninfer_core.api import Command, Option, string
from ninfer_core.errors import OptionError, StartupError, UnknownChoice
from ninfer_core.plugins import Plugins
from ninfer_core.registry import nearest

KINDS = {  # kind -> the registry its plugin adds a name to
    "importer": "importers",
    "kv-dtype": "kv_dtypes",
    "model-family": "model_families",
    "protocol-frontend": "protocol_frontends",
    "speculative-backend": "speculative_backends",
    "weight-format": "weight_formats",
}
SUFFIX = ".tmpl"  # keeps linters and test runners out of the templates
OPTIONS = (Option(flag="--into", metavar="DIR", parse=string, default=".", help="the folder that gets the new one"),)
USAGE = f"ninfer new-plugin KIND NAME [--into DIR]; KIND: {', '.join(KINDS)}"


def run(argv: Sequence[str]) -> int:
    """Write the folder and say what to do next."""
    plugins = options.compose(argv)
    found, values = options.parse(argv, plugins, "new-plugin", own=OPTIONS, usage=USAGE)
    kind, name = options.exactly(found, "ninfer new-plugin", "KIND", "NAME")
    check_kind(kind)
    check_name(name, kind, plugins)
    folder = write(kind, name, Path(values["into"]))
    print(f"{folder}: a working {kind} plugin. Install it and run its contract test:")
    print(f"  pip install --no-build-isolation -e {folder}\n  pytest {folder}")
    return 0


def check_kind(kind: str) -> None:
    """UnknownChoice with the nearest kind."""
    if kind not in KINDS:
        raise UnknownChoice("plugin kind", kind, sorted(KINDS), nearest(kind, KINDS))


def check_name(name: str, kind: str, plugins: Plugins) -> None:
    """OptionError unless ``name`` can name a module and nobody has it."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name) or len(name) > 40:
        rule = "lower-case letters, digits and single underscores, a letter first, at most 40, no Python keyword"
        raise OptionError(f"plugin name {name!r} is not accepted; it takes {rule}")
    for record in plugins.records:
        if record.name == name:
            raise OptionError(f"plugin name {name!r} is taken by {record.distribution or record.module}")
    registry = getattr(plugins, KINDS[kind])
    if name in registry:
        raise OptionError(f"{registry.what} {name!r} is offered by plugin {registry.origin(name)!r}; take another name")
    if util.find_spec(f"ninfer_{name}") is not None:
        raise OptionError(f"plugin name {name!r} is taken: a module ninfer_{name} is installed")


def write(kind: str, name: str, into: Path) -> Path:
    """Create ``into/name`` whole or not at all; StartupError when it exists or cannot be written."""
    target = into / name
    if target.exists():
        raise StartupError(f"{target} exists; choose another name or --into DIR")
    words = {
        "@name@": name,
        "@module@": f"ninfer_{name}",
        "@dist@": f"ninfer-{name.replace('_', '-')}",
        "@flag@": name.replace("_", "-"),
        "@Name@": "".join(part.capitalize() for part in name.split("_")),
    }
    templates = resources.files("ninfer_core.cli") / "templates"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=into) as scratch:
            draft = Path(scratch) / name
            for source in (templates / "common", templates / kind):
                _fill(source, draft, words)
            shutil.move(draft, target)
    except OSError as error:
        raise StartupError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def _fill(source: Traversable, folder: Path, words: dict[str, str]) -> None:
    """Copy a template folder, the words replaced in names and contents."""
    folder.mkdir(exist_ok=True)
    for item in source.iterdir():
        path = folder / _replaced(item.name.removesuffix(SUFFIX), words)
        if item.is_dir():
            _fill(item, path, words)
        elif item.name.endswith(SUFFIX):
            path.write_text(_replaced(item.read_text(encoding="utf-8"), words), encoding="utf-8")


def _replaced(content: str, words: dict[str, str]) -> str:
    for word, replacement in words.items():
        content = content.replace(word, replacement)
    return content


COMMAND = Command(name="new-plugin", summary="write a folder with a working plugin and its contract test", run=run)
