"""Temporary folders that a helper process removes as soon as their owner has ended, even by SIGKILL.

``python -I -S tempdir_reaper.py FOLDER`` waits for the end of its standard input, then removes the folder. It
must be a separate process, since a killed process cannot clean up. It imports only the standard library, so
that it is small and starts at once.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.1


@contextmanager
def temporary_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder that is removed when the context ends, or when this process does.

    Args:
        prefix: Start of its name.
        parent: Folder to create it in; None for the system's folder of temporary files.

    Yields:
        The folder.

    Raises:
        OSError: The folder cannot be created.
    """
    # Named before it exists: a signal may end this process by an exception as soon as it does.
    folder = Path(tempfile.gettempdir() if parent is None else parent).resolve() / f"{prefix}{uuid.uuid4().hex}"
    with _removed_on_exit(folder):
        folder.mkdir(mode=0o700)
        yield folder


@contextmanager
def _removed_on_exit(folder: Path) -> Iterator[None]:
    """Remove a folder, if there is one, when the context ends, or when this process does."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder)]
    keeper: subprocess.Popen[bytes] | None = None
    # A signal may end this process by an exception while it starts the other.
    try:
        # Without a helper process, the folder is still removed unless this process is killed.
        with suppress(OSError):
            nothing = subprocess.DEVNULL
            # Its own session: a Ctrl-C, or a signal to this process's group, does not reach it.
            keeper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, cwd="/", start_new_session=True
            )
        yield
    finally:
        # Errors are ignored, so as not to hide one from the body of the context.
        shutil.rmtree(folder, ignore_errors=True)
        if keeper is not None:
            _stop_reaper(keeper, folder)


def _stop_reaper(reaper: subprocess.Popen[bytes], folder: Path) -> None:
    assert reaper.stdin is not None
    # Nothing is left to remove. Otherwise closing its input makes the reaper try for longer than we did.
    if not folder.exists():
        reaper.kill()
    reaper.stdin.close()
    reaper.wait()


def remove_folder(folder: Path) -> None:
    """Remove a folder, even if orphaned workers still write to it until they exit; give up after 30 s."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """Wait for the end of standard input, then remove the folder."""
    # Signals to the group of processes mean the others; this one must outlive them.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    # The owner holds the other end and writes nothing: the system closes it when the owner ends, however it
    # ends.
    sys.stdin.buffer.read()
    remove_folder(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
