"""`Timeline`: time spans of the activities of a worker's threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from outgrow.core.compile_clock import compile_clock

T = TypeVar("T")

MAIN_THREAD = "compute"
"""Lane of the training thread."""
# Bounds the memory of a long run; sums go on beyond it.
_MOST_SPANS = 20_000
_END = object()


class Span(NamedTuple):
    """Activity of a thread.

    Attributes:
        name: Name of the activity.
        thread: Lane of the thread.
        start: Start in seconds, on the host's monotonic clock.
        end: End in seconds, on the same clock.
    """

    name: str
    thread: str
    start: float
    end: float


class Timeline:
    """Spans of one worker. Sums by name cover all spans; only the first 20,000 are kept individually. Final.

    Create it on the training thread.

    Attributes:
        spans: Spans in the order of their ends.
        seconds: Total duration of the spans of each name.
        phases: Seconds of the training thread, by the name of the innermost open span, so that they add up to
            no more than the elapsed time; without those in which any thread compiles kernels.
        num_dropped_spans: Number of spans that were not kept.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.seconds: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.num_dropped_spans = 0
        self._trains = threading.get_ident()
        # One entry per open span of the training thread: seconds of its inner spans.
        self._inside = list[float]()
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, thread: str | None = None) -> Iterator[None]:
        """Record the body of the context as a span.

        Args:
            name: Name of the span.
            thread: Lane to show it in; None for the lane of the current thread.
        """
        trains = threading.get_ident() == self._trains
        start, compiled = time.monotonic(), compile_clock.seconds
        if trains:
            self._inside.append(0.0)
        try:
            yield
        finally:
            took = self.record_since(name, thread or self._thread_name(trains=trains), start)
            if trains:
                took -= compile_clock.seconds - compiled
                # Inner spans have counted their own time: subtract it, or phases would count it twice.
                self.phases[name] += took - self._inside.pop()  # type: ignore[assignment]
                if self._inside:
                    self._inside[-1] += took

    def record_since(self, name: str, thread: str, start: float) -> float:
        """Record a span from ``start``, on the host's monotonic clock, until now; return its seconds."""
        end = time.monotonic()
        with self._lock:
            self.seconds[name] += end - start  # type: ignore[assignment]
            if len(self.spans) < _MOST_SPANS:
                self.spans.append(Span(name, thread, start, end))
            else:
                self.num_dropped_spans += 1
        return end - start

    def record_waits(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; record the wait for each as a span."""
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
