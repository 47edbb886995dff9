"""A worker's side of a run: started by `launch_kernel` on one host, or by torchrun on one or more."""

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
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import psutil
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.distributed.rendezvous import rendezvous

from outgrow.core.errors import OutgrowError, WorkerError
from outgrow.runtime.distributed.comm import Comm, CommunicationError, join_process_group
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
from outgrow.runtime.storage.tempdir_reaper import temporary_directory
from outgrow.runtime.system.sigbus import explain_bus_errors

T = TypeVar("T")
_SETTLE_SECONDS = 3.0
_MEET_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerContext:
    """What a worker is given.

    Attributes:
        comm: The line to the other workers.
        folder: Scratch, the same for all workers of a host, gone after the run.
        attempt: 0, or how often the workers were started again.
        send_message: Hands an object to whoever runs the workers; under torchrun, to this process's own listener.
        should_stop: Whether somebody wants the run to end. Workers may learn it at different moments.
    """

    comm: Comm
    folder: Path
    attempt: int
    send_message: Callable[[object], None]
    should_stop: Callable[[], bool]


def run_task(job_files: JobFiles, rank: int) -> None:
    """Do a worker's task and write what it gives. A failure is written down and ends the process at once."""
    try:
        job = job_files.read_job_spec()
        task: Callable[[WorkerContext], object] = pickle.loads(job_files.task_path.read_bytes())
        place = WorkerContext(
            comm=join_process_group(rank, job.workers, FileStore(str(job_files.store_path), job.workers)),
            folder=job_files.run_folder,
            attempt=job.attempt,
            send_message=lambda message: append_message(job_files.messages_path(rank), serialize_by_value(message)),
            should_stop=job_files.is_stop_requested,
        )
        result = serialize_by_value(task(place))
        place.comm.close()
        job_files.write_atomically(job_files.result_path(rank), result)
    except BaseException as error:
        _record_and_exit(job_files, rank, error)


def _record_and_exit(job_files: JobFiles, rank: int, error: BaseException) -> NoReturn:
    try:
        job_files.write_failure_record(rank, serialize_by_value(make_failure_record(error)))
    except Exception:  # the disk is full, or the error cannot be sent: the run shows what was printed last
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # destructors would wait for peers


def loopback_interface() -> str:
    """Name of the network interface that no other host reaches."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address == "127.0.0.1" for address in addresses)
    )


def make_failure_record(error: BaseException) -> FailureRecord:
    """How a worker failed; to be called where the exception is caught."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return FailureRecord(
        message=describe_exception(error),
        report="".join(traceback.format_exception(type(error), error, inner)),
        is_peer_failure=is_peer_failure(error),
        seconds=time.time(),
        error=error if isinstance(error, OutgrowError) else None,
    )


def is_peer_failure(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came from, says that another worker is gone."""
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
    """Do this process's share of a task in the group that torchrun has started. All its processes call this.

    torchrun watches for workers that die. Silent ones are found by their neighbours: see `PeerWatchdog`.

    Args:
        task: What every worker does.
        heartbeat_seconds: Longest silence.
        on_message: Called in this process with what this worker tells.
        should_stop: Whether this worker should stop.

    Raises:
        Exception: What the task raises. Where a peer is gone, only after a moment, so that torchrun sees that first.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    parent = os.getppid()
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):  # all are on this host: nobody else need reach them
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    with _report_failure(rank, size):
        meeting, store = _make_stores(size, attempt)
        comm = join_process_group(rank, size, meeting)
        with _exit_on_sigterm(), _shared_folder(store) as folder:
            neighbours = PeerWatchdog(store, rank, size, heartbeat_seconds)
            with neighbours, Heartbeat(neighbours.send_beat, parent, folder), explain_bus_errors():
                result = task(
                    WorkerContext(
                        comm=comm, folder=folder, attempt=attempt, send_message=on_message, should_stop=should_stop
                    )
                )
                comm.close()  # waits for the others, so signs of life go on
        return result


def _make_stores(size: int, attempt: int) -> tuple[Store, Store]:
    """Where the group meets, and a line of our own to the same store: threads may not share the group's.

    A process may train several times, in a group each time. What an earlier group wrote must not be read again.
    """
    shared, _, _ = next(rendezvous("env://"))
    earlier = (shared.add(f"outgrow-{attempt}/joins", 1) - 1) // size
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_MEET_SECONDS))
    prefix = f"outgrow-{attempt}-{earlier}"
    return PrefixStore(f"{prefix}/group", shared), PrefixStore(f"{prefix}/talk", own)


@contextmanager
def _shared_folder(store: Store) -> Iterator[Path]:
    """A folder for the workers of this host: the first makes it, each removes it when all are done or one failed."""
    key = f"scratch/{socket.gethostname()}"
    if store.add(f"{key}/asked", 1) == 1:
        with explain_write_error(Path(tempfile.gettempdir())), temporary_directory("outgrow-") as folder:
            store.set(key, str(folder))
            yield folder
        return
    folder = Path(store.get(key).decode("utf-8"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Take torchrun's request to end as an exception, so that nothing is left behind.

    Not while the group is joined: the request would not be seen before all others are there.
    """
    own = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if own:
        signal.signal(signal.SIGTERM, _raise_on_signal)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _report_failure(rank: int, size: int) -> Iterator[None]:
    """Write down how this worker failed, where torchrun looks for it."""
    try:
        yield
    except Exception as error:
        who = f"worker {rank} of {size} on {socket.gethostname()}"
        if is_peer_failure(error):
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


def _raise_on_signal(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
