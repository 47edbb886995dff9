"""The launcher's side of the fork server, a process that has imported torch and this library, and forks workers.

To start Python and import all that a worker needs takes 1 to 2 CPU seconds. The server does it once, for all workers,
restarts and later runs: see `fork_server_main`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.fork_server_main import END_SECONDS, MESSAGE_BYTES, ForkRequest
from outgrow.runtime.distributed.job_files import JobFiles, read_last_lines

_PACKAGE = __name__.partition(".")[0]
# To import torch from a disk that is slow, or busy.
_FORK_SECONDS = 600.0
_CLOSE_SECONDS = 5.0
# In the server's command line, for those that its children show.
_TITLE_ROOM = " " * 1024


class ForkServer:
    """A process that forks the workers of one run at a time.

    Args:
        environment: Environment of the server, and so of all workers: torch reads the number of threads in it on
            import.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._state = _launcher_state(environment)
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_answer_due = False
        # In memory: the server outlives the scratch folder of a run, and nothing is left if this process is killed.
        self._output = os.fdopen(os.memfd_create("outgrow-fork-server"), "wb")
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__name__}_main", str(os.getpid()), _TITLE_ROOM],
                env=dict(environment),
                stdin=theirs.fileno(),
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether workers of this server are those that this process would start now with an environment."""
        return self.is_usable() and self._state == _launcher_state(environment)

    def is_usable(self) -> bool:
        """Whether the server runs, and awaits a request."""
        return not self._is_answer_due and self._process.poll() is None

    def fork_workers(self, job_files: JobFiles, workers: int) -> list[int]:
        """Start the workers of one attempt; return their process ids, by rank.

        Raises:
            WorkerError: The server has failed, or the system starts no more processes.
        """
        # Users' modules are not imported ahead: they may change between runs, and do anything on import.
        modules = tuple(name for name in [*sys.modules] if name.partition(".")[0] == _PACKAGE)
        request = ForkRequest(folder=str(job_files.folder), workers=workers, directory=os.getcwd(), modules=modules)
        answer = self._ask({"fork": asdict(request)}, _FORK_SECONDS)
        if answer is None:
            raise self._failure()
        if "error" in answer:
            raise no_process_error(answer["error"])
        return [int(pid) for pid in answer["pids"]]

    def end_workers(self, pids: Sequence[int]) -> list[int | None]:
        """Kill workers that still run, and their children; return exit codes as `WorkerProcesses.end` does."""
        answer = self._ask({"end": list(pids)}, 2 * END_SECONDS)
        if answer is None:
            self.close()
            # The kernel has killed them with the server.
            return [-signal.SIGKILL] * len(pids)
        return list(answer["exit_codes"])

    def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a request and return the answer; None if the server has ended or does not answer."""
        # An answer that an exception of a signal handler keeps from being read would be taken for the next one.
        self._is_answer_due = True
        try:
            self._connection.settimeout(seconds)
            self._connection.send(json.dumps(request).encode())
            answer = self._connection.recv(MESSAGE_BYTES)
        except OSError:
            return None
        if not answer:
            return None
        self._is_answer_due = False
        return dict(json.loads(answer))

    def _failure(self) -> WorkerError:
        code = self._end_process()
        output = read_last_lines(Path(f"/proc/self/fd/{self._output.fileno()}"))
        self.close()
        return WorkerError(
            f"the process that forks workers ended with exit code {code}",
            needed="a process that can import torch and outgrow",
            got="neither workers nor an answer",
            repair="if the code is -9, the system was out of memory; else look at what the process wrote last",
            report=output,
        )

    def close(self) -> None:
        """End the server and all workers that it still has."""
        self._end_process()
        self._output.close()

    def _end_process(self) -> int:
        self._connection.close()
        if self._state[0] != os.getpid():  # a fork of the process that started the server, which it keeps
            self._process.returncode = 0
        try:
            return self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def no_process_error(reason: object) -> WorkerError:
    """Return the error that the system starts no more processes."""
    return WorkerError(
        "the processes of the workers cannot be started",
        needed="a system that starts one process for each worker",
        got=str(reason),
        repair="use fewer workers, or raise the limit on processes (ulimit -u) or on memory",
    )


def _launcher_state(environment: Mapping[str, str]) -> tuple[int, frozenset[int], dict[str, str]]:
    """What workers inherit from the launcher by way of the server."""
    return os.getpid(), frozenset(os.sched_getaffinity(0)), dict(environment)


_idle: list[ForkServer] = []
"""At most one, left by the last run for the next."""


@contextmanager
def borrow_server(environment: Mapping[str, str]) -> Iterator[ForkServer]:
    """Lend a server to one attempt of a run: the idle one if it suits, else a new one. It is idle afterwards."""
    server = _take_idle(environment) or ForkServer(environment)
    try:
        yield server
    finally:
        if server.is_usable():
            _keep_idle(server)
        else:
            server.close()


def start_server(environment: Mapping[str, str]) -> None:
    """Have an idle server that suits; return without waiting until it has imported anything."""
    _keep_idle(_take_idle(environment) or ForkServer(environment))


def _take_idle(environment: Mapping[str, str]) -> ForkServer | None:
    # Several threads may train at once: only single operations of lists are safe then.
    with suppress(IndexError):
        server = _idle.pop()
        if server.suits(environment):
            return server
        server.close()
    return None


def _keep_idle(server: ForkServer) -> None:
    _idle.append(server)
    with suppress(IndexError):
        while len(_idle) > 1:
            _idle.pop(0).close()


def _close_idle() -> None:
    with suppress(IndexError):
        while True:
            _idle.pop().close()


atexit.register(_close_idle)
if sys.platform == "linux":
    # Else the server would outlive this process for as long as a forked one lives.
    os.register_at_fork(after_in_child=_close_idle)
