"""How work flows: what the next wave needs is brought, and what this one made is written, while a wave is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from outgrow.core.timeline import Timeline
from outgrow.engine.prefetch import BackgroundWorker, prefetched
from outgrow.runtime.system.device import Streams

T = TypeVar("T")
R = TypeVar("R")

_PENDING = 2


class Flow:
    """Threads of a worker that read and write beside the one that computes, each on a stream of the device. Final.

    Args:
        timeline: Told when what was done.
        streams: Of the device.
        overlap: Whether there are such threads; else all is done in turn.
    """

    def __init__(self, timeline: Timeline, streams: Streams, *, overlap: bool) -> None:
        self._timeline, self._streams = timeline, streams
        self._writer = BackgroundWorker(_run_write, name="outgrow-store") if overlap else None
        self._num_pending = 0

    def ahead(self, load: Callable[[T], R], items: Sequence[T], *, overlap: bool = True) -> Iterator[R]:
        """What ``load`` gives for each item, in order; that of the next item is made meanwhile, if ``overlap``."""
        overlap = overlap and self._writer is not None
        lane = "load" if overlap else "compute"

        def timed(item: T) -> R:
            with self._timeline.span("load", lane), self._streams.loading():
                return load(item)

        made = prefetched(timed, items, threads=1, ahead=1) if overlap else (timed(item) for item in items)
        with closing(made):
            self._finish()
            for result in self._timeline.waiting("wait for loads", made):
                yield result
                self._finish()

    def store(self, write: Callable[[], None]) -> None:
        """Write something, in the order of these calls; returns at once unless much is to be written already."""
        moment = self._streams.mark()

        def timed() -> None:
            with self._timeline.span("store", "store" if self._writer else "compute"), self._streams.storing(moment):
                write()

        if self._writer is None:
            timed()
            return
        self._writer.submit(timed)
        self._num_pending += 1
        if self._num_pending > _PENDING:
            self._wait(1)

    def flush(self) -> None:
        """Wait until all is written."""
        self._wait(self._num_pending)

    def close(self) -> None:
        """End the threads, once they have written what they were given or a write has failed."""
        if self._writer is not None:
            self._writer.close(wait=True)

    def _finish(self) -> None:
        """What comes next takes the place of what is computed with: a device is behind what was called."""
        if self._streams.asynchronous:
            with self._timeline.span("compute"):
                self._streams.finish()

    def _wait(self, count: int) -> None:
        with self._timeline.span("wait for stores"):
            for _ in range(count):
                assert self._writer is not None
                self._writer.result()
                self._num_pending -= 1


def _run_write(write: Callable[[], None]) -> None:
    write()
