"""Work done ahead of its use, by threads, in order and in bounded number."""

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


def prefetched(work: Callable[[T], R], items: Iterable[T], *, threads: int, ahead: int) -> Generator[R]:
    """What some work gives for each item, in the items' order, made while earlier results are in use.

    Close the iterator to end the threads early: they finish what they have begun.

    Args:
        work: Called by several threads at once.
        items: What to work on.
        threads: Number of threads.
        ahead: How many results, finished or not, there are at most besides the one in use.

    Raises:
        Exception: What the work raises, when its result is due.
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="outgrow-ahead") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def begun_ahead(begin: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Items, each with what was begun for it; the next one is begun before one is given.

    Args:
        begin: Called in the thread that takes the items, in their order.
        items: What to begin something for.
    """
    begun: tuple[T, R] | None = None
    for item in items:
        following = item, begin(item)
        if begun is not None:
            yield begun
        begun = following
    if begun is not None:
        yield begun


def in_background(
    work: Callable[[T], R], items: Iterable[T], *, ahead: int, turn: threading.Lock | None = None
) -> Generator[R]:
    """What some work gives for each item, made by one thread, in order, while earlier results are in use.

    So the work may talk to other workers that do the same. When the iterator is closed early nobody waits for what is
    under way, which may itself wait for a worker that is gone.

    Args:
        work: Called by one thread.
        items: What to work on.
        ahead: How many results, finished or not, there are at most besides the one in use; at least 1.
        turn: Held while there is work, so that what shares it works one after the other; None if nothing shares it.

    Raises:
        Exception: What the work raises, when its result is due.
    """
    results: SimpleQueue[R | _Ended] = SimpleQueue()
    room, closed = threading.Semaphore(ahead), threading.Event()

    def run() -> None:
        error: BaseException | None = None
        try:
            with turn or nullcontext():
                for item in items:
                    room.acquire()
                    if closed.is_set():
                        return
                    results.put(work(item))
        except BaseException as raised:
            error = raised
        results.put(_Ended(error))

    threading.Thread(target=run, name="outgrow-ahead", daemon=True).start()
    try:
        while not isinstance(result := results.get(), _Ended):
            room.release()
            yield result
        if result.error is not None:
            raise result.error
    finally:
        closed.set()
        room.release()


class _Ended(NamedTuple):
    """There are no more results; the error that has ended the work, if one has."""

    error: BaseException | None


class Background(Generic[T, R]):
    """Work that one thread does in the order in which it is given, while whoever gives it does other things. Final.

    The thread may talk to other workers that give the same work in the same order.

    Args:
        work: Called by the thread.
    """

    def __init__(self, work: Callable[[T], R]) -> None:
        self._given: SimpleQueue[T | None] = SimpleQueue()
        self._results: SimpleQueue[R | _Ended] = SimpleQueue()
        self._work = work
        threading.Thread(target=self._run, name="outgrow-ahead", daemon=True).start()

    def give(self, item: T) -> None:
        """More work."""
        self._given.put(item)

    def take(self) -> R:
        """The next result; waits for it.

        Raises:
            Exception: What the work has raised; from then on, always.
        """
        result = self._results.get()
        if isinstance(result, _Ended):
            self._results.put(result)
            raise result.error or RuntimeError("the work has ended")
        return result

    def close(self) -> None:
        """Begin nothing more. Nobody waits for what is under way, which may itself wait for a worker that is gone."""
        self._given.put(None)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while (item := self._given.get()) is not None:
                self._results.put(self._work(item))
        except BaseException as raised:
            error = raised
        self._results.put(_Ended(error))
