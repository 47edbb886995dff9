"""Removes a folder of temporary files as soon as its process has ended, however it did.

``python -I -S keeper.py FOLDER`` waits for the end of its standard input, then removes the folder. It is a process of
its own, since one that is killed removes nothing; and it imports nothing but Python's own library, so that it is
small and ready at once.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.1


@contextmanager
def temporary_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder that is removed when the context ends, or else when this process does.

    Args:
        prefix: How its name begins.
        parent: Where to make it; None for the system's folder of temporary files.

    Raises:
        OSError: It cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    with removed_on_exit(folder):
        yield folder


@contextmanager
def removed_on_exit(folder: Path) -> Iterator[None]:
    """Remove a folder when the context ends, or else when this process does."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder)]
    keeper: subprocess.Popen[bytes] | None = None
    with suppress(OSError):  # without one, the folder is removed unless this process is killed
        nothing = subprocess.DEVNULL
        keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, cwd="/", start_new_session=True
        )
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # an error of the work inside matters more
        if keeper is not None:
            _stop_reaper(keeper, folder)


def _stop_reaper(reaper: subprocess.Popen[bytes], folder: Path) -> None:
    assert reaper.stdin is not None
    if not folder.exists():
        reaper.kill()
    reaper.stdin.close()
    reaper.wait()


def remove_folder(folder: Path) -> None:
    """Remove a folder, in which others may still be writing until they see that they are alone."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """Wait, then remove the folder. What ends its group is not meant for it."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    sys.stdin.buffer.read()
    remove_folder(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
