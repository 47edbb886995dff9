"""How much memory is held while something goes on: the most, how it went, and a warning before it is too much."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from outgrow.runtime.memory import resident_bytes

_INTERVAL_SECONDS = 0.02
_MOST_MOMENTS = 512


class Budget(NamedTuple):
    """What memory should stay within.

    Attributes:
        limit: Bytes.
        share: Of the limit, from which on it is nearly hit.
        warn: Called once when it is, with the bytes that are held then, by the thread that watches.
    """

    limit: int
    share: float
    warn: Callable[[int], None]


class PeakMemory:
    """The most that was held while this context is open, sampled every 20 ms, and how it went.

    Args:
        held: Gives the bytes that are held now; by default `resident_bytes`.
        budget: What to stay within; None to watch only.

    Attributes:
        peak_bytes: The most so far.
        moments: Seconds since the beginning, and the most bytes since the moment before; some hundreds at most, and
            equally far apart.
    """

    def __init__(self, held: Callable[[], int] = resident_bytes, budget: Budget | None = None) -> None:
        self._held, self._budget = held, budget
        self.peak_bytes = held()
        self.moments: list[tuple[float, int]] = [(0.0, self.peak_bytes)]
        self._began, self._samples, self._together, self._most = time.monotonic(), 0, 1, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outgrow-peak-memory", daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        now = self._held()
        self.peak_bytes, self._most = max(self.peak_bytes, now), max(self._most, now)
        self._samples += 1
        if self._samples % self._together == 0:
            self.moments.append((time.monotonic() - self._began, self._most))
            self._most = 0
            if len(self.moments) > _MOST_MOMENTS:
                self._thin()
        if self._budget is not None and now >= self._budget.share * self._budget.limit:
            self._budget.warn(now)
            self._budget = None

    def _thin(self) -> None:
        """Two moments become one."""
        first, *others = self.moments
        pairs = zip(others[::2], others[1::2], strict=False)
        self.moments = [first, *((later, max(one, two)) for (_, one), (later, two) in pairs)]
        self._together *= 2

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        now = self._held()
        self.peak_bytes = max(self.peak_bytes, now)
        self.moments.append((time.monotonic() - self._began, max(self._most, now)))
