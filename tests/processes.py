"""Processes that runs start, found by the folder that their command lines name."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


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
