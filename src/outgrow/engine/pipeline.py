"""Work done ahead of its use, by threads, in order and in bounded number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
