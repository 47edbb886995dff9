"""A worker's side of a run: started by `launch` on one host, or by torchrun on one or more."""

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
from outgrow.runtime.distributed.comm import Comm, CommunicationError, join
from outgrow.runtime.distributed.heartbeat import Heartbeat
from outgrow.runtime.distributed.job_files import Record, Scratch, describe, packed, tell, telling
from outgrow.runtime.distributed.peer_watchdog import Neighbours
from outgrow.runtime.storage.tempdir_reaper import kept_folder
from outgrow.runtime.system.sigbus import told_of_bus_errors

T = TypeVar("T")
_SETTLE_SECONDS = 3.0
_MEET_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Workplace:
    """What a worker is given.

    Attributes:
        comm: The line to the other workers.
        folder: Scratch, the same for all workers of a host, gone after the run.
        attempt: 0, or how often the workers were started again.
        tell: Hands an object to whoever runs the workers; under torchrun, to this process's own listener.
        stop_asked: Whether somebody wants the run to end. Workers may learn it at different moments.
    """

    comm: Comm
    folder: Path
    attempt: int
    tell: Callable[[object], None]
    stop_asked: Callable[[], bool]


def work(scratch: Scratch, rank: int) -> None:
    """Do a worker's task and write what it gives. A failure is written down and ends the process at once."""
    try:
        job = scratch.job()
        task: Callable[[Workplace], object] = pickle.loads(scratch.task.read_bytes())
        place = Workplace(
            comm=join(rank, job.workers, FileStore(str(scratch.meeting), job.workers)),
            folder=scratch.shared,
            attempt=job.attempt,
            tell=lambda message: tell(scratch.told(rank), packed(message)),
            stop_asked=scratch.stop_asked,
        )
        result = packed(task(place))
        place.comm.close()
        scratch.write(scratch.result(rank), result)
    except BaseException as error:
        _give_up(scratch, rank, error)


def _give_up(scratch: Scratch, rank: int, error: BaseException) -> NoReturn:
    try:
        scratch.write_record(rank, packed(record_of(error)))
    except Exception:  # the disk is full, or the error cannot be sent: the run shows what was printed last
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # destructors would wait for peers


def loopback() -> str:
    """Name of the network interface that no other host reaches."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address == "127.0.0.1" for address in addresses)
    )


def record_of(error: BaseException) -> Record:
    """How a worker failed; to be called where the exception is caught."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return Record(
        line=describe(error),
        report="".join(traceback.format_exception(type(error), error, inner)),
        lost_peer=lost_peer(error),
        seconds=time.time(),
        error=error if isinstance(error, OutgrowError) else None,
    )


def lost_peer(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came from, says that another worker is gone."""
    while error is not None:
        if isinstance(error, CommunicationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def run_in_group(
    task: Callable[[Workplace], T],
    *,
    heartbeat_seconds: float = 30.0,
    hear: Callable[[object], None] = lambda message: None,
    stop: Callable[[], bool] = lambda: False,
) -> T:
    """Do this process's share of a task in the group that torchrun has started. All its processes call this.

    torchrun watches for workers that die. Silent ones are found by their neighbours: see `Neighbours`.

    Args:
        task: What every worker does.
        heartbeat_seconds: Longest silence.
        hear: Called in this process with what this worker tells.
        stop: Whether this worker should stop.

    Raises:
        Exception: What the task raises. Where a peer is gone, only after a moment, so that torchrun sees that first.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    parent = os.getppid()
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):  # all are on this host: nobody else need reach them
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    with _recorded(rank, size):
        meeting, store = _stores(size, attempt)
        comm = join(rank, size, meeting)
        with _leaving_when_asked(), _shared_scratch(store) as folder:
            neighbours = Neighbours(store, rank, size, heartbeat_seconds)
            with neighbours, Heartbeat(neighbours.beat, parent, folder), told_of_bus_errors():
                result = task(Workplace(comm=comm, folder=folder, attempt=attempt, tell=hear, stop_asked=stop))
                comm.close()  # waits for the others, so signs of life go on
        return result


def _stores(size: int, attempt: int) -> tuple[Store, Store]:
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
def _shared_scratch(store: Store) -> Iterator[Path]:
    """A folder for the workers of this host: the first makes it, each removes it when all are done or one failed."""
    key = f"scratch/{socket.gethostname()}"
    if store.add(f"{key}/asked", 1) == 1:
        with telling(Path(tempfile.gettempdir())), kept_folder("outgrow-") as folder:
            store.set(key, str(folder))
            yield folder
        return
    folder = Path(store.get(key).decode("utf-8"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _leaving_when_asked() -> Iterator[None]:
    """Take torchrun's request to end as an exception, so that nothing is left behind.

    Not while the group is joined: the request would not be seen before all others are there.
    """
    own = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if own:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _recorded(rank: int, size: int) -> Iterator[None]:
    """Write down how this worker failed, where torchrun looks for it."""
    try:
        yield
    except Exception as error:
        who = f"worker {rank} of {size} on {socket.gethostname()}"
        if lost_peer(error):
            time.sleep(_SETTLE_SECONDS)
            raise _alone(who, error) from error
        get_error_handler().record_exception(error)
        sys.stderr.write(f"{who} failed: {describe(error)}\n")
        raise


def _alone(who: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"{who} has lost the connection to another worker",
        needed="workers that live, and can be reached, until the run ends",
        got=describe(error),
        repair="look at what the others have written: one of them failed first; --resume goes on from a checkpoint",
    )


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
