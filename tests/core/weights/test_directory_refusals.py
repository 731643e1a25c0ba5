"""Every rule of the directory (``spec/artifact.md`` §20, rows 7-23), each with its text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_core.api import ArtifactError
from ninfer_core.weights.container import Container

Edit = Callable[[dict[str, Any]], Any]
U64 = 18446744073709551615


def tensor(**changes: Any) -> dict[str, Any]:
    base = {"id": "x", "kind": "tensor", "shape": [3], "format": "fp32", "layout": "contiguous_le_v1"}
    return {**base, "offset": 256, "bytes": 12, **changes}


def put(path: str, value: Any) -> Edit:
    """Set ``a.0.b`` to ``value``."""

    def edit(root: dict[str, Any]) -> None:
        *way, last = path.split(".")
        place: Any = root
        for step in way:
            place = place[int(step) if isinstance(place, list) else step]
        place[int(last) if isinstance(place, list) else last] = value

    return edit


def drop(path: str) -> Edit:
    def edit(root: dict[str, Any]) -> None:
        *way, last = path.split(".")
        place: Any = root
        for step in way:
            place = place[int(step) if isinstance(place, list) else step]
        del place[last]

    return edit


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


USE = {"parameter": "text/final_norm", "input": "i"}
NAME = "text/final_norm"
RECORDS: list[tuple[str, Edit, str]] = [
    ("9 root member missing", drop("uses"), "directory: missing [uses], unknown []"),
    ("9 root member unknown", put("extra", 1), "directory: missing [], unknown [extra]"),
    ("9 objects is no array", put("objects", {}), "objects: expected an array"),
    ("9 components is no object", put("components", []), "components: expected an object"),
    ("9 no components", put("components", {}), "components: expected at least one component"),
    ("9 object member missing", drop("objects.1.shape"), "objects[1]: missing [shape], unknown []"),
    ("9 resource with a shape", put("objects.0.shape", [1]), "objects[0]: missing [], unknown [shape]"),
    ("9 config missing", drop("components.text.config"), 'component "text": missing [config], unknown []'),
    ("9 config is no object", put("components.text.config", []), 'component "text" config: expected an object'),
    ("9 file member unknown", put("files.0.size", 1), "files[0]: missing [], unknown [size]"),
    ("10 float", put("objects.1.offset", 256.0), f"objects[1].offset: expected integer in [0, {U64}]"),
    ("10 bool", put("objects.0.bytes", True), f"objects[0].bytes: expected integer in [1, {U64}]"),
    ("10 string", put("objects.0.bytes", "2"), f"objects[0].bytes: expected integer in [1, {U64}]"),
    ("10 negative", put("objects.0.offset", -1), f"objects[0].offset: expected integer in [0, {U64}]"),
    ("10 above 2^64", put("objects.1.bytes", U64 + 1), f"objects[1].bytes: expected integer in [1, {U64}]"),
    ("10 zero bytes", put("objects.1.bytes", 0), f"objects[1].bytes: expected integer in [1, {U64}]"),
    ("10 zero divisors", put("objects.1.divisors", 0), f"objects[1].divisors: expected integer in [1, {U64}]"),
    ("10 empty file", put("files.0.payload_bytes", 0), f"files[0].payload_bytes: expected integer in [1, {U64}]"),
    ("11 empty id", put("objects.1.id", ""), "objects[1].id: expected a non-empty string without NUL"),
    ("11 NUL", put("objects.1.format", "a\0b"), "objects[1].format: expected a non-empty string without NUL"),
    ("11 surrogate", put("objects.1.id", "\ud800"), "objects[1].id: expected a non-empty string without NUL"),
    ("11 id is a number", put("objects.1.id", 7), "objects[1].id: expected a non-empty string without NUL"),
    ("12 no files", put("files", []), "files[0].path must be null"),
    ("12 entry has a path", put("files.0.path", "model.ninfer"), "files[0].path must be null"),
    ("15 no objects", put("objects", []), "objects: expected at least one object"),
    ("15 kind", put("objects.1.kind", "blob"), 'objects[1]: unsupported object kind "blob"'),
    ("15 duplicate id", put("objects.1.id", "r"), 'duplicate object id "r"'),
    (
        "16 overlap",
        put("objects.1.offset", 1),
        "w: byte range [1,13) overlaps, is out of order or exceeds the payload",
    ),
    (
        "16 beyond the payload",
        put("objects.1.bytes", 13),
        "w: byte range [256,269) overlaps, is out of order or exceeds the payload",
    ),
    (
        "16 beyond 2^64",
        put("objects.1.offset", U64),
        f"w: byte range [{U64},{U64 + 12}) overlaps, is out of order or exceeds the payload",
    ),
    ("17 rank 17", put("objects.1.shape", [1] * 17), "w: invalid shape"),
    ("17 zero", put("objects.1.shape", [0]), "w: invalid shape"),
    ("17 negative", put("objects.1.shape", [-3]), "w: invalid shape"),
    ("17 float", put("objects.1.shape", [3.0]), "w: invalid shape"),
    ("17 too many elements", put("objects.1.shape", [1 << 40, 1 << 40]), "w: invalid shape"),
    ("18 neither form", put(f"bindings.{NAME}", {}), f'parameter "{NAME}": missing [parts], unknown []'),
    ("18 both forms", put(f"bindings.{NAME}.parts", []), f'parameter "{NAME}": missing [], unknown [parts]'),
    ("18 no parts", put(f"bindings.{NAME}", {"parts": []}), f'parameter "{NAME}": expected at least one part'),
    ("18 no such object", put(f"bindings.{NAME}.object", "z"), f'parameter "{NAME}": "z" is not a tensor object'),
    ("18 a resource", put(f"bindings.{NAME}.object", "r"), f'parameter "{NAME}": "r" is not a tensor object'),
    (
        "19 empty range",
        put(f"bindings.{NAME}", {"parts": [{"object": "w", "range": [1, 1]}]}),
        f'parameter "{NAME}": range [1,1] exceeds w shape',
    ),
    (
        "19 past the end",
        put(f"bindings.{NAME}", {"parts": [{"object": "w", "range": [0, 4]}]}),
        f'parameter "{NAME}": range [0,4] exceeds w shape',
    ),
    (
        "19 three bounds",
        put(f"bindings.{NAME}", {"parts": [{"object": "w", "range": [0, 1, 2]}]}),
        f'parameter "{NAME}": expected a range of two integers',
    ),
    ("20 unbound", put("uses", [{"parameter": "p", "input": "i"}]), "Use p@i: the parameter is not bound"),
    ("20 twice", put("uses", [USE, USE]), f"Use {NAME}@i: stands twice"),
    (
        "20 policy",
        put("uses", [{**USE, "activation_policy": "AllowA2"}]),
        f'Use {NAME}@i: unknown activation policy "AllowA2"; known: A16Only, AllowA8, AllowA4',
    ),
    (
        "20 auxiliary",
        put("uses", [{**USE, "auxiliaries": {"signs": {"object": "r"}}}]),
        f'Use {NAME}@i: auxiliary "signs": "r" is not a tensor object',
    ),
    ("21 target", put("components.text.target", "mtp"), 'component "text": missing target component "mtp"'),
    (
        "21 resource",
        put("components.text.resources", {"tokenizer.json": "z"}),
        'component "text": missing resource object "z" for "tokenizer.json"',
    ),
    (
        "21 resource is a tensor",
        put("components.text.resources", {"tokenizer.json": "w"}),
        'component "text": missing resource object "w" for "tokenizer.json"',
    ),
    *(
        (
            f"22 proposal {i}",
            put("components.text.proposal", value),
            "proposal must be full without rows or indexed with rows",
        )
        for i, value in enumerate(
            [None, {}, {"domain": "full", "rows": 1}, {"domain": "indexed"}, {"domain": "other"}, {"domain": []}]
        )
    ),
    (
        "22 proposal outside text",
        put("components.mtp", {"config": {}, "proposal": {"domain": "full"}}),
        "proposal must be full without rows or indexed with rows",
    ),
    ("23 empty name", put("metadata", {"name": ""}), "metadata.name must be a non-empty string"),
    ("23 name is a number", put("metadata", {"name": 1}), "metadata.name must be a non-empty string"),
    ("23 metadata", put("metadata", []), "metadata: expected an object"),
    ("23 provenance", put("provenance", "x"), "provenance: expected an object"),
    (
        "nesting",
        put("metadata", {"x": nested(63)}),
        "directory is not valid JSON: metadata is nested deeper than 64",
    ),
    (
        "integer beyond 64 bits",
        put("provenance", {"x": [1 << 64]}),
        "directory is not valid JSON: integer beyond 64 bits in provenance",
    ),
    (
        "surrogate in a config",
        put("components.text.config", {"x": ["\udfff"]}),
        'directory is not valid JSON: lone surrogate in component "text" config',
    ),
]


@pytest.mark.parametrize(("edit", "text"), [row[1:] for row in RECORDS], ids=[row[0] for row in RECORDS])
def test_a_broken_record_is_refused_by_name(directory, write_entry, edit: Edit, text: str):
    edit(directory)
    path = write_entry(directory)
    with pytest.raises(ArtifactError) as caught:
        Container(str(path))
    assert str(caught.value) == f"{path}: {text}"


TEXTS: list[tuple[str, bytes, str]] = [
    ("7 UTF-8", b'{"a":"\xff"}', r"directory is not valid JSON: byte 6 is not UTF-8"),
    ("7 BOM", b"\xef\xbb\xbf{}", r"directory is not valid JSON: .*"),
    ("7 not JSON", b"{", r"directory is not valid JSON: .*"),
    ("7 trailing garbage", b"{} x", r"directory is not valid JSON: .*"),
    ("7 trailing NUL", b"{}\0", r"directory is not valid JSON: .*"),
    ("7 NaN", b'{"a":NaN}', r"directory is not valid JSON: NaN is not a JSON number"),
    ("7 Infinity", b'{"a":[-Infinity]}', r"directory is not valid JSON: -Infinity is not a JSON number"),
    ("7 1e999", b'{"a":1e999}', r"directory is not valid JSON: number 1e999 is out of range"),
    (
        "7 endless integer",
        b'{"a":' + b"9" * 5000 + b"}",
        r"directory is not valid JSON: an integer has too many digits",
    ),
    ("7 deep arrays", b"[" * 3000 + b"]" * 3000, r"directory is not valid JSON: nested deeper than 64"),
    ("8 at the root", b'{"uses":[],"uses":[]}', r'duplicate JSON member "uses"'),
    ("8 deep down", b'{"a":[{"b":{"k":1,"c":2,"k":1}}]}', r'duplicate JSON member "k"'),
    ("9 not an object", b"[]", r"directory: expected an object"),
]


@pytest.mark.parametrize(("raw", "text"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_text_that_is_no_strict_json_is_refused(write_entry, raw: bytes, text: str):
    path = write_entry(raw=raw)
    with pytest.raises(ArtifactError) as caught:
        Container(str(path))
    assert re.fullmatch(f"{re.escape(str(path))}: {text}", str(caught.value))


@pytest.mark.parametrize("name", ["a/b", "a\\b", ".", "..", "model.ninfer", "twin"])
def test_a_part_name_that_is_no_sibling_is_refused(directory, write_entry, name: str):
    directory["files"] += [{"path": "twin", "payload_bytes": 1}, {"path": name, "payload_bytes": 1}]
    path = write_entry(directory)
    with pytest.raises(ArtifactError) as caught:
        Container(str(path))
    assert str(caught.value) == f"{path}: files[2]: invalid or duplicate sibling file name {json.dumps(name)}".replace(
        "\\\\", "\\"
    )


def test_a_name_with_control_characters_cannot_break_the_line(directory, write_entry):
    directory["objects"][1]["kind"] = "a\nb\x1b[31m" + "x" * 500
    with pytest.raises(ArtifactError) as caught:
        Container(str(write_entry(directory)))
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


LEGAL: list[tuple[str, Edit]] = [
    ("metadata and provenance", lambda d: d.update(metadata={"name": "m", "x": [1]}, provenance={"y": {}})),
    ("explicit single divisor", put("objects.1.divisors", 1)),
    ("unknown component", put("components.other", {"config": {"x": 1}, "target": "text"})),
    ("unknown format", put("objects.1.format", "exl3")),
    ("unknown encoding", put("objects.0.encoding", "zip")),
    ("gap and tail", lambda d: d["objects"].pop(0)),
    ("no bindings", put("bindings", {})),
    ("64 levels", put("metadata", {"x": nested(62)})),
    ("absent part", lambda d: d["files"].append({"path": "elsewhere", "payload_bytes": 9})),
    (
        "shared object",
        put("bindings.other", {"parts": [{"object": "w", "range": [0, 2]}, {"object": "w", "range": [1, 3]}]}),
    ),
    (
        "scalar shape",
        lambda d: d["objects"].append(tensor(shape=[], offset=268, bytes=4)) or d["files"][0].update(payload_bytes=272),
    ),
]


@pytest.mark.parametrize("edit", [row[1] for row in LEGAL], ids=[row[0] for row in LEGAL])
def test_what_must_not_be_refused_opens(directory, write_entry, edit: Edit):
    edit(directory)
    payload = bytes(directory["files"][0]["payload_bytes"])
    path: Path = write_entry(directory, payload)
    Container(str(path)).close()
