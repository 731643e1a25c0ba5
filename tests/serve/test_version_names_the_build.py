"""``<VERSION>+<build id>``: the environment's id, else git's, else none."""

from __future__ import annotations

import subprocess

import pytest

from ninfer_core import __version__
from ninfer_core.serve import version


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.py").write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "x"), ("tag", "v9")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


@pytest.mark.contract("version.string")
def test_a_tagged_tree_is_called_by_its_tag(tree):
    assert version.described(tree) == "v9"


@pytest.mark.contract("version.string")
def test_only_changed_product_sources_make_it_dirty(tree):
    (tree / "notes.txt").write_text("2")
    assert version.described(tree) == "v9"
    (tree / "kernels" / "a.py").write_text("2")
    assert version.described(tree) == "v9-dirty"


def test_outside_of_git_there_is_no_build_id(tmp_path):
    assert version.described(tmp_path) == ""


@pytest.mark.contract("version.string")
def test_the_environment_names_the_build(monkeypatch):
    monkeypatch.setenv("NINFER_BUILD_ID", "host7")
    version.build_version.cache_clear()
    assert version.build_version() == f"{__version__}+host7"
    version.build_version.cache_clear()


def test_an_installed_package_has_the_bare_version(monkeypatch, tmp_path):
    monkeypatch.delenv("NINFER_BUILD_ID", raising=False)
    monkeypatch.setattr(version, "ROOT", tmp_path)
    version.build_version.cache_clear()
    assert version.build_version() == __version__
    version.build_version.cache_clear()
