"""Where a run comes from: versions, commits, date and host, for ``summary.json`` and the report."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from outgrow._version import __version__
from outgrow.runtime.system.environment import available_cores

_LIBRARIES = ("torch", "numba", "numpy")


def describe_provenance() -> dict[str, Any]:
    """Return versions, commits, date and host. Reads a few small files, and starts no process."""
    return {
        "versions": {
            "outgrow": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in _LIBRARIES},
        },
        "commit": {"outgrow": find_commit(Path(__file__).parent), "directory": find_commit(Path.cwd())},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {
            "name": socket.gethostname(),
            "cores": available_cores(),
            "memory": psutil.virtual_memory().total,
        },
    }


def find_commit(folder: Path) -> str | None:
    """Return the commit of the git repository that a folder is in; None if it is in none, or has no commit."""
    try:
        return next((_read_head(git) for git in _git_folders(folder)), None)
    except (OSError, ValueError):
        # A repository of an unknown form, or one of another user, must not end a run.
        return None


def _git_folders(folder: Path) -> Iterator[Path]:
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.is_dir():
            yield git
        elif git.is_file():
            # A work tree of its own, or a submodule, names the folder of its repository.
            yield (parent / git.read_text().removeprefix("gitdir:").strip()).resolve()


def _read_head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = (git / common.read_text().strip()) if common.is_file() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
    packed = shared / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)


def shorten_commit(commit: str | None) -> str:
    """Return a commit as people write it."""
    return "none" if commit is None else commit[: min(len(commit), 12)]
