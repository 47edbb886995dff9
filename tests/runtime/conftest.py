"""What tests with worker processes share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which runs make theirs; afterwards nothing is left in it, nor any process that named it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.glob("outgrow-*"))
    assert not processes_of(folder)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        named = any(str(folder) in argument for argument in process.info["cmdline"] or ())
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def wait_until_gone(folder: Path, seconds: float) -> None:
    """Wait for all processes of a folder to end."""
    end = time.monotonic() + seconds
    while processes_of(folder) or list(folder.glob("outgrow-*")):
        assert time.monotonic() < end, (processes_of(folder), list(folder.iterdir()))
        time.sleep(0.05)
