"""Workers on this host: started, watched, ended."""

from __future__ import annotations

import codecs
import itertools
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)

from outgrow.core.errors import InputError, WorkerError
from outgrow.runtime.distributed.failures import WorkerExit, root_cause_error
from outgrow.runtime.distributed.heartbeat import LivenessProbe
from outgrow.runtime.distributed.job_files import (
    JobFiles,
    JobSpec,
    MessageReader,
    explain_write_error,
    read_last_lines,
    serialize_by_value,
)
from outgrow.runtime.distributed.worker import WorkerContext, loopback_interface
from outgrow.runtime.storage.tempdir_reaper import temporary_directory
from outgrow.runtime.system.environment import thread_environment

T = TypeVar("T")
_LOOK_SECONDS = 0.1
_SETTLE_SECONDS = 3.0  # after the first failure: peers lose it, and the guilty one finishes its record
_FINISH_SECONDS = 30.0  # after the last result


@dataclass(frozen=True, kw_only=True)
class RestartEvent:
    """The workers were started again.

    Attributes:
        attempt: How often so far.
        reason: How the last attempt ended.
    """

    attempt: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}; all workers start again (restart {self.attempt})"


def run_workers(
    task: Callable[[WorkerContext], T],
    workers: int,
    *,
    heartbeat_seconds: float = 30.0,
    restarts: int = 0,
    prepare: Callable[[Path], object] = lambda folder: None,
    on_message: Callable[[object], None] = lambda message: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[T]:
    """Run a task in new processes on this host and wait for them. No main guard is needed, nor a script at all.

    What worker 0 prints goes to standard error; what the others print is kept, for the error if they fail.

    Args:
        task: What every worker does. It may be a closure, and may use classes of the script or notebook.
        workers: Number of processes. They share the cores.
        heartbeat_seconds: Longest silence of a worker. A slow one is not silent.
        restarts: How often all workers are started again after one has failed.
        prepare: Called first, here, with the scratch folder of the run: what it puts there all workers find.
        on_message: Called here with each object that a worker tells, in its order, and with `RestartEvent`.
        should_stop: Asked ten times a second; once it is true, so is ``stop_asked()`` of the workers.

    Returns:
        What each worker's task gave, by rank.

    Raises:
        InputError: The task cannot be sent to other processes.
        WorkerError: A worker died, was silent or raised an exception.
        OutgrowError: The one that a worker raised.
    """
    sent = _serialize_task(task)
    with _run_folder() as folder:
        prepare(folder)
        for attempt in itertools.count():
            try:
                with _running_workers(sent, workers, attempt, folder) as running:
                    return running.wait_for_results(heartbeat_seconds, on_message, should_stop)
            except WorkerError as error:
                if attempt >= restarts:
                    raise
                on_message(RestartEvent(attempt=attempt + 1, reason=error.what))
    raise AssertionError


@contextmanager
def _run_folder() -> Iterator[Path]:
    """The scratch folder of a run."""
    with ExitStack() as stack:
        with explain_write_error(Path(tempfile.gettempdir())):
            folder = stack.enter_context(temporary_directory("outgrow-"))
        yield folder


def _serialize_task(task: object) -> bytes:
    try:
        return serialize_by_value(task)
    except Exception as error:
        raise InputError(
            "what the workers should do cannot be sent to them",
            needed="a model, a graph and options that can be pickled",
            got=f"{type(error).__name__}: {error}",
            repair="keep open files, locks and the like out of them, or use one worker",
        ) from error


@contextmanager
def _running_workers(task: bytes, workers: int, attempt: int, folder: Path) -> Iterator[_WorkerGroup]:
    """The processes of one attempt, which are gone afterwards. Their files stay until the run ends."""
    scratch = JobFiles(folder / f"attempt-{attempt}")
    with explain_write_error(scratch.folder):
        scratch.folder.mkdir()
        scratch.task_path.write_bytes(task)
        scratch.write_job_spec(JobSpec(workers=workers, attempt=attempt, parent=os.getpid()))
        for rank in range(workers):
            scratch.reserve_failure_record(rank)
            scratch.heartbeat_path(rank).touch()
        context = _start_workers(scratch, workers)
    try:
        yield _WorkerGroup(scratch, context)
    finally:
        _kill_processes(context)


class _WorkerGroup:
    """Processes and the folder through which they talk."""

    def __init__(self, job_files: JobFiles, context: SubprocessContext) -> None:
        self._job_files, self._context = job_files, context
        self._ranks = range(context.nprocs)
        self._logs = [Path(context.stderrs[rank]) for rank in self._ranks]
        self._output_tail = _OutputTail(self._logs[0])
        self._readers = [MessageReader(job_files.messages_path(rank)) for rank in self._ranks]
        self._probes = [
            LivenessProbe(job_files.heartbeat_path(rank), pid) for rank, pid in sorted(context.pids().items())
        ]

    def wait_for_results(
        self, heartbeat_seconds: float, on_message: Callable[[object], None], should_stop: Callable[[], bool]
    ) -> list[Any]:
        """Wait for the workers; what they gave, or the error of the one to blame."""
        deadline: float | None = None
        while True:
            if should_stop():
                self._job_files.request_stop()
            ended = [pulse.has_ended() for pulse in self._probes]
            silences = [pulse.silent_seconds() for pulse in self._probes]
            silent = [not end and silence > heartbeat_seconds for end, silence in zip(ended, silences, strict=True)]
            self._forward_messages(on_message)
            if deadline is None and (patience := self._grace_seconds(ended)) is not None:
                deadline = time.monotonic() + patience
            if all(ended) or any(silent) or (deadline is not None and time.monotonic() > deadline):
                break
            time.sleep(_LOOK_SECONDS)
        exit_codes = _kill_processes(self._context)
        self._forward_messages(on_message)
        results = [self._job_files.result_path(rank) for rank in self._ranks]
        if all(result.exists() for result in results):
            return [pickle.loads(result.read_bytes()) for result in results]
        endings = [
            WorkerExit(
                rank=rank,
                silent_seconds=silences[rank] if silent[rank] else None,
                exit_code=exit_codes[rank] if ended[rank] else None,
                record=self._read_failure(rank),
                output=read_last_lines(self._logs[rank]),
            )
            for rank in self._ranks
            if not results[rank].exists()
        ]
        raise root_cause_error(endings, len(self._ranks))

    def _grace_seconds(self, ended: list[bool]) -> float | None:
        """How long to wait from now on; None while all is well."""
        done = [self._job_files.result_path(rank).exists() for rank in self._ranks]
        if any(end and not result for end, result in zip(ended, done, strict=True)):
            return _SETTLE_SECONDS
        return _FINISH_SECONDS if all(done) else None

    def _forward_messages(self, on_message: Callable[[object], None]) -> None:
        self._output_tail.print_new()
        for listener in self._readers:
            for message in listener.read_messages():
                on_message(message)

    def _read_failure(self, rank: int) -> Any:
        path = self._job_files.failure_path(rank)
        return pickle.loads(path.read_bytes()) if path.exists() else None


def _kill_processes(context: SubprocessContext) -> list[int | None]:
    """End all processes that are left, and what they have started; gives the exit code of each worker."""
    handlers = [context.subprocess_handlers[rank] for rank in range(context.nprocs)]
    for handler in handlers:
        if handler.proc.returncode is None:  # it may have ended, but its number is still its own
            with suppress(OSError):
                handler.close(signal.SIGKILL)
    for handler in handlers:
        with suppress(subprocess.TimeoutExpired):  # one that waits for a dead disk cannot be killed
            handler.proc.wait(_FINISH_SECONDS)
    return [handler.proc.returncode for handler in handlers]


def _start_workers(job_files: JobFiles, workers: int) -> SubprocessContext:
    """Start the processes, each in a session of its own, so that Ctrl-C reaches this process only."""
    settings = {
        **thread_environment(workers),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    with _preserve_signal_handlers(), _silence_torch_logs():
        context = start_processes(
            name="outgrow",
            entrypoint=sys.executable,
            args={
                rank: ("-P", "-m", "outgrow.runtime.distributed.worker_main", str(job_files.folder), str(rank))
                for rank in range(workers)
            },
            envs={rank: dict(settings) for rank in range(workers)},
            logs_specs=DefaultLogsSpecs(log_dir=str(job_files.folder / "logs"), redirects=Std.ALL),
        )
    assert isinstance(context, SubprocessContext)
    return context


@contextmanager
def _preserve_signal_handlers() -> Iterator[None]:
    """Keep this process's signal handlers: torch puts its own in their place for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    caught = None
    try:
        yield
    except SignalException as error:  # torch has ended what it had started
        caught = error.sigval
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if caught is not None:
        signal.raise_signal(caught)
        raise KeyboardInterrupt


@contextmanager
def _silence_torch_logs() -> Iterator[None]:
    """Without what torch logs of signals and of threads."""
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class _OutputTail:
    """Shows on standard error what a file holds and gets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def print_new(self) -> None:
        """Show what is new."""
        with self._path.open("rb") as file:
            file.seek(self._shown_bytes)
            new = file.read()
        if new:
            self._shown_bytes += len(new)
            sys.stderr.write(self._decoder.decode(new))
            sys.stderr.flush()
