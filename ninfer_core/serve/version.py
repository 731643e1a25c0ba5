"""The one string a running build is known by: ``<VERSION>+<build id>``."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from ninfer_core import __version__

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("ninfer_core", "kernels", "plugins", "pyproject.toml")  # what makes a tree dirty


@cache
def build_version() -> str:
    """Version and build id: ``NINFER_BUILD_ID``, else git's description of the source tree, else the bare version."""
    build_id = os.environ.get("NINFER_BUILD_ID") or described(ROOT)
    return f"{__version__}+{build_id}" if build_id else __version__


def described(tree: Path) -> str:
    """``git describe --always --tags`` of ``tree``, ``-dirty`` when its product sources differ; "" outside of git."""
    if not (tree / ".git").exists():
        return ""
    commit = _git(tree, "describe", "--always", "--tags")
    if commit is None or commit.returncode != 0:
        return ""
    changed = _git(tree, "diff", "--quiet", "HEAD", "--", *PRODUCT)
    dirty = changed is not None and changed.returncode == 1
    return commit.stdout.strip() + ("-dirty" if dirty else "")


def _git(tree: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
