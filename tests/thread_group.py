"""Workers that are threads of one process. They compute what processes do, without a message through the system.

Each thread has a `ProcessGroupComm` of its own, whose functions of torch.distributed are those of a `ThreadRank`: bytes
are counted, tags chosen and gradients sent back by the same code. That torch's functions do the same over gloo is the
matter of `tests/runtime/distributed/test_comm.py`, which checks both.

One worker computes at a time, until it waits for another or for a thread of its own: threads that all want to compute
would hand Python's lock over at every call of torch, which takes longer than the calls. Since they are one process, a
task must change nothing that all of them read, such as code that a mutant breaks: that is changed before they begin.
"""

from __future__ import annotations

import gc
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from torch import Tensor

from outgrow.engine import prefetch
from outgrow.runtime.distributed.comm import CommunicationError, ProcessGroupComm
from outgrow.runtime.distributed.job_files import serialize_by_value
from outgrow.runtime.distributed.worker import WorkerContext

T = TypeVar("T")
LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 1.0
"""A turn is shared once its thread has computed nothing for that long: it waits in a way that is not known here."""
LEAST_COMPUTING = 0.01  # of the time that passes; a thread that polls computes less


class Operation(NamedTuple):
    """A point-to-point operation, as `torch.distributed.P2POp` has it."""

    op: Callable[..., Any]
    tensor: Tensor
    peer: int
    group: None = None
    tag: int = 0


class Computed(NamedTuple):
    """Seconds of the processor that a thread has taken, by the clock that counts them."""

    clock: int | None
    seconds: float


def _clock_of_this_thread() -> int | None:
    # Not on macOS, where turns are therefore shared after `PATIENCE_SECONDS`.
    find = getattr(time, "pthread_getcpuclockid", None)
    return None if find is None else find(threading.get_ident())


class Turns:
    """Which of some threads computes."""

    def __init__(self) -> None:
        self.lock, self.own = threading.Lock(), threading.local()
        self.clock: int | None = None

    def begin(self) -> None:
        """Wait for this thread's turn."""
        before = self._seconds_computed()
        while not (has_turn := self.lock.acquire(timeout=PATIENCE_SECONDS)):
            now = self._seconds_computed()
            # While a turn lasts, as when kernels are compiled, nobody else may draw from torch's generator.
            if now.clock == before.clock and now.seconds - before.seconds < LEAST_COMPUTING * PATIENCE_SECONDS:
                break
            before = now
        self.own.has_turn, self.own.takes_turns = has_turn, True
        if has_turn:
            self.clock = _clock_of_this_thread()

    def _seconds_computed(self) -> Computed:
        """What the thread whose turn it is has computed."""
        clock = self.clock
        try:
            return Computed(clock, 0.0 if clock is None else time.clock_gettime(clock))
        except OSError:  # the thread has ended meanwhile
            return Computed(clock, 0.0)

    def end(self) -> None:
        """Let another thread compute."""
        if self.own.has_turn:
            self.own.has_turn = False
            self.lock.release()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others compute while this thread waits, if it is one of those that take turns."""
        if not getattr(self.own, "takes_turns", False):
            yield
            return
        self.end()
        try:
            yield
        finally:
            self.begin()

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Wait within a turn, such as for a thread to start: an executor holds a lock of all threads meanwhile."""
        took, self.own.takes_turns = getattr(self.own, "takes_turns", False), False
        try:
            yield
        finally:
            self.own.takes_turns = took

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let threads that take turns keep theirs while they start others, and end it while they wait for these."""

        class Results(SimpleQueue[Any]):
            get = _within(self.waiting, SimpleQueue.get)

        with ExitStack() as stack:
            stack.enter_context(patch.object(prefetch, "SimpleQueue", Results))
            for owner, name, context in (
                (threading.Condition, "wait", self.waiting),
                (threading.Thread, "join", self.waiting),
                (threading.Thread, "start", self.staying),
                (ThreadPoolExecutor, "submit", self.staying),
            ):
                stack.enter_context(patch.object(owner, name, _within(context, getattr(owner, name))))
            yield


def _within(context: Callable[[], AbstractContextManager[None]], function: Callable[..., T]) -> Callable[..., T]:
    def call(*given: Any, **options: Any) -> T:
        with context():
            return function(*given, **options)

    return call


class ThreadGroup:
    """What the threads of a group share."""

    def __init__(self, size: int) -> None:
        self.size, self.turns, self.has_failed = size, Turns(), False
        self.mailboxes: dict[tuple[int, int, int], SimpleQueue[Any]] = {}

    def send(self, source: int, target: int, tag: int, value: Any) -> None:
        self.mailboxes.setdefault((source, target, tag), SimpleQueue()).put(value)

    def receive(self, source: int, target: int, tag: int) -> Any:
        """Wait for what a worker sends by a tag, which is used once."""
        mailbox = self.mailboxes.setdefault((source, target, tag), SimpleQueue())
        if mailbox.empty():
            with self.turns.waiting():
                value = self._wait(mailbox)
        else:
            value = mailbox.get()
        del self.mailboxes[source, target, tag]
        return value

    def _wait(self, mailbox: SimpleQueue[Any]) -> Any:
        while True:
            try:
                return mailbox.get(timeout=LOOK_SECONDS)
            except Empty:
                if self.has_failed:
                    raise RuntimeError("another thread has failed") from None


class Sent:
    """A message that has left."""

    def wait(self) -> None:
        """Return at once: the rows were copied."""


class Received:
    """A message that comes."""

    def __init__(self, group: ThreadGroup, address: tuple[int, int, int], tensor: Tensor) -> None:
        self.group, self.address, self.tensor = group, address, tensor

    def wait(self) -> None:
        """Wait for the message and copy it to where it is wanted."""
        self.tensor.copy_(self.group.receive(*self.address))


class ThreadRank:
    """Functions of torch.distributed, as one thread of a group calls them."""

    P2POp = Operation

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.group, self.rank, self.collectives = group, rank, 0

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.group.size

    def isend(self, tensor: Tensor, peer: int, group: None = None, tag: int = 0) -> Sent:
        self.group.send(self.rank, peer, tag, tensor.clone())
        return Sent()

    def irecv(self, tensor: Tensor, peer: int, group: None = None, tag: int = 0) -> Received:
        return Received(self.group, (peer, self.rank, tag), tensor)

    def all_reduce(self, tensor: Tensor) -> None:
        first, *others = self._gather(tensor.clone())
        tensor.copy_(first)
        for other in others:
            tensor += other

    def broadcast(self, tensor: Tensor, root: int) -> None:
        tensor.copy_(self._gather(tensor.clone())[root])

    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> None:
        for out, part in zip(tensors, self._gather(tensor.clone()), strict=True):
            out.copy_(part)

    def barrier(self) -> None:
        self._gather(None)

    def destroy_process_group(self) -> None:
        """Do nothing."""

    def _gather(self, value: Any) -> list[Any]:
        self.collectives += 1
        ranks, tag = range(self.group.size), -self.collectives  # tags of messages are positive
        for peer in ranks:
            self.group.send(self.rank, peer, tag, value)
        return [self.group.receive(peer, self.rank, tag) for peer in ranks]


@cache
def _unlock_cached_properties(modules: int) -> None:
    """Let threads compute a cached property at the same time, as they may from Python 3.12 on.

    Before, all instances of a class share a lock: the first thread would hold it while it waits for the others. The
    process stays without these locks.
    """
    if sys.version_info < (3, 12):
        for each in gc.get_objects():
            if type(each) is cached_property:
                each.lock = nullcontext()  # type: ignore[attr-defined]


def run_in_threads(task: Callable[[WorkerContext], T], workers: int, *, hosts: int = 1) -> list[T]:
    """What each worker's task gives, by rank. Nobody hears its messages, nor stops it.

    Args:
        task: What a worker does.
        workers: Number of workers.
        hosts: Number of hosts that they seem to be on; consecutive workers share a host.
    """
    _unlock_cached_properties(len(sys.modules))
    sent = serialize_by_value(task)  # each has its own copy of a model, as a process would
    group, results, errors = ThreadGroup(workers), dict[int, T](), list[BaseException]()

    def work(rank: int, folder: Path) -> None:
        group.turns.begin()
        try:
            comm = ProcessGroupComm(ThreadRank(group, rank), host=f"host{rank * hosts // workers}")
            own: Callable[[WorkerContext], T] = pickle.loads(sent)
            results[rank] = own(
                WorkerContext(
                    comm=comm,
                    folder=folder,
                    attempt=0,
                    send_message=lambda message: None,
                    should_stop=lambda: False,
                )
            )
            comm.close()
        except BaseException as error:
            errors.append(error)
            group.has_failed = True
        finally:
            group.turns.end()

    with tempfile.TemporaryDirectory(prefix="threads-") as name, group.turns.applied():
        threads = [
            threading.Thread(target=work, args=(rank, Path(name)), name=f"worker {rank}") for rank in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, CommunicationError)), errors[0])
    assert not group.mailboxes
    return [results[rank] for rank in range(workers)]


def launch_in_threads(
    task: Callable[[WorkerContext], T],
    workers: int,
    *,
    prepare: Callable[[Path], object] = lambda folder: None,
    **options: Any,
) -> list[T]:
    """In the place of `outgrow.runtime.distributed.launch.run_workers`: what it does where nothing goes wrong."""

    def prepared(context: WorkerContext) -> T:
        if context.comm.is_rank_zero:
            prepare(context.folder)
        context.comm.barrier()
        return task(context)

    return run_in_threads(prepared, workers)
