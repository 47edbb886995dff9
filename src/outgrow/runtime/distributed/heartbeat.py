"""Signs of life, and the end of processes that nobody waits for any more. It does not need torch."""

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
_BUSY = 0.1


class Heartbeat:
    """A thread that gives a sign of life every second, and ends this process once it has no reason to live.

    It does not beat while other code holds Python's lock; `LivenessProbe` looks at the processor's time as well.

    Args:
        beat: Gives the sign. It returns why this process should end, if it should.
        parent: Process that started this one: when it is gone, nobody waits for this one.
        folder: Scratch that is removed before this process ends.
    """

    def __init__(self, beat: Callable[[], str | None], parent: int, folder: Path) -> None:
        self._beat, self._parent, self._folder = beat, parent, folder
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="outgrow-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join(BEAT_SECONDS)  # a beat may wait for a host that is gone

    def exit_if_orphaned(self) -> None:
        """End this process if the one that started it is gone."""
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
        os._exit(1)


def touch_heartbeat(path: Path) -> str | None:
    """A beat that its run sees. Without the file the run is over."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return "the run is over"
    return None


class LivenessProbe:
    """Tells how long a process has been silent.

    A sign of life is a beat, or a tenth of the time spent computing: compiled code may hold Python's lock for long.
    While the one who looks is stopped itself, no more than a second counts as silence.

    Args:
        path: What the process touches.
        pid: The process.
    """

    def __init__(self, path: Path, pid: int) -> None:
        self._path, self._process = path, psutil.Process(pid)
        self._beat, self._busy = self._read_activity()
        self._silence, self._looked = 0.0, time.monotonic()

    def silent_seconds(self) -> float:
        """Seconds without a sign of life. To be called several times a second."""
        now = time.monotonic()
        self._silence += min(now - self._looked, BEAT_SECONDS)
        self._looked = now
        beat, busy = self._read_activity()
        if beat != self._beat or busy - self._busy > _BUSY * self._silence:
            self._beat, self._busy, self._silence = beat, busy, 0.0
        return self._silence

    def has_ended(self) -> bool:
        """Whether the process has ended. It may not have been waited for yet."""
        try:
            return self._process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return True

    def _read_activity(self) -> tuple[int, float]:
        try:
            times = self._process.cpu_times()
        except psutil.Error:  # it has ended
            return -1, 0.0
        return self._path.stat().st_mtime_ns, times.user + times.system
