"""The scripted family against the contracts the core ships."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ninfer_core.api import Checkpoint, CopySource
from ninfer_core.testing import CopySourceContract, ImporterContract, ModelFamilyContract
from ninfer_scripted import FAMILY, ninfer_importers
from ninfer_scripted.drafts import ScriptedDrafts
from ninfer_scripted.script import parse

SCRIPT = {
    "name": "contract",
    "replies": [
        {"match": "a", "text": "alpha", "draft": [3, 0, 1]},
        {"match": "b", "pieces": ["be", "ta<think>"], "finish": "never"},
    ],
    "default": {"text": "OK.", "draft": [1, 5]},
}


def write(directory: Path, content: object = SCRIPT) -> str:
    path = directory / "script.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return f"scripted:{path}"


class TestFamily(ModelFamilyContract):
    family = FAMILY
    only = frozenset({"scripted"})
    tolerance = 0.0

    def write_model(self, directory: Path) -> str:
        return write(directory)


class TestImporter(ImporterContract):
    importer = ninfer_importers()[0]

    def good(self, directory: Path) -> str:
        return write(directory)

    def bad(self, directory: Path) -> Mapping[str, str]:
        missing = f"scripted:{directory / 'missing.json'}"
        folder = f"scripted:{directory}"
        return {"a missing file": missing, "a folder": folder, "not JSON": write(directory, "{")}


class TestDrafts(CopySourceContract):
    def make_source(self) -> CopySource:
        return ScriptedDrafts(parse(json.dumps(SCRIPT).encode(), "script.json"))


def test_what_inspect_prints_holds_every_reply() -> None:
    class Stored:
        path = "script.json"

        def resource(self, role: str) -> bytes | None:
            return json.dumps(SCRIPT).encode() if role == "script.json" else None

    checkpoint: Checkpoint = Stored()  # type: ignore[assignment]
    assert FAMILY.describe is not None
    assert FAMILY.describe(checkpoint).splitlines() == [
        "script contract: 2 replies, 272 tokens (2 from pieces)",
        '  to "a"',
        '    says "alpha"',
        "    then stops; drafts 3, 0, 1",
        '  to "b"',
        '    says "beta<think>"',
        "    then repeats the last token",
        "  to anything else",
        '    says "OK."',
        "    then stops; drafts 1, 5",
    ]
