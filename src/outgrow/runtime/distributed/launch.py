"""Launcher of worker processes on this host: it starts, watches and stops them."""

from __future__ import annotations

import codecs
import itertools
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.runtime.distributed.worker_processes import WorkerProcesses, prepare_processes, worker_processes
from outgrow.runtime.storage.tempdir_reaper import temporary_directory

T = TypeVar("T")
_LOOK_SECONDS = 0.1
# Grace period after the first failure: the failed worker finishes its record, and its peers notice.
_SETTLE_SECONDS = 3.0
# Grace period after the last result, for processes to exit by themselves.
_FINISH_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class RestartEvent:
    """Message that all workers were restarted.

    Attributes:
        attempt: Number of restarts so far.
        reason: How the previous attempt ended.
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
    """Run a task in processes of their own on this host and wait for the results. Needs no main guard, nor a script.

    The output of worker 0 goes to standard error; that of the others is kept for the error if they fail.

    Args:
        task: Function that every worker runs. It may be a closure and use classes of the script or notebook.
        workers: Number of processes. They share the cores.
        heartbeat_seconds: Longest silence of a worker. A slow worker is not silent.
        restarts: How often all workers are restarted after one has failed.
        prepare: Called first, in this process, with the scratch folder of the run, which all workers can
            read.
        on_message: Called in this process with each object that a worker sends, in order, and with each
            `RestartEvent`.
        should_stop: Polled ten times a second; once true, the workers' ``should_stop()`` is true as well.

    Returns:
        Result of each worker's task, by rank.

    Raises:
        InputError: The task cannot be pickled.
        WorkerError: A worker died, was silent or raised an exception.
        OutgrowError: Raised by a worker.
    """
    serialized = _serialize_task(task)
    with _run_folder() as folder:
        prepare_processes(workers)
        prepare(folder)
        for attempt in itertools.count():
            try:
                with _running_workers(serialized, workers, attempt, folder) as running:
                    return running.wait_for_results(heartbeat_seconds, on_message, should_stop)
            # Only a failed process is worth a restart: errors in the input would come again.
            except WorkerError as error:
                if attempt >= restarts:
                    raise
                on_message(RestartEvent(attempt=attempt + 1, reason=error.what))
    raise AssertionError


@contextmanager
def _run_folder() -> Iterator[Path]:
    """Create the scratch folder of a run; remove it at the end."""
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
    """Start the processes of one attempt; kill them at the end. Their files stay until the run ends."""
    job_files = JobFiles(folder / f"attempt-{attempt}")
    with explain_write_error(job_files.folder):
        job_files.folder.mkdir()
        job_files.task_path.write_bytes(task)
        job_files.write_job_spec(JobSpec(workers=workers, attempt=attempt, parent=os.getpid()))
        for rank in range(workers):
            job_files.reserve_failure_record(rank)
            # Before the start: a worker without this file takes the run for over and exits.
            job_files.heartbeat_path(rank).touch()
            job_files.output_path(rank).touch()
    with worker_processes(job_files, workers) as processes:
        yield _WorkerGroup(job_files, processes)


class _WorkerGroup:
    """Running worker processes and the folder through which they communicate."""

    def __init__(self, job_files: JobFiles, processes: WorkerProcesses) -> None:
        self._job_files = job_files
        self._processes = processes
        self._ranks = range(len(processes.pids))
        self._logs = [job_files.output_path(rank) for rank in self._ranks]
        self._output_tail = _OutputTail(self._logs[0])
        self._readers = [MessageReader(job_files.messages_path(rank)) for rank in self._ranks]
        self._probes = [LivenessProbe(job_files.heartbeat_path(rank), pid) for rank, pid in enumerate(processes.pids)]

    def wait_for_results(
        self, heartbeat_seconds: float, on_message: Callable[[object], None], should_stop: Callable[[], bool]
    ) -> list[Any]:
        """Wait for the workers; return their results, or raise the error of the one that failed first."""
        deadline: float | None = None
        while True:
            if should_stop():
                self._job_files.request_stop()
            ended = [probe.has_ended() for probe in self._probes]
            silences = [probe.silent_seconds() for probe in self._probes]
            # A process that has ended is silent too, but its exit code says more.
            silent = [not end and silence > heartbeat_seconds for end, silence in zip(ended, silences, strict=True)]
            self._forward_messages(on_message)
            # Set once, at the first failure or the last result: what follows must not extend it.
            if deadline is None and (grace := self._grace_seconds(ended)) is not None:
                deadline = time.monotonic() + grace
            if all(ended) or any(silent) or (deadline is not None and time.monotonic() > deadline):
                break
            time.sleep(_LOOK_SECONDS)
        exit_codes = self._processes.end()
        # Messages and output that were written between the last poll and the end.
        self._forward_messages(on_message)
        results = [self._job_files.result_path(rank) for rank in self._ranks]
        if all(result.exists() for result in results):
            return [pickle.loads(result.read_bytes()) for result in results]
        # A killed process has the exit code of our own signal; only those of processes that ended before
        # count.
        exits = [
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
        raise root_cause_error(exits, len(self._ranks))

    def _grace_seconds(self, ended: list[bool]) -> float | None:
        """Return how long to wait from now on; None while workers are running normally."""
        done = [self._job_files.result_path(rank).exists() for rank in self._ranks]
        if any(end and not result for end, result in zip(ended, done, strict=True)):
            return _SETTLE_SECONDS
        return _FINISH_SECONDS if all(done) else None

    def _forward_messages(self, on_message: Callable[[object], None]) -> None:
        self._output_tail.print_new()
        for reader in self._readers:
            for message in reader.read_messages():
                on_message(message)

    def _read_failure(self, rank: int) -> Any:
        path = self._job_files.failure_path(rank)
        return pickle.loads(path.read_bytes()) if path.exists() else None


class _OutputTail:
    """Copies a growing file to standard error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown_bytes = 0
        # Incremental: a read may end inside a multi-byte character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def print_new(self) -> None:
        """Write what was added to the file since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._shown_bytes)
            new = file.read()
        if new:
            self._shown_bytes += len(new)
            sys.stderr.write(self._decoder.decode(new))
            sys.stderr.flush()
