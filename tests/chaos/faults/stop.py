"""Processes that stand still for a while, or that hardly get on."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
from command import Run
from judge import Promise


class Stop:
    """A worker is stopped by SIGSTOP and goes on later. It is dead for a run whose heartbeat is shorter than that.

    Args:
        seconds: How long it stands still.
        heartbeat_seconds: Longest silence that the run bears.
    """

    def __init__(self, seconds: float, heartbeat_seconds: float) -> None:
        self._seconds, self._heartbeat_seconds = seconds, heartbeat_seconds

    @property
    def words(self) -> list[str]:
        return ["--heartbeat", f"{self._heartbeat_seconds:g}"]

    def ready(self, run: Run) -> None:
        """Nothing to prepare."""

    def strike(self, run: Run) -> Promise | None:
        victims, number = run.victims(), run.workload.workers
        if not victims:
            return None
        rank = run.draw.choice(sorted(victims))
        done = run.done(rank)
        with suppress(psutil.NoSuchProcess):
            victims[rank].suspend()
        _while_running(run, self._seconds, alone=number == 1)
        with suppress(psutil.NoSuchProcess):
            victims[rank].resume()
        what = f"worker {rank} of {number} was stopped for {self._seconds:g} s"
        if self._seconds < self._heartbeat_seconds or number == 1:
            return Promise(what=what, ends=False)
        said = f"worker {rank} of {number} was silent for"
        return Promise(what=what, ends=None if done else True, said=said, codes=(1,), torn=True)

    def mend(self, run: Run) -> None:
        """Nothing to mend."""


class Slow:
    """A worker gets a tenth of the time: it stops and goes on, again and again.

    Args:
        seconds: For how long, at most.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @property
    def words(self) -> list[str]:
        return []

    def ready(self, run: Run) -> None:
        """Nothing to prepare."""

    def strike(self, run: Run) -> Promise | None:
        victims = run.victims()
        if not victims:
            return None
        rank = run.draw.choice(sorted(victims))
        deadline = time.monotonic() + self._seconds
        with suppress(psutil.NoSuchProcess):
            while time.monotonic() < deadline and not run.over:
                victims[rank].suspend()
                time.sleep(0.45)
                victims[rank].resume()
                time.sleep(0.05)
        what = f"worker {rank} of {run.workload.workers} had a tenth of its time for {self._seconds:g} s"
        return Promise(what=what, ends=False)

    def mend(self, run: Run) -> None:
        """Nothing to mend."""


def _while_running(run: Run, seconds: float, *, alone: bool) -> None:
    """Wait so long, or until the run is over; a run that stands still itself is not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (alone or not run.over):
        time.sleep(0.05)
