"""What every importer of foreign checkpoints must do."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from ninfer_core.api import ArtifactError, Importer, Source

FOREIGN = ("", ".", "/", "no/such/file", "x" * 5000, "nul\0byte", "http://example.com/model", "ftp:x", "-", "\udcff")


class ImporterContract:
    """Subclass with ``importer``, ``good`` and perhaps ``bad``."""

    importer: ClassVar[Importer]

    def good(self, directory: Path) -> str:
        """Write a small checkpoint into ``directory`` and return the path an operator would type."""
        raise NotImplementedError

    def bad(self, directory: Path) -> Mapping[str, str]:
        """Damaged checkpoints: what is wrong -> the path to type. The damage must be found by ``open``."""
        return {}

    def test_it_claims_its_own_path(self, tmp_path: Path) -> None:
        assert self.importer.claims(self.good(tmp_path)) is True

    @pytest.mark.parametrize("path", FOREIGN, ids=range(len(FOREIGN)))
    def test_it_leaves_foreign_paths_alone(self, path: str) -> None:
        assert self.importer.claims(path) is False

    def test_it_leaves_other_files_and_folders_alone(self, tmp_path: Path) -> None:
        text, empty, folder = tmp_path / "notes.txt", tmp_path / "empty", tmp_path / "folder"
        text.write_text("hello")
        empty.touch()
        folder.mkdir()
        for path in (text, empty, folder):
            assert self.importer.claims(str(path)) is False

    def test_what_it_opens_is_complete(self, tmp_path: Path) -> None:
        path = self.good(tmp_path)
        source = self.importer.open(path)
        assert source.kind == self.importer.name
        assert source.path == path
        assert source.architecture
        for name, tensor in source.tensors.items():
            assert tensor.name == name
            read = tensor.read()
            assert tuple(read.shape) == tuple(tensor.shape), name
            assert read.format == tensor.format, name
            assert read.data.dim() == 1, name
        assert all(isinstance(value, bytes) for value in source.resources.values())

    def test_opening_twice_gives_the_same(self, tmp_path: Path) -> None:
        path = self.good(tmp_path)
        one, other = self.importer.open(path), self.importer.open(path)
        assert one.config == other.config
        assert list(one.tensors) == list(other.tensors)
        assert one.resources == other.resources

    def test_damage_is_one_line_that_names_the_file(self, tmp_path: Path) -> None:
        for what, path in self.bad(tmp_path).items():
            with pytest.raises(ArtifactError) as refusal:
                read_all(self.importer.open(path))
            assert "\n" not in str(refusal.value), what
            assert any(part in str(refusal.value) for part in (path, Path(path).name)), f"{what}: {refusal.value}"

    def test_a_cut_file_is_refused_or_readable_but_nothing_else(self, tmp_path: Path) -> None:
        whole = tmp_path / "whole"
        whole.mkdir()
        typed = self.good(whole)
        assert str(whole) in typed, "`good` must write below its directory"
        names = [file.relative_to(whole) for file in sorted(whole.rglob("*")) if file.is_file()]
        for count, name in enumerate(names):
            size = (whole / name).stat().st_size
            for keep in sorted({0, 1, 7, size // 3, size // 2, size - 1} & set(range(size))):
                copy = tmp_path / f"cut{count}-{keep}"
                shutil.copytree(whole, copy)
                with (copy / name).open("r+b") as file:
                    file.truncate(keep)
                try:
                    read_all(self.importer.open(typed.replace(str(whole), str(copy))))
                except ArtifactError as error:
                    assert "\n" not in str(error)


def read_all(source: Source) -> None:
    for tensor in source.tensors.values():
        tensor.read()
