"""Which worker a failed run is to be blamed on, and what the user is told."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from outgrow.core.errors import OutgrowError, WorkerError
from outgrow.runtime.distributed.job_files import FailureRecord


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How a worker ended that gave no result.

    Attributes:
        rank: Number of the worker.
        silent_seconds: How long it had been silent, if that is why it was ended.
        exit_code: As it ended by itself, negative for a signal; None if the run ended it.
        record: What it wrote down, if it did.
        output: What it printed last.
    """

    rank: int
    silent_seconds: float | None
    exit_code: int | None
    record: FailureRecord | None
    output: str

    def blame_rank(self) -> tuple[int, float]:
        """Smallest for the worker to blame.

        In this order: silent; died of a signal; raised something, the first one; ended without a word; lost a peer.
        """
        if self.silent_seconds is not None:
            return 0, -self.silent_seconds
        if self.exit_code is not None and self.exit_code < 0:
            return 1, 0.0
        if self.record is not None:
            return (4 if self.record.is_peer_failure else 2), self.record.seconds
        return (3 if self.exit_code is not None else 5), 0.0


def root_cause_error(exits: list[WorkerExit], workers: int) -> OutgrowError:
    """The error to raise for a failed run: one of ours as it was raised, else a `WorkerError`.

    Args:
        exits: Of all workers that gave no result.
        workers: Number of all workers.
    """
    guilty = min(exits, key=WorkerExit.blame_rank)
    failed = _worker_error(guilty, f"worker {guilty.rank} of {workers}")
    if guilty.blame_rank()[0] == 2 and guilty.record is not None and guilty.record.error is not None:
        guilty.record.error.__cause__ = failed
        return guilty.record.error
    return failed


def _worker_error(ending: WorkerExit, who: str) -> WorkerError:
    if ending.silent_seconds is not None:
        return WorkerError(
            f"{who} was silent for {ending.silent_seconds:.0f} s",
            needed="a sign of life every second",
            got="none: its process was stopped, or hangs inside compiled code",
            repair="if the machine is merely overloaded, use fewer workers or allow a longer silence",
            report=_last_output(ending),
        )
    if ending.exit_code is not None and ending.exit_code < 0:
        return _signal_error(ending, who, -ending.exit_code)
    if ending.record is not None:
        return WorkerError(
            f"{who} failed: {ending.record.message}",
            needed="workers that reach the end of the run",
            got="an exception"
            if not ending.record.is_peer_failure
            else "a connection that broke, and no worker that failed",
            repair="the worker's own traceback follows",
            report=ending.record.report,
        )
    return WorkerError(
        f"{who} ended with exit code {ending.exit_code} before it was done",
        needed="workers that reach the end of the run",
        got="neither a result nor an exception",
        repair="look for code that ends the process, and at what the worker wrote last",
        report=_last_output(ending),
    )


def _signal_error(ending: WorkerExit, who: str, number: int) -> WorkerError:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    repairs = {
        "SIGKILL": "usually the system was out of memory (its log says so): use fewer workers or a smaller model",
        "SIGBUS": "usually a disk or shared memory is full, or a file shrank while it was mapped: make room",
    }
    crashes = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")
    crash = "compiled code crashed: what the worker wrote last shows where it was"
    other = "somebody ended the process: start again"
    return WorkerError(
        f"{who} was killed by {name}",
        needed="workers that live until the run ends",
        got=f"signal {number}",
        repair=repairs.get(name, crash if name in crashes else other),
        report=_last_output(ending),
    )


def _last_output(ending: WorkerExit) -> str:
    return f"worker {ending.rank} wrote last:\n{ending.output}" if ending.output.strip() else ""
