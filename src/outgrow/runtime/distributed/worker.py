"""Worker side of a run, started by `run_workers` on one host or by torchrun on one or more."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import psutil
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from outgrow.core.errors import OutgrowError, WorkerError
from outgrow.core.process import exit_on_signal
from outgrow.runtime.distributed.comm import Comm, CommunicationError
from outgrow.runtime.distributed.failures import describe_worker
from outgrow.runtime.distributed.heartbeat import Heartbeat
from outgrow.runtime.distributed.job_files import (
    FailureRecord,
    JobFiles,
    append_message,
    describe_exception,
    explain_write_error,
    serialize_by_value,
)
from outgrow.runtime.distributed.peer_watchdog import PeerWatchdog
from outgrow.runtime.distributed.process_group import join_process_group, require_no_failed_training
from outgrow.runtime.distributed.rendezvous import join_rendezvous
from outgrow.runtime.storage.tempdir_reaper import temporary_directory
from outgrow.runtime.system.environment import mark_own_group, torchrun_rank, torchrun_world_size
from outgrow.runtime.system.sigbus import explain_bus_errors

T = TypeVar("T")
# A worker that lost a peer waits this long before it fails, so that torchrun sees the peer's failure first.
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerContext:
    """Arguments of a worker's task.

    Attributes:
        comm: Communicator with the other workers.
        folder: Scratch folder shared by the workers of a host, removed after the run.
        attempt: Number of restarts so far, of the whole group.
        job: Name of torchrun's job, which its restarts share; empty if there is none.
        send_message: Sends an object to the process that runs the workers; under torchrun, to this process's
            own ``on_message``.
        should_stop: Whether the run should stop. Workers may see the change at different times.
    """

    comm: Comm
    folder: Path
    attempt: int
    send_message: Callable[[object], None]
    should_stop: Callable[[], bool]
    job: str = ""


def run_task(job_files: JobFiles, rank: int) -> None:
    """Run a worker's task and write its result. On failure, write a record and exit at once."""
    try:
        job = job_files.read_job_spec()
        task: Callable[[WorkerContext], object] = pickle.loads(job_files.task_path.read_bytes())
        context = WorkerContext(
            comm=join_process_group(rank, job.workers, FileStore(str(job_files.store_path), job.workers)),
            folder=job_files.run_folder,
            attempt=job.attempt,
            send_message=lambda message: append_message(job_files.messages_path(rank), serialize_by_value(message)),
            should_stop=job_files.is_stop_requested,
        )
        result = serialize_by_value(task(context))
        # Before the result is written: a worker with a result must need nothing more from its peers.
        context.comm.close()
        job_files.write_atomically(job_files.result_path(rank), result)
    except BaseException as error:
        _record_and_exit(job_files, rank, error)


def _record_and_exit(job_files: JobFiles, rank: int, error: BaseException) -> NoReturn:
    try:
        job_files.write_failure_record(rank, serialize_by_value(make_failure_record(error)))
    # The disk is full or the error cannot be pickled: the launcher then shows what was printed last.
    except Exception:
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # A normal exit would run destructors, which wait for peers.
        os._exit(1)


def loopback_interface() -> str:
    """Return the name of the loopback network interface."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address == "127.0.0.1" for address in addresses)
    )


def make_failure_record(error: BaseException) -> FailureRecord:
    """Describe how a worker failed. Call it where the exception is caught."""
    # Without the frame that caught it, which is ours and says nothing.
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return FailureRecord(
        message=describe_exception(error),
        report="".join(traceback.format_exception(type(error), error, inner)),
        is_peer_failure=is_peer_failure(error),
        seconds=time.time(),
        error=error if isinstance(error, OutgrowError) else None,
    )


def is_peer_failure(error: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, says that another worker is gone."""
    while error is not None:
        if isinstance(error, CommunicationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def run_under_torchrun(
    task: Callable[[WorkerContext], T],
    *,
    heartbeat_seconds: float = 30.0,
    on_message: Callable[[object], None] = lambda message: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> T:
    """Run a task as one worker of the group that torchrun, or the program, has started: see `join_torchrun_group`."""
    with join_torchrun_group(
        heartbeat_seconds=heartbeat_seconds, on_message=on_message, should_stop=should_stop
    ) as context:
        return task(context)


@contextmanager
def join_torchrun_group(
    *,
    heartbeat_seconds: float = 30.0,
    on_message: Callable[[object], None] = lambda message: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[WorkerContext]:
    """Context of one worker of the group that torchrun, or the program, has started. All must enter it.

    torchrun detects workers that die; their peers detect silent ones (`PeerWatchdog`).

    Args:
        heartbeat_seconds: Longest allowed silence of a worker.
        on_message: Called in this process with each object that this worker sends.
        should_stop: Whether this worker should stop.

    Raises:
        Exception: Raised in the context. If a peer is gone, only after a delay, so that torchrun sees the peer
            first.
    """
    rank, size = torchrun_rank(), torchrun_world_size()
    parent = os.getppid()
    # All workers are on this host: no traffic need cross, or be reachable from, a network.
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    with _report_failure(rank, size):
        require_no_failed_training()
        met = join_rendezvous(rank, size)
        with _shared_folder(met.watchdog_store) as folder:
            watchdog = PeerWatchdog(met.watchdog_store, rank, size, heartbeat_seconds)
            # Before the group: what waits for a host that is gone waits no longer than for its heartbeat.
            with watchdog, Heartbeat(watchdog.send_beat, parent, folder), explain_bus_errors():
                comm = join_process_group(rank, size, met.group_store)
                context = WorkerContext(
                    comm=comm,
                    folder=folder,
                    attempt=met.round.attempt,
                    job=met.round.job,
                    send_message=on_message,
                    should_stop=should_stop,
                )
                with _exit_on_sigterm():
                    yield context
                    # Inside the context: it waits for the slowest worker, and heartbeats must go on.
                    comm.close()
                    mark_own_group(False)


@contextmanager
def _shared_folder(store: Store) -> Iterator[Path]:
    """Create one folder for all workers of this host; each removes it when all are done or one has failed."""
    key = f"scratch/{socket.gethostname()}"
    # The increment is atomic, so exactly one worker of the host sees 1 and creates the folder.
    if store.add(f"{key}/asked", 1) == 1:
        with explain_write_error(Path(tempfile.gettempdir())), temporary_directory("outgrow-") as folder:
            store.set(key, str(folder))
            yield folder
        return
    # Waits until the creator has set the key.
    folder = Path(store.get(key).decode("utf-8"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn torchrun's SIGTERM into an exception, so that files are removed.

    Not used while joining the group: Python would run the handler only after all others have joined.
    """
    # A handler that the user has set stays.
    own = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if own:
        signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _report_failure(rank: int, size: int) -> Iterator[None]:
    """Record how this worker failed in the file that torchrun reads."""
    try:
        yield
    except Exception as error:
        who = describe_worker(rank, size)
        if is_peer_failure(error):
            # Late and without a record: torchrun reports the earliest failure as the root cause.
            time.sleep(_SETTLE_SECONDS)
            raise _peer_error(who, error) from error
        get_error_handler().record_exception(error)
        sys.stderr.write(f"{who} failed: {describe_exception(error)}\n")
        raise


def _peer_error(who: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"{who} has lost the connection to another worker",
        needed="workers that live, and can be reached, until the run ends",
        got=describe_exception(error),
        repair="look at what the others have written: one of them failed first; --resume goes on from a checkpoint",
    )
