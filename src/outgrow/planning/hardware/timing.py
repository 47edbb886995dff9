"""How long something takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

_SECONDS, _LEAST_TURNS = 0.1, 3


def _do_nothing() -> None:
    pass


def best_seconds(work: Callable[[], object], synchronize: Callable[[], None] = _do_nothing) -> float:
    """The least time that something took in some turns, after one that is not counted.

    Args:
        work: What to do.
        synchronize: Waits until what was begun on a device is done.
    """
    return max(min(_measure_turns(work, synchronize)), 1e-9)


def typical_seconds(work: Callable[[], object], synchronize: Callable[[], None] = _do_nothing) -> float:
    """The median; see `best_seconds`."""
    return max(statistics.median(_measure_turns(work, synchronize)), 1e-9)


def _measure_turns(work: Callable[[], object], synchronize: Callable[[], None]) -> list[float]:
    took: list[float] = []
    until = float("inf")
    while len(took) <= _LEAST_TURNS or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        synchronize()
        took.append(time.perf_counter() - began)
        if len(took) == 1:
            until = time.perf_counter() + _SECONDS
    return took[1:]
