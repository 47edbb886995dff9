"""When what was done: spans of time of a worker's threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

T = TypeVar("T")

MAIN_THREAD = "compute"
"""The lane of the thread that trains."""
_MOST_SPANS = 20_000
_END = object()


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        name: What was done.
        thread: The thread that did it.
        start: Seconds, on the clock of the host.
        end: Seconds.
    """

    name: str
    thread: str
    start: float
    end: float


class Timeline:
    """Spans of one worker. The seconds of all are added up by name; only the first spans are kept. Final.

    It belongs to the thread that makes it, which is the one that trains.

    Attributes:
        spans: In the order of their ends.
        seconds: Sum of the spans of each name.
        phases: Seconds of the thread that trains, by the name of the innermost span at each moment, so that they add up
            to no more than the time that passed.
        num_dropped_spans: How many spans were not kept.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.seconds: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.num_dropped_spans = 0
        self._trains, self._inside = threading.get_ident(), list[float]()
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, thread: str | None = None) -> Iterator[None]:
        """What is done in this context is called so.

        Args:
            name: What to call it.
            thread: Where to show it; None for the lane of the thread.
        """
        trains = threading.get_ident() == self._trains
        start = time.monotonic()
        if trains:
            self._inside.append(0.0)
        try:
            yield
        finally:
            took = self.record_since(name, thread or self._thread_name(trains=trains), start)
            if trains:
                self.phases[name] += took - self._inside.pop()  # type: ignore[assignment]
                if self._inside:
                    self._inside[-1] += took

    def record_since(self, name: str, thread: str, start: float) -> float:
        """What began at ``start``, on the clock of the host, and ends now is called so; gives its seconds."""
        end = time.monotonic()
        with self._lock:
            self.seconds[name] += end - start  # type: ignore[assignment]
            if len(self.spans) < _MOST_SPANS:
                self.spans.append(Span(name, thread, start, end))
            else:
                self.num_dropped_spans += 1
        return end - start

    def record_waits(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items; waiting for each is a span."""
        each = iter(items)
        while True:
            with self.span(name):
                item = next(each, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc]

    @staticmethod
    def _thread_name(*, trains: bool) -> str:
        return MAIN_THREAD if trains else threading.current_thread().name.removeprefix("outgrow-")
