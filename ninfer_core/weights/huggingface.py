"""Importer ``huggingface``: a folder with ``config.json`` and safetensors shards, as ``save_pretrained`` writes it.

Shards are mapped, never unpickled: a folder that has only ``.bin`` weights is refused. The ``safetensors`` package
checks the headers; tensors are read one at a time, as views of the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ninfer_core.api import EncodedTensor, Importer, Source, SourceTensor
from ninfer_core.errors import ArtifactError

from .formats import LAYOUT
from .mapped import MappedFile, reason
from .names import listed, plain, quoted
from .resources import check_resource

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEMPLATE = "chat_template.jinja"
JSON_RESOURCES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
DTYPES = {"BF16": "bf16", "F32": "fp32", "F16": "fp16", "F64": "fp64", "I32": "int32"}
"""safetensors dtype -> format; another dtype keeps its own name, which no format has: refused when it is used."""


def claims(path: str) -> bool:
    """A folder with a config.json."""
    return os.path.isfile(os.path.join(path, "config.json"))


def open_folder(path: str) -> Source:
    """The folder's config, tensors and resources; ArtifactError names the file that is missing or damaged."""
    folder = Path(path)
    config = _json(folder / "config.json")
    found = config.get("architectures")
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise ArtifactError(f'{folder / "config.json"}: "architectures" must be a list with a name')
    shards: list[_Shard] = []
    return Source(
        kind="huggingface",
        path=path,
        architecture=found[0],
        config=config,
        tensors=_tensors(folder, shards),
        resources=_resources(folder),
        name=_name(folder),
        drop_pages=partial(_drop_pages, shards),
    )


IMPORTER = Importer(
    name="huggingface",
    summary="a folder with config.json and *.safetensors",
    claims=claims,
    open=open_folder,
)


class _Shard:
    """One safetensors file. Its header is checked by the package, its tensors are views of our own map of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: MappedFile | None = None
        self._places: dict[str, tuple[int, int]] = {}

    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensor name -> (dtype, shape), from the checked header; without torch."""
        from safetensors import SafetensorError, safe_open

        try:
            # a named pipe would keep the open waiting
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise ArtifactError(f"{self.path}: not a regular file")
            with safe_open(self.path, framework="numpy") as handle:
                slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
                return {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}
        except SafetensorError as error:
            raise ArtifactError(f"{self.path}: damaged or not a safetensors file ({plain(error)})") from None
        except OSError as error:
            raise ArtifactError(f"{self.path}: {reason(error)}") from None

    def read(self, name: str, format_name: str, shape: tuple[int, ...]) -> EncodedTensor:
        import torch

        if self._file is None:
            self._file = MappedFile(str(self.path))
            self._places = _places(self._file.view)
        begin, end = self._places[name]
        view = self._file.view[begin:end]
        data = torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)
        return EncodedTensor(format=format_name, layout=LAYOUT, shape=shape, data=data)

    def drop_pages(self) -> None:
        """Give back the memory of what was read so far."""
        if self._file is not None:
            self._file.drop_pages()


class _Entry(msgspec.Struct):
    data_offsets: tuple[int, int]


def _places(file: memoryview) -> dict[str, tuple[int, int]]:
    """Tensor name -> its bytes in the file, from a header known to be sound."""
    start = 8 + int.from_bytes(file[:8], "little")
    header = msgspec.json.decode(bytes(file[8:start]), type=dict[str, msgspec.Raw])
    found = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items() if name != "__metadata__"}
    return {name: (start + entry.data_offsets[0], start + entry.data_offsets[1]) for name, entry in found.items()}


def _drop_pages(shards: Iterable[_Shard]) -> None:
    for shard in shards:
        shard.drop_pages()


def _tensors(folder: Path, shards: list[_Shard]) -> dict[str, SourceTensor]:
    """Every tensor; ``shards`` gets the files they are in."""
    index = folder / INDEX
    if index.exists():
        wanted = _weight_map(index)
        missing = sorted({file for file in wanted.values() if not (folder / file).is_file()})
        if missing:
            raise ArtifactError(f"{folder}: missing shards {listed(missing)}, which {INDEX} names")
        files: Iterable[str] = sorted(set(wanted.values()))
    else:
        wanted = {}
        files = [SINGLE] if (folder / SINGLE).exists() else sorted(p.name for p in folder.glob("*.safetensors"))
    if not files:
        _refuse_without_weights(folder)
    found: dict[str, SourceTensor] = {}
    for file in files:
        shard = _Shard(folder / file)
        shards.append(shard)
        for name, (dtype, shape) in shard.shapes().items():
            if wanted and wanted.get(name) != file:
                continue
            if name in found:
                raise ArtifactError(f"{folder / file}: tensor {quoted(name)} is in another file too")
            form = DTYPES.get(dtype, dtype.lower())
            found[name] = SourceTensor(name=name, format=form, shape=shape, read=partial(shard.read, name, form, shape))
    absent = [name for name in wanted if name not in found]
    if absent:
        raise ArtifactError(f"{folder}: tensors {listed(absent)} are not in the shards that {INDEX} names")
    return found


def _weight_map(index: Path) -> dict[str, str]:
    found = _json(index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise ArtifactError(f'{index}: "weight_map" must name a file for each tensor')
    for file in found.values():
        if os.path.basename(file) != file or file in ("", ".", "..") or "\0" in file:
            raise ArtifactError(f"{index}: {quoted(file)} is not the name of a file beside it")
    return found


def _refuse_without_weights(folder: Path) -> None:
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickled:
        raise ArtifactError(
            f"{folder}: has only pickled weights ({listed(pickled, 3)}), which are never loaded because they can run "
            "code; save the model as safetensors"
        )
    raise ArtifactError(f"{folder}: has no *.safetensors file")


def _resources(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for role in JSON_RESOURCES:
        if (folder / role).exists():
            found[role] = _bytes(folder / role)
            check_resource(role, found[role], str(folder))
    template = _template(folder, found.get("tokenizer_config.json"))
    if template is not None:
        check_resource(TEMPLATE, template, str(folder))
        found[TEMPLATE] = template
    return found


def _template(folder: Path, tokenizer_config: bytes | None) -> bytes | None:
    """``chat_template.jinja``, else the (default) template inside tokenizer_config.json or chat_template.json."""
    if (folder / TEMPLATE).exists():
        return _bytes(folder / TEMPLATE)
    value = msgspec.json.decode(tokenizer_config).get("chat_template") if tokenizer_config else None
    if value is None and (folder / "chat_template.json").exists():
        value = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value.encode() if isinstance(value, str) and value else None


def _name(folder: Path) -> str:
    """The folder's own name; in a download cache (``models--ORG--NAME/snapshots/HASH``) the model's."""
    path = folder.resolve()
    cache = path.parent.parent.name
    if path.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.rpartition("--")[2]
    return path.name or "model"


def _json(path: Path) -> Mapping[str, Any]:
    data = _bytes(path)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArtifactError(f"{path}: not valid JSON ({plain(error)})") from None
    if not isinstance(found, dict):
        raise ArtifactError(f"{path}: not a JSON object")
    return found


def _bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise ArtifactError(f"{path}: not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: {reason(error)}") from None
