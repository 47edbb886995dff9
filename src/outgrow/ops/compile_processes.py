"""Compilation of kernels side by side, in processes of their own: what takes Python's lock takes another process's.

A process is started when a kernel is first asked for, and ends when this one does, however that ends. It compiles as
this process would and leaves the result in the cache on disk (`kernel_cache.py`), nowhere else: whatever happens to it,
who needs a kernel that is not there compiles it.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from typing import Any, NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes

NUMBER_VARIABLE = "OUTGROW_COMPILE_PROCESSES"
_MOST = 4
"""Processes by default: each imports the library, which takes as long as some kernels do."""
_BYTES = 1 << 29
"""Memory of one process. As much again is left to training."""
_END_SECONDS = 5.0
ANSWERS = {b"compiled\n": True, b"failed\n": False}
"""Lines that a process writes, one for each kernel."""


class KernelName(NamedTuple):
    """What finds a kernel in another process: the module, the name in it, and the arguments if that makes kernels."""

    module: str
    name: str
    arguments: tuple[Any, ...] | None = None


class CompileRequest(NamedTuple):
    """A kernel, and the Numba types of its arguments, in its form for all threads.

    Without types: the form for one thread, for all types of `common_signatures`.
    """

    kernel: KernelName
    signature: tuple[Any, ...] | None = None


def most_processes() -> int:
    """Return how many processes may compile for this one: ``$OUTGROW_COMPILE_PROCESSES``.

    Without it, one less than the process has cores, at most 4. None for one of several workers, or of a pool.

    Raises:
        InputError: The variable is not a number of processes.
    """
    given = os.environ.get(NUMBER_VARIABLE)
    if given and not given.isdecimal():
        raise InputError(
            f"the environment variable {NUMBER_VARIABLE} is not understood",
            needed="a number of processes; 0 for none",
            got=repr(given),
            repair=f"unset {NUMBER_VARIABLE}",
        )
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)
    is_alone = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1" and parent_process() is None
    # A program that was frozen into one file would start itself.
    can_start = os.name == "posix" and bool(sys.executable) and not getattr(sys, "frozen", False)
    if not (is_alone and can_start):
        return 0
    return int(given) if given else min(cores - 1, _MOST)


class CompileProcesses:
    """Processes that compile kernels for this one, as many at a time as there are processes. Final.

    Methods may be called by any thread. A forked child has none.
    """

    def __init__(self) -> None:
        self._begin(is_closed=False)

    def _begin(self, *, is_closed: bool) -> None:
        self._changed = threading.Condition()
        self._open: dict[CompileRequest, bool] = {}  # whether a process has taken it
        self._finished: dict[CompileRequest, bool] = {}  # whether it was compiled
        self._queue: deque[CompileRequest] = deque()
        self._last_change = -math.inf
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._num_idle = 0
        self._is_closed = is_closed

    @property
    def idle_seconds(self) -> float:
        """Seconds since a kernel was waited for or compiled."""
        return 0.0 if self._open else time.monotonic() - self._last_change

    @property
    def num_kernels(self) -> int:
        """Kernels that were compiled."""
        return sum(self._finished.values())

    @property
    def num_missing(self) -> int:
        """Kernels that were asked for and could not be compiled."""
        return len(self._finished) - self.num_kernels

    def is_open(self, request: CompileRequest) -> bool:
        """Whether a kernel waits to be compiled, or is being compiled."""
        return request in self._open

    def submit(self, request: CompileRequest) -> bool:
        """Ask for a kernel that is not on disk; return whether it will be compiled."""
        with self._changed:
            if self._is_closed or request in self._finished:
                return False
            if request in self._open:
                return True
            if self._num_idle == len(self._queue) and not self._start_thread() and not self._threads:
                return False
            self._open[request] = False
            self._queue.append(request)
            self._changed.notify_all()
            return True

    def wait(self, tell: Callable[[int, int, str], None]) -> None:
        """Wait for all kernels; ``tell(number, count, name)`` is called whenever their state changes."""
        with self._changed:
            while self._open:
                taken = [request for request, is_taken in self._open.items() if is_taken] or list(self._open)
                count = len(self._finished) + len(self._open)
                tell(len(self._finished) + 1, count, taken[0].kernel.name)
                self._changed.wait()

    def close(self) -> None:
        """End all processes; kernels that they have not compiled are compiled where they are needed."""
        self._stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_END_SECONDS)

    def _stop(self) -> None:
        with self._changed:
            self._is_closed = True
            self._last_change = time.monotonic()
            self._finished |= dict.fromkeys(self._open, False)
            self._queue.clear()
            self._open.clear()
            self._changed.notify_all()
            # Their threads, which wait for an answer, get none.
            for process in self._processes:
                process.kill()

    def forget(self) -> None:
        """Have no processes, in a forked child: they are the parent's."""
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        os.close(stream.fileno())
            # Or Python would wait for it when nobody refers to it any more.
            process.returncode = 0
        self._begin(is_closed=True)

    def _start_thread(self) -> bool:
        if len(self._threads) >= most_processes() or available_bytes() < 2 * _BYTES:
            return False
        self._num_idle += 1
        thread = threading.Thread(target=self._serve, name="outgrow-compile", daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def _serve(self) -> None:
        """Hand requests to a process of this thread, one at a time, until it fails or all are closed."""
        process: subprocess.Popen[bytes] | None = None
        try:
            while (request := self._take()) is not None:
                process = process or self._start_process()
                self._finish(request, _compile_in(process, request))
        # It could not be started, has ended or was ended, or answers otherwise: no other one is tried.
        except (OSError, KeyError):
            self._stop()
        finally:
            if process is not None:
                _end(process)

    def _take(self) -> CompileRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            request = self._queue.popleft()
            self._open[request] = True
            self._num_idle -= 1
            self._changed.notify_all()
            return request

    def _finish(self, request: CompileRequest, is_compiled: bool) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._finished[request] = is_compiled
            self._last_change = time.monotonic()
            self._num_idle += 1
            self._changed.notify_all()

    def _start_process(self) -> subprocess.Popen[bytes]:
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        command = [sys.executable, "-P", "-m", "outgrow.ops.compile_process", str(os.getpid())]
        with self._changed:
            if self._is_closed:
                raise OSError("closed")
            process = subprocess.Popen(
                command, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._processes.append(process)
        return process


def _compile_in(process: subprocess.Popen[bytes], request: CompileRequest) -> bool:
    """Let a process compile a kernel; return whether it could be compiled and kept."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(request))
    process.stdin.flush()
    return ANSWERS[process.stdout.readline()]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        # What was not sent cannot be sent any more.
        with suppress(OSError):
            stream.close()
    process.wait()


compile_processes = CompileProcesses()
"""The processes that compile for this one."""

atexit.register(compile_processes.close)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=compile_processes.forget)
