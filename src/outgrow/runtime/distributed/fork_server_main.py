"""Entry point of the fork server: ``python -m outgrow.runtime.distributed.fork_server_main LAUNCHER ROOM``.

Its standard input is a socket to the launcher. It imports what workers need and forks them on request; they are its
children, and it tells how they ended. A fork is safe because nothing has happened in the server but imports: no kernel
or operation of torch has run, so no threads of OpenMP are missing in the child; no device was touched. (OpenBLAS, which
starts threads on import, stops them before a fork by itself.)

It ends as soon as the launcher closes the socket or is gone, and the kernel then kills its workers.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from outgrow.core.process import end_with_parent, outlive_parent, set_process_title
from outgrow.runtime.distributed.job_files import JobFiles
from outgrow.runtime.distributed.worker_main import run_worker

MESSAGE_BYTES = 1 << 17
"""Size of the largest message. The kernel takes twice as many bytes at once."""
END_SECONDS = 30.0
"""A process that was killed ends within this time, unless it waits for a disk that is gone."""
_LOOK_MILLISECONDS = 1000
_COMMAND = f"{sys.executable} -P -m"


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """What the launcher asks for.

    Attributes:
        folder: Folder of the attempt's `JobFiles`.
        workers: Number of workers.
        directory: Working directory of the workers.
        modules: Modules of this library that the launcher has imported, and workers may need.
    """

    folder: str
    workers: int
    directory: str
    modules: Sequence[str]


def main() -> None:
    """Serve the launcher; in forked children, run a worker."""
    launcher = int(sys.argv[1])
    # Imports take seconds, in which the end of the connection would not be noticed.
    end_with_parent(launcher)
    set_process_title(f"{_COMMAND} outgrow.runtime.distributed.fork_server_main {launcher}")
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.disable()  # imported objects stay; collections would only write to pages that are shared with workers
    importlib.import_module("outgrow.runtime.distributed.worker")
    # The kernel would take the end of the thread that started this process for the end of the launcher.
    outlive_parent()
    server = os.getpid()
    request, rank = _serve(connection, launcher)
    _become_worker(request, rank, connection, server)


def _serve(connection: socket.socket, launcher: int) -> tuple[ForkRequest, int]:
    """Answer requests as long as there is a launcher. Returns in children only, with what each is to do."""
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    while True:
        # Another process may have inherited the launcher's end, which then stays open.
        while not readable.poll(_LOOK_MILLISECONDS):
            if os.getppid() != launcher:
                os._exit(1)
        message = connection.recv(MESSAGE_BYTES)
        if not message:
            os._exit(0)
        given: dict[str, Any] = json.loads(message)
        if "end" in given:
            answer: dict[str, Any] = {"exit_codes": _end_workers(given["end"])}
        else:
            request = ForkRequest(**given["fork"])
            _import_modules(request.modules)
            pids: list[int] = []
            try:
                for rank in range(request.workers):
                    pid = os.fork()
                    if not pid:
                        return request, rank
                    pids.append(pid)
                answer = {"pids": pids}
            except OSError as error:
                _end_workers(pids)
                answer = {"error": str(error)}
        with suppress(OSError):  # the launcher has ended, which the next poll tells
            connection.send(json.dumps(answer).encode())


def _import_modules(names: Sequence[str]) -> None:
    for name in names:
        # A worker that needs it tells what is wrong.
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()


def _end_workers(pids: Sequence[int]) -> list[int | None]:
    """Kill workers and their children; return exit codes, None for those that survive."""
    codes: dict[int, int] = {}
    for pid in pids:
        # Also by its own id: a child that was forked just now has no session of its own yet.
        for kill in (os.kill, os.killpg):
            with suppress(OSError):
                kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while True:
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if len(codes) == len(pids) or time.monotonic() > deadline:
            return [codes.get(pid) for pid in pids]
        time.sleep(0.001)


def _become_worker(request: ForkRequest, rank: int, connection: socket.socket, server: int) -> NoReturn:
    connection.close()
    os.setsid()
    end_with_parent(server)
    job_files = JobFiles(Path(request.folder))
    with job_files.output_path(rank).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    set_process_title(f"{_COMMAND} outgrow.runtime.distributed.worker_main {request.folder} {rank}")
    os.chdir(request.directory)
    # Python's own generator does so by itself; torch's has the same seed in every new process.
    importlib.import_module("numpy").random.seed()
    gc.enable()
    run_worker(job_files, rank, server)
    _exit()


def _exit() -> NoReturn:
    """End as Python does, but without taking objects apart, which would copy all pages that are shared."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
