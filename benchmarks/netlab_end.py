"""Ends what `netlab.py` has made: kills all that runs in a lab, and removes its namespaces and its folder.

    python benchmarks/netlab_end.py NAME < pipe

waits for the end of whoever holds the other side of the pipe, then ends that lab. It imports nothing but Python's own
library, so that it is ready before the first namespace is made.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "OUTGROW_NETLAB"  # in the environment of all that runs in a lab: its name
NAMESPACES = Path("/var/run/netns")
_FOLDERS = Path("/var/run")
_PATIENCE_SECONDS = 20.0


def new_name() -> str:
    """A name for a lab of this process; names of namespaces begin with it."""
    return f"netlab-{os.getpid()}-{_birth(os.getpid())}-{secrets.token_hex(3)}"


def folder(name: str) -> Path:
    """Where a lab keeps its files."""
    return _FOLDERS / name


def remove(name: str) -> None:
    """Remove all there is of a lab; two processes may do so at once."""
    kill(name)
    for namespace in NAMESPACES.glob(f"{name}-*"):
        subprocess.run(["ip", "netns", "delete", namespace.name], capture_output=True, check=False)
    shutil.rmtree(folder(name), ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the labs of processes that are gone, and whose watchers were killed with them."""
    found = [path.name for place in (NAMESPACES, _FOLDERS) for path in place.glob("netlab-*")]
    labs = {match[0]: match for name in found if (match := re.match(r"netlab-(\d+)-(\d+)-[0-9a-f]+", name))}
    for name, match in labs.items():
        if _birth(int(match[1])) != int(match[2]):
            remove(name)


def kill(name: str) -> None:
    """Kill all that runs in a lab until nothing does: while one looks, a process may start others."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while pids := members(name):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the processes {pids} of {name} do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def members(name: str) -> list[int]:
    """Processes in the namespaces of a lab, and those on their way there or back, which carry its mark only."""
    namespaces = {_identity(path) for path in NAMESPACES.glob(f"{name}-*")} - {None}
    mark = f"{MARK}={name}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Denied are processes with more rights than ours, which cannot come from here.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            inside = _identity(process / "ns" / "net") in namespaces
            if inside or mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@contextmanager
def watched(name: str) -> Iterator[None]:
    """A process in a session of its own that removes a lab as soon as this one has ended, however it did."""
    command = [sys.executable, "-I", str(Path(__file__).resolve()), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True
    ) as watcher:
        try:
            yield
        finally:
            remove(name)
            assert watcher.stdin is not None
            watcher.stdin.close()


def watch(name: str) -> None:
    """Wait for the end of standard input, then remove the lab."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    sys.stdin.read()
    remove(name)


def _birth(pid: int) -> int | None:
    """Clock ticks from the start of the machine to that of a process, which no later one of its number shares.

    None if it has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a namespace from all others; None if it has gone."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


if __name__ == "__main__":
    watch(sys.argv[1])
