"""The directory's schema: every record has a closed set of members (``spec/artifact.md`` §3.2-3.6, §20 rows 9-23)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from ninfer_core.errors import ArtifactError

from .directory import (
    POLICIES,
    Binding,
    Component,
    Directory,
    ElementRange,
    FileEntry,
    ResourceObject,
    TensorObject,
    Use,
    elements,
)
from .names import listed, plain, quoted
from .strict_json import check_open_value, is_utf8, parse_json

U64 = (1 << 64) - 1
MAX_RANK = 16
MAX_OBJECTS = 4 << 20
MAX_FILES = 4096

TENSOR = ("id", "kind", "shape", "format", "layout", "offset", "bytes")
RESOURCE = ("id", "kind", "encoding", "offset", "bytes")


def parse_directory(text: bytes, file: str, *, entry_name: str) -> Directory:
    """The directory in ``text``; ArtifactError for the first rule it breaks.

    ``file`` begins every message; ``entry_name`` is the entry file's own name, which no part may have.
    """
    return DirectoryParser(file, entry_name).directory(parse_json(text, file))


class DirectoryParser:
    """Turns parsed JSON into a Directory. Messages begin with ``file`` and name the place."""

    def __init__(self, file: str, entry_name: str) -> None:
        self.file = file
        self.entry_name = entry_name

    def directory(self, root: Any) -> Directory:
        self.members(
            root, "directory", ("components", "objects", "bindings", "uses", "files"), ("metadata", "provenance")
        )
        files = self.files(self.array(root["files"], "files"))
        objects = self.objects(self.array(root["objects"], "objects"), sum(f.payload_bytes for f in files))
        bindings = {
            self.identifier(name, "bindings"): self.binding(value, f"parameter {quoted(name)}", objects)
            for name, value in self.mapping(root["bindings"], "bindings").items()
        }
        metadata = self.open_object(root.get("metadata", {}), "metadata", 2)
        name = metadata.get("name", "unnamed")
        if not isinstance(name, str) or not name or "\0" in name:
            self.refuse("metadata.name must be a non-empty string")
        return Directory(
            components=self.components(self.mapping(root["components"], "components"), objects),
            objects=objects,
            bindings=bindings,
            uses=self.uses(self.array(root["uses"], "uses"), bindings, objects),
            files=files,
            metadata=metadata,
            provenance=self.open_object(root.get("provenance", {}), "provenance", 2),
        )

    # records

    def files(self, records: list[Any]) -> tuple[FileEntry, ...]:
        if len(records) > MAX_FILES:
            self.refuse(f"files: {len(records)} files; at most {MAX_FILES} are supported")
        found: list[FileEntry] = []
        names = {self.entry_name}
        for i, record in enumerate(records):
            where = f"files[{i}]"
            self.members(record, where, ("path", "payload_bytes"))
            path = record["path"]
            if i > 0:
                name = self.identifier(path, f"{where}.path")
                if name in (".", "..") or "/" in name or "\\" in name or name in names:
                    self.refuse(f"{where}: invalid or duplicate sibling file name {quoted(name)}")
                names.add(name)
            elif path is not None:
                self.refuse("files[0].path must be null")
            found.append(
                FileEntry(path=path, payload_bytes=self.integer(record["payload_bytes"], f"{where}.payload_bytes", 1))
            )
        if not found:
            self.refuse("files[0].path must be null")
        if sum(file.payload_bytes for file in found) > U64:
            self.refuse("files: expected integer in [1, 18446744073709551615] as their total payload")
        return tuple(found)

    def objects(self, records: list[Any], payload: int) -> dict[str, TensorObject | ResourceObject]:
        if not records:
            self.refuse("objects: expected at least one object")
        if len(records) > MAX_OBJECTS:
            self.refuse(f"objects: {len(records)} objects; at most {MAX_OBJECTS} are supported")
        found: dict[str, TensorObject | ResourceObject] = {}
        cursor = 0
        for i, record in enumerate(records):
            item = self.object(record, f"objects[{i}]")
            if item.id in found:
                self.refuse(f"duplicate object id {quoted(item.id)}")
            end = item.offset + item.bytes
            if item.offset < cursor or end > payload:
                self.refuse(
                    f"{plain(item.id)}: byte range [{item.offset},{end}) overlaps, is out of order or "
                    "exceeds the payload"
                )
            found[item.id] = item
            cursor = end
        return found

    def object(self, record: Any, where: str) -> TensorObject | ResourceObject:
        kind = self.mapping(record, where).get("kind", "tensor")
        if kind == "resource":
            self.members(record, where, RESOURCE)
        elif kind == "tensor":
            self.members(record, where, TENSOR, ("divisors",))
        else:
            self.refuse(f"{where}: unsupported object kind {quoted(kind)}")
        name = self.identifier(record["id"], f"{where}.id")
        offset = self.integer(record["offset"], f"{where}.offset", 0)
        size = self.integer(record["bytes"], f"{where}.bytes", 1)
        if kind == "resource":
            encoding = self.identifier(record["encoding"], f"{where}.encoding")
            return ResourceObject(id=name, offset=offset, bytes=size, encoding=encoding)
        return TensorObject(
            id=name,
            offset=offset,
            bytes=size,
            shape=self.shape(record["shape"], name),
            format=self.identifier(record["format"], f"{where}.format"),
            layout=self.identifier(record["layout"], f"{where}.layout"),
            divisors=self.integer(record.get("divisors", 1), f"{where}.divisors", 1),
        )

    def shape(self, value: Any, name: str) -> tuple[int, ...]:
        valid = isinstance(value, list) and len(value) <= MAX_RANK
        if not valid or not all(type(n) is int and 0 < n <= U64 for n in value) or elements(tuple(value)) > U64:
            self.refuse(f"{plain(name)}: invalid shape")
        return tuple(value)

    def binding(self, value: Any, what: str, objects: Mapping[str, TensorObject | ResourceObject]) -> Binding:
        record = self.mapping(value, what)
        if "object" in record:
            self.members(record, what, ("object",))
            parent = self.tensor(record["object"], what, objects)
            whole = ElementRange(object=parent.id, begin=0, end=elements(parent.shape))
            return Binding(parts=(whole,), whole=True)
        self.members(record, what, ("parts",))
        parts = self.array(record["parts"], what)
        if not parts:
            self.refuse(f"{what}: expected at least one part")
        return Binding(parts=tuple(self.part(part, what, objects) for part in parts), whole=False)

    def part(self, record: Any, what: str, objects: Mapping[str, TensorObject | ResourceObject]) -> ElementRange:
        self.members(record, what, ("object", "range"))
        parent = self.tensor(record["object"], what, objects)
        bounds = self.array(record["range"], what)
        if len(bounds) != 2:
            self.refuse(f"{what}: expected a range of two integers")
        begin, end = (self.integer(bound, what, 0) for bound in bounds)
        if begin >= end or end > elements(parent.shape):
            self.refuse(f"{what}: range [{begin},{end}] exceeds {plain(parent.id)} shape")
        return ElementRange(object=parent.id, begin=begin, end=end)

    def tensor(self, name: Any, what: str, objects: Mapping[str, TensorObject | ResourceObject]) -> TensorObject:
        found = objects.get(self.identifier(name, what))
        if not isinstance(found, TensorObject):
            self.refuse(f"{what}: {quoted(name)} is not a tensor object")
        return found

    def uses(
        self,
        records: list[Any],
        bindings: Mapping[str, Binding],
        objects: Mapping[str, TensorObject | ResourceObject],
    ) -> tuple[Use, ...]:
        found: dict[tuple[str, str], Use] = {}
        for i, record in enumerate(records):
            where = f"uses[{i}]"
            self.members(record, where, ("parameter", "input"), ("activation_policy", "auxiliaries"))
            parameter = self.identifier(record["parameter"], f"{where}.parameter")
            entry = self.identifier(record["input"], f"{where}.input")
            use = f"Use {plain(parameter)}@{plain(entry)}"
            policy = record.get("activation_policy", POLICIES[0])
            if parameter not in bindings:
                self.refuse(f"{use}: the parameter is not bound")
            if (parameter, entry) in found:
                self.refuse(f"{use}: stands twice")
            if not isinstance(policy, str) or policy not in POLICIES:
                self.refuse(f"{use}: unknown activation policy {quoted(policy)}; known: {', '.join(POLICIES)}")
            auxiliaries = {
                self.identifier(role, use): self.binding(value, f"{use}: auxiliary {quoted(role)}", objects)
                for role, value in self.mapping(record.get("auxiliaries", {}), use).items()
            }
            found[parameter, entry] = Use(
                parameter=parameter, input=entry, policy=record.get("activation_policy"), auxiliaries=auxiliaries
            )
        return tuple(found.values())

    def components(
        self, records: Mapping[str, Any], objects: Mapping[str, TensorObject | ResourceObject]
    ) -> dict[str, Component]:
        if not records:
            self.refuse("components: expected at least one component")
        found = {}
        for name, record in records.items():
            where = f"component {quoted(self.identifier(name, 'components'))}"
            self.members(record, where, ("config",), ("target", "resources", "proposal"))
            target = record.get("target")
            if "target" in record and self.identifier(target, f"{where} target") not in records:
                self.refuse(f"{where}: missing target component {quoted(target)}")
            resources = self.mapping(record.get("resources", {}), f"{where} resources")
            for role, reference in resources.items():
                self.identifier(role, f"{where} resources")
                if not isinstance(objects.get(self.identifier(reference, where)), ResourceObject):
                    self.refuse(f"{where}: missing resource object {quoted(reference)} for {quoted(role)}")
            found[name] = Component(
                config=self.open_object(record["config"], f"{where} config", 4),
                target=target,
                resources=resources,
                proposal=self.proposal(name, record),
            )
        return found

    def proposal(self, component: str, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if "proposal" not in record:
            return None
        value = record["proposal"]
        legal = component == "text" and isinstance(value, dict)
        if legal and value.get("domain") == "full":
            legal = set(value) == {"domain"}
        elif legal and value.get("domain") == "indexed":
            legal = set(value) == {"domain", "rows"}
        else:
            legal = False
        if not legal:
            self.refuse("proposal must be full without rows or indexed with rows")
        if "rows" in value:
            self.integer(value["rows"], "proposal.rows", 1)
        return dict(value)

    # values

    def members(self, value: Any, where: str, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Check a record's closed member set."""
        record = self.mapping(value, where)
        # directories hold tens of thousands of records, nearly all with exactly these
        if len(record) == len(required) and all(name in record for name in required):
            return
        missing = [name for name in required if name not in record]
        unknown = [name for name in record if name not in required and name not in optional]
        if missing or unknown:
            self.refuse(f"{where}: missing [{listed(missing)}], unknown [{listed(unknown)}]")

    def mapping(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse(f"{where}: expected an object")
        return value

    def open_object(self, value: Any, where: str, depth: int) -> dict[str, Any]:
        found = self.mapping(value, where)
        check_open_value(found, self.file, where, depth)
        return found

    def array(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            self.refuse(f"{where}: expected an array")
        return value

    def integer(self, value: Any, where: str, least: int) -> int:
        # a bool is an int to Python, not to JSON
        if type(value) is not int or not least <= value <= U64:
            self.refuse(f"{where}: expected integer in [{least}, {U64}]")
        return value

    def identifier(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value or "\0" in value or not (value.isascii() or is_utf8(value)):
            self.refuse(f"{where}: expected a non-empty string without NUL")
        return value

    def refuse(self, text: str) -> NoReturn:
        raise ArtifactError(f"{self.file}: {text}")
