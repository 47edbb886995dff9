"""Processes of workers on this host: forked by a server on Linux, started as interpreters elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from outgrow.runtime.distributed.fork_server import ForkServer, borrow_server, no_process_error, start_server
from outgrow.runtime.distributed.job_files import JobFiles
from outgrow.runtime.distributed.worker import loopback_interface
from outgrow.runtime.system.environment import thread_environment

# A process that was killed ends within this time, unless it waits for a disk that is gone.
_END_SECONDS = 30.0


class WorkerProcesses(ABC):
    """The processes of one attempt of a run, each in its own session, so that Ctrl-C reaches the launcher only."""

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]:
        """Process ids, by rank. Until `end` the system gives none of them to another process."""

    @abstractmethod
    def end(self) -> list[int | None]:
        """Kill the processes that still run, and their children. May be called again.

        Returns:
            Exit code of each process, negative for a signal; None if it has not ended.
        """


@contextmanager
def worker_processes(job_files: JobFiles, workers: int) -> Iterator[WorkerProcesses]:
    """Start the workers of one attempt, whose files are there; kill them at the end.

    Raises:
        WorkerError: The processes cannot be started.
    """
    environment = _worker_environment(workers)
    with ExitStack() as stack:
        processes: WorkerProcesses
        if can_fork():
            processes = ForkedWorkers(stack.enter_context(borrow_server(environment)), job_files, workers)
        else:
            processes = InterpreterWorkers(environment, job_files, workers)
        stack.callback(processes.end)
        yield processes


def prepare_processes(workers: int) -> None:
    """Have a server import torch for ``workers`` workers, while this process does other work before it starts them."""
    if can_fork():
        start_server(_worker_environment(workers))


def can_fork() -> bool:
    """Whether processes that have imported torch can be forked, and end with their parent: so it is on Linux."""
    return sys.platform == "linux"


def _worker_environment(workers: int) -> dict[str, str]:
    return {
        **os.environ,
        **thread_environment(workers),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "PYTHONFAULTHANDLER": "1",
        # With ``-P`` an interpreter searches exactly these; ``-m`` alone puts the current folder first.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }


class ForkedWorkers(WorkerProcesses):
    """Workers that a server forks, so that they need not import anything."""

    def __init__(self, server: ForkServer, job_files: JobFiles, workers: int) -> None:
        self._server = server
        self._pids = server.fork_workers(job_files, workers)
        self._exit_codes: list[int | None] | None = None

    @property
    def pids(self) -> Sequence[int]:
        """See `WorkerProcesses.pids`."""
        return self._pids

    def end(self) -> list[int | None]:
        """See `WorkerProcesses.end`."""
        if self._exit_codes is None:
            self._exit_codes = self._server.end_workers(self._pids)
        return self._exit_codes


class InterpreterWorkers(WorkerProcesses):
    """Workers that are interpreters of their own, each of which imports all that it needs."""

    def __init__(self, environment: Mapping[str, str], job_files: JobFiles, workers: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(workers):
                self._start(environment, job_files, rank)
        except BaseException as error:
            self.end()
            if isinstance(error, OSError):
                raise no_process_error(error) from error
            raise

    def _start(self, environment: Mapping[str, str], job_files: JobFiles, rank: int) -> None:
        module = "outgrow.runtime.distributed.worker_main"
        with job_files.output_path(rank).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(job_files.folder), str(rank)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)

    @property
    def pids(self) -> Sequence[int]:
        """See `WorkerProcesses.pids`."""
        return [process.pid for process in self._processes]

    def end(self) -> list[int | None]:
        """See `WorkerProcesses.end`."""
        for process in self._processes:
            # Safe even if it has just ended: until it is reaped, the system does not reuse its process id.
            if process.returncode is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            # A process in uninterruptible sleep, such as on a dead disk, survives even SIGKILL.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        return [process.returncode for process in self._processes]
