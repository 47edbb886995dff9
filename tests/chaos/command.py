"""A run: the command that trains, on this host or by torchrun on simulated ones, started, watched and waited for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from place import Ending, Place, left_in, sweep, workers_of
from workloads import Workload

if TYPE_CHECKING:
    from netlab import Lab

_AS_FILES = 'log="$1"; shift; exec "$@" > "$log.out" 2> "$log"'


@dataclass(kw_only=True)
class Run:
    """A run that may be disturbed.

    Attributes:
        folder: All that it has.
        workload: What it trains.
        draw: Where what is random comes from.
        first_seconds: When the first epoch of a run that nobody disturbs has ended, after the start.
        processes: The commands under way, one per host.
        lab: Simulated hosts; None for this one alone.
        stack: What is undone at the end.
        began: When the command was started.
    """

    folder: Path
    workload: Workload
    draw: random.Random
    first_seconds: float = 30.0
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    lab: Lab | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    began: float = 0.0

    @property
    def place(self) -> Place:
        """Where its files are. `disk` is a folder; a fault may put a disk of its own there."""
        disk = self.folder / "disk"
        return Place(out=disk / "run", scratch=disk / "tmp", store=self.folder / "store")

    @property
    def over(self) -> bool:
        """Whether one of its commands has ended."""
        return any(process.poll() is not None for process in self.processes)

    def new(self, words: Sequence[str]) -> None:
        """Start training."""
        place, work = self.place, self.workload
        number = [] if self.lab else ["--workers", str(work.workers)]
        self._start([str(place.store), *work.words, *number, *words, "--out", str(place.out)])

    def resume(self) -> None:
        """Start the command that goes on."""
        self._start(["--resume", "--out", str(self.place.out)])

    def _start(self, given: list[str]) -> None:
        self.began = time.monotonic()
        log = self.folder / f"errors-{len(list(self.folder.glob('errors-*.out')))}"
        command = [sys.executable, "-m", "outgrow", "train", *given]
        if self.lab is None:
            self.place.scratch.mkdir(parents=True, exist_ok=True)
            starts = [(0, command, self.place.scratch)]
        else:
            from netlab import torchrun

            folders = [self.place.scratch / f"host-{host}" for host in range(self.lab.hosts)]
            starts = [(host, torchrun(command, len(folders), 1), path) for host, path in enumerate(folders)]
        self._logs = [log.with_name(f"{log.name}-{host}") for host, _, _ in starts]
        self.processes = [self._started(*each) for each in starts]

    def _started(self, host: int, command: list[str], scratch: Path) -> subprocess.Popen[str]:
        scratch.mkdir(parents=True, exist_ok=True)
        log = self._logs[host]
        if self.lab is not None:
            settings = [f"{name}_NUM_THREADS={self._threads}" for name in ("OMP", "MKL", "NUMBA")]
            words = ["env", f"TMPDIR={scratch}", *settings, "sh", "-c", _AS_FILES, "sh", str(log), *command]
            process = self.lab.start(host, words)
            for pipe in (process.stdout, process.stderr):  # what it says is in files
                assert pipe is not None
                pipe.close()
            return process
        environment = {**os.environ, "TMPDIR": str(scratch)}
        with log.open("wb") as errors, log.with_name(f"{log.name}.out").open("wb") as output:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    @property
    def _threads(self) -> int:
        """Of each worker, as if all were on one host: the last bits of torch's own sums depend on it."""
        return max(1, len(os.sched_getaffinity(0)) // self.workload.workers)

    def victims(self) -> dict[int, psutil.Process]:
        """The living workers by rank; a run of one worker is its own."""
        if self.workload.workers > 1:
            return workers_of(self.processes[0])
        with suppress(psutil.Error):
            return {0: psutil.Process(self.processes[0].pid)}
        return {}

    def done(self, rank: int) -> bool:
        """Whether a worker has handed its result over, or the run has its summary: then it may end well."""
        place = self.place
        return any(place.scratch.glob(f"outgrow-*/attempt-*/result-{rank}")) or (place.out / "summary.json").exists()

    def errors(self) -> str:
        """What all commands have written to standard error."""
        return "".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    def wait(self, longest_seconds: float, since: float | None = None) -> Ending:
        """Wait for all commands, not too long; see what they have left. ``since`` is when they were disturbed."""
        since = self.began if since is None else since
        deadline = since + longest_seconds
        with suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        seconds = time.monotonic() - since
        codes = [process.poll() for process in self.processes]
        code = None if None in codes else next((code for code in codes if code), 0)
        left = () if code is None else left_in(self.place.scratch)
        sweep(self.processes, self.place.scratch)
        return self.place.ending(code, seconds, self.errors(), left)
