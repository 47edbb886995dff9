"""Root cause of a failed run, and the error that reports it."""

from __future__ import annotations

import signal
import socket
from dataclasses import dataclass

from outgrow.core.errors import OutgrowError, WorkerError
from outgrow.runtime.distributed.job_files import FailureRecord


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """Exit of a worker without a result.

    Attributes:
        rank: Number of the worker.
        silent_seconds: Length of its silence, if it was killed for that; else None.
        exit_code: Exit code if it ended by itself, negative for a signal; None if the launcher killed it.
        record: Failure record that it wrote; None if it wrote none.
        output: Last lines that it printed.
    """

    rank: int
    silent_seconds: float | None
    exit_code: int | None
    record: FailureRecord | None
    output: str

    def blame_rank(self) -> tuple[int, float]:
        """Return a sort key that is smallest for the root cause.

        The order: silent; killed by a signal; raised an exception, the earliest first; exited without a
        record; lost a peer.
        """
        # A worker that hangs or is killed makes its peers fail, so it is the likelier cause.
        if self.silent_seconds is not None:
            return 0, -self.silent_seconds
        if self.exit_code is not None and self.exit_code < 0:
            return 1, 0.0
        if self.record is not None:
            return (4 if self.record.is_peer_failure else 2), self.record.seconds
        return (3 if self.exit_code is not None else 5), 0.0


def describe_worker(rank: int, size: int) -> str:
    """Return what messages call a worker of several hosts that speaks of itself."""
    return f"worker {rank} of {size} on {socket.gethostname()}"


def root_cause_error(exits: list[WorkerExit], workers: int) -> OutgrowError:
    """Return the error to raise for a failed run: the worker's own `OutgrowError`, else a `WorkerError`.

    Args:
        exits: Exits of all workers without a result.
        workers: Number of all workers.
    """
    culprit = min(exits, key=WorkerExit.blame_rank)
    failed = _worker_error(culprit, f"worker {culprit.rank} of {workers}")
    # The user can act on our own errors: raise them as with one worker, with the worker's number as the
    # cause.
    if culprit.blame_rank()[0] == 2 and culprit.record is not None and culprit.record.error is not None:
        culprit.record.error.__cause__ = failed
        return culprit.record.error
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
    except ValueError:  # a real-time signal, which has no name
        name = f"signal {number}"
    repairs = {
        "SIGKILL": "usually the system was out of memory (its log says so): use fewer workers or a smaller model",
        "SIGBUS": "usually a disk or shared memory is full, or a file shrank while it was mapped: make room",
    }
    # Signals that compiled code raises against itself; faulthandler has printed the stack.
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
