"""When what was done: spans of time of a worker's threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_MOST_SPANS = 20_000


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        name: What was done.
        lane: The thread that did it.
        start: Seconds, on the clock of the host.
        end: Seconds.
    """

    name: str
    lane: str
    start: float
    end: float


class Timeline:
    """Spans of one worker. The seconds of all are added up by name; only the first spans are kept. Final.

    Attributes:
        spans: In the order of their ends.
        seconds: Sum of the spans of each name.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, lane: str = "compute") -> Iterator[None]:
        """What is done in this context is called so."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.since(name, lane, start)

    def since(self, name: str, lane: str, start: float) -> None:
        """What began at ``start``, on the clock of the host, and ends now is called so."""
        end = time.monotonic()
        with self._lock:
            self.seconds[name] += end - start  # type: ignore[assignment]
            if len(self.spans) < _MOST_SPANS:
                self.spans.append(Span(name, lane, start, end))
