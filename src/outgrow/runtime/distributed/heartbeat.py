"""Heartbeats of worker processes, and the exit of orphaned ones. Does not import torch."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

BEAT_SECONDS = 1.0
# Share of the silent time that must be CPU time for a process to count as computing rather than stuck.
_BUSY = 0.1


class Heartbeat:
    """Thread that sends a heartbeat every second and exits the process when it is orphaned or told to.

    It cannot beat while other code holds the GIL, so `LivenessProbe` also considers CPU time.

    Args:
        beat: Sends one heartbeat. Returns the reason why this process should exit, or None.
        parent: Id of the process that started this one; once it is gone, this process exits.
        folder: Scratch folder, removed before this process exits.
    """

    def __init__(self, beat: Callable[[], str | None], parent: int, folder: Path) -> None:
        self._beat = beat
        self._parent = parent
        self._folder = folder
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="outgrow-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        # With a timeout: a beat may wait for a host that is gone.
        self._thread.join(BEAT_SECONDS)

    def exit_if_orphaned(self) -> None:
        """Exit if the process that started this one is gone."""
        # An orphan is adopted by another process, so its parent id changes.
        if os.getppid() != self._parent:
            self._exit_process("the process that started this one is gone")

    def _beat_until_stopped(self) -> None:
        while not self._done.is_set():
            self.exit_if_orphaned()
            if why := self._beat():
                self._exit_process(why)
            self._done.wait(BEAT_SECONDS)

    def _exit_process(self, why: str) -> None:
        sys.stderr.write(f"{why}\nprocess {os.getpid()} ends\n")
        sys.stderr.flush()
        shutil.rmtree(self._folder, ignore_errors=True)
        # `sys.exit` would end this thread only; a normal exit would also run destructors that wait for peers.
        os._exit(1)


def touch_heartbeat(path: Path) -> str | None:
    """Touch the heartbeat file. If it no longer exists, return that the run is over."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return "the run is over"
    return None


class LivenessProbe:
    """Measures how long a process has been silent.

    A process is alive if it beats, or spends a tenth of the time computing: compiled code may hold the GIL
    for long. If the observer itself was suspended, the gap counts as one second at most.

    Args:
        path: Heartbeat file that the process touches.
        pid: Process id.
    """

    def __init__(self, path: Path, pid: int) -> None:
        self._path = path
        self._process = psutil.Process(pid)
        self._beat, self._busy = self._read_activity()
        self._silence = 0.0
        self._looked = time.monotonic()

    def silent_seconds(self) -> float:
        """Return the seconds without a sign of life. Call several times per second."""
        now = time.monotonic()
        # Capped: if this process was suspended, the worker probably was too.
        self._silence += min(now - self._looked, BEAT_SECONDS)
        self._looked = now
        beat, busy = self._read_activity()
        if beat != self._beat or busy - self._busy > _BUSY * self._silence:
            self._beat, self._busy, self._silence = beat, busy, 0.0
        return self._silence

    def has_ended(self) -> bool:
        """Whether the process has ended, even if its parent has not reaped it yet."""
        try:
            return self._process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return True

    def _read_activity(self) -> tuple[int, float]:
        try:
            times = self._process.cpu_times()
        except psutil.Error:  # the process has ended
            return -1, 0.0
        return self._path.stat().st_mtime_ns, times.user + times.system
