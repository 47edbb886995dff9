"""Disks that are full."""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from command import Run
from judge import Promise
from place import children

from faults.base import UnavailableError

_DISK_BYTES = 96 << 20
_SAID = r"No space left on device|too little room|is full|File too large"


class FullDisk:
    """The disk of the run's directory and of its temporary files is filled to its last byte. Needs root."""

    words: list[str] = []  # noqa: RUF012

    def ready(self, run: Run) -> None:
        """Mount a small disk."""
        if os.geteuid() != 0:
            raise UnavailableError("a disk of its own needs root")
        folder, image = run.folder / "disk", run.folder / "image"
        folder.mkdir(exist_ok=True)
        with image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        _tool(f"mkfs.ext4 -q -m 0 {image}")
        _tool(f"mount -o loop {image} {folder}")
        run.stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)

    def strike(self, run: Run) -> Promise | None:
        """Fill it."""
        if run.over:
            return None
        self._filler(run).touch()
        with self._filler(run).open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        file.write(b"x" * size)
        return Promise(what="the disk was filled", ends=None, said=_SAID)

    def mend(self, run: Run) -> None:
        """Make room again."""
        self._filler(run).unlink(missing_ok=True)

    def _filler(self, run: Run) -> Path:
        return run.folder / "disk" / "filler"


class FileLimit:
    """No process of the run may write a file beyond 16 kB any more, which needs no rights.

    Args:
        limit_bytes: The most that a file may have.
    """

    words: list[str] = []  # noqa: RUF012

    def __init__(self, limit_bytes: int = 1 << 14) -> None:
        self._limit_bytes = limit_bytes

    def ready(self, run: Run) -> None:
        """Nothing to prepare."""

    def strike(self, run: Run) -> Promise | None:
        found = False
        for each in [psutil.Process(run.processes[0].pid), *children(run.processes)]:
            with suppress(psutil.Error):
                each.rlimit(resource.RLIMIT_FSIZE, (self._limit_bytes, self._limit_bytes))
                found = True
        what = f"files may have no more than {self._limit_bytes} bytes"
        return Promise(what=what, ends=None, said=_SAID) if found else None

    def mend(self, run: Run) -> None:
        """Nothing to mend: the limit goes with the processes."""


def _tool(command: str) -> None:
    try:
        subprocess.run(command.split(), check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"{command}: {error}") from error
