"""Work done ahead of its use, in order and bounded: prefetched results, and a background thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetch_results(work: Callable[[T], R], items: Iterable[T], *, threads: int, max_ahead: int) -> Generator[R]:
    """Yield the results of work on each item, in order, computed while earlier results are in use.

    Close the iterator to end the threads early: they finish what they have begun.

    Args:
        work: Called by several threads at once.
        items: What to work on.
        threads: Number of threads; 0 for work that only starts something, such as a message: the thread that
            takes the results calls it, in the items' order.
        max_ahead: How many results, finished or not, there are at most besides the one in use.

    Raises:
        Exception: What the work raises, when its result is due; without threads at once.
    """
    pending: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="outgrow-ahead") if threads else None
    with pool or nullcontext():
        try:
            for item in items:
                pending.append(pool.submit(work, item) if pool is not None else _finished_future(work(item)))
                if len(pending) > max_ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            # Work that has not begun is useless now; the pool waits for the rest.
            for future in pending:
                future.cancel()


def _finished_future(result: R) -> Future[R]:
    future: Future[R] = Future()
    future.set_result(result)
    return future


class _WorkEnded(NamedTuple):
    """The end of the results, with the error that ended the work, if any."""

    error: BaseException | None


class BackgroundWorker(Generic[T, R]):
    """A thread that works on items one after the other, while the caller does other things. Final.

    With one thread, the work may communicate with other workers that do the same work in the same order. The
    thread starts when the first item is submitted or the first result is taken, and ends with the first
    error.

    Args:
        work: Called by the thread.
        items: What to work on; None for what is submitted.
        max_ahead: How many results of ``items``, finished or not, there are at most besides the one in use;
            at least 1.
        lock: Held as long as the thread runs, so that workers that share it run one after the other; None if
            nothing shares it.
        name: Name of the thread; the timeline shows what it does in the lane of that name, without the
            prefix.
    """

    def __init__(
        self,
        work: Callable[[T], R],
        items: Iterable[T] | None = None,
        *,
        max_ahead: int = 1,
        lock: threading.Lock | None = None,
        name: str = "outgrow-ahead",
    ) -> None:
        self._work = work
        self._lock = lock
        self._items = self._submitted_items() if items is None else self._bounded_items(items)
        self._submitted: SimpleQueue[T | None] = SimpleQueue()
        self._results: SimpleQueue[R | _WorkEnded] = SimpleQueue()
        self._room = threading.Semaphore(max_ahead)
        self._closed = threading.Event()
        # A daemon: at the end of a process nobody waits for work that may itself wait for a worker that is
        # gone.
        self._thread = threading.Thread(target=self._run_work, name=name, daemon=True)

    def submit(self, item: T) -> None:
        """Add an item, whose result comes after those of the items before; does not wait."""
        self._submitted.put(item)
        self._start_thread()

    def result(self) -> R:
        """The next result; waits for it.

        Raises:
            Exception: What the work has raised; from then on, always.
            RuntimeError: There is no more work.
        """
        result = self._next_result()
        if isinstance(result, _WorkEnded):
            raise result.error or RuntimeError("the work has ended")
        return result

    def __iter__(self) -> Iterator[R]:
        """The results, one for each item, in their order.

        Raises:
            Exception: What the work or the iterator of the items raises, when its result is due.
        """
        while not isinstance(result := self._next_result(), _WorkEnded):
            yield result
        if result.error is not None:
            raise result.error

    def close(self, *, wait: bool = False) -> None:
        """Take no more items, so that the thread ends; what was submitted before is still done.

        Args:
            wait: Whether to wait for that. If not, nobody waits for what is under way, which may itself wait
                for a worker that is gone.
        """
        self._closed.set()
        # The thread may wait for room or for an item: both are woken.
        self._room.release()
        self._submitted.put(None)
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _start_thread(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _next_result(self) -> R | _WorkEnded:
        self._start_thread()
        result = self._results.get()
        if isinstance(result, _WorkEnded):
            # Later callers get the end as well, instead of waiting forever.
            self._results.put(result)
        else:
            self._room.release()
        return result

    def _submitted_items(self) -> Iterator[T]:
        while (item := self._submitted.get()) is not None:
            yield item

    def _bounded_items(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self._room.acquire()
            if self._closed.is_set():
                return
            yield item

    def _run_work(self) -> None:
        """Run the thread."""
        error: BaseException | None = None
        try:
            with self._lock or nullcontext():
                for item in self._items:
                    self._results.put(self._work(item))
        except BaseException as raised:
            error = raised
        self._results.put(_WorkEnded(error))
