"""``docs/contract-trace.md``: what the contract with users promises, and the tests that hold it.

``docs/contract/*.toml`` lists the promises of each section of the contract as ids with a gist; a test that holds some
of them says so with ``@pytest.mark.contract("chat.tools.custom", ...)``. A promise without a test has a reason there.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "contract"
MARK = ("pytest.mark.contract", "contract")  # the second where a module has named the first so
PAGE = ROOT / "docs" / "contract-trace.md"


class Section(NamedTuple):
    """One file: a title, the gists by id in file order, and why some of them have no test."""

    name: str
    title: str
    gists: dict[str, str]
    reasons: dict[str, str]


def sections() -> list[Section]:
    """All of them, by file name."""
    return [section(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]


def section(name: str, text: str) -> Section:
    read = tomllib.loads(text)
    return Section(name=name, title=read["section"], gists=read["gists"], reasons=read.get("reasons", {}))


def test_files() -> list[Path]:
    return sorted([*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "plugins").glob("*/tests/**/test_*.py")])


def marks(files: list[Path]) -> dict[str, list[str]]:
    """The tests that name each id, as ``folder/file.py::test``; the file alone where a whole module does."""
    found: dict[str, list[str]] = {}
    for path in files:
        text = path.read_text(encoding="utf-8")
        if MARK[0] in text:
            place = path.relative_to(ROOT).as_posix()
            for id, name in marks_in(ast.parse(text)):
                test = f"{place}::{name}" if name else place
                if test not in found.setdefault(id, []):
                    found[id].append(test)
    return found


def marks_in(node: ast.AST, name: str = "") -> Iterator[tuple[str, str]]:
    """Each id and the function or class it stands on or in."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        name = f"{name}::{node.name}" if name else node.name
    if isinstance(node, ast.Call) and ast.unparse(node.func) in MARK:
        for argument in node.args:
            assert isinstance(argument, ast.Constant), f"{name}: ids of a mark are written out"
            yield argument.value, name
    for child in ast.iter_child_nodes(node):
        yield from marks_in(child, name)


def document(read: list[Section], tests: dict[str, list[str]]) -> str:
    lines = [
        "# Contract trace",
        "",
        "Made by `make docs` from `docs/contract/*.toml` and the marks of the tests.",
    ]
    for one in read:
        lines += ["", f"## {one.title}", "", "| id | what is promised | tests |", "|---|---|---|"]
        for id, gist in one.gists.items():
            cell = "<br>".join(f"`{test}`" for test in tests.get(id, ())) or f"none: {one.reasons.get(id, '')}"
            lines.append(f"| `{id}` | {gist} | {cell} |".replace("|---", "| ---"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document(sections(), marks(test_files())))
