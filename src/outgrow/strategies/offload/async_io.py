"""How work flows: what the next wave needs is brought, and what this one made is written, while a wave is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from outgrow.core.timeline import Timeline
from outgrow.engine.prefetch import BackgroundWorker, prefetch_results
from outgrow.runtime.system.device import DeviceStreams

T = TypeVar("T")
R = TypeVar("R")

_PENDING = 2


class AsyncIo:
    """Threads of a worker that read and write beside the one that computes, each on a stream of the device. Final.

    Args:
        timeline: Told when what was done.
        streams: Of the device.
        overlap: Whether there are such threads; else all is done in turn.
    """

    def __init__(self, timeline: Timeline, streams: DeviceStreams, *, overlap: bool) -> None:
        self._timeline = timeline
        self._streams = streams
        self._writer = BackgroundWorker(_run_write, name="outgrow-store") if overlap else None
        self._num_pending = 0

    def load_ahead(self, load: Callable[[T], R], items: Sequence[T], *, overlap: bool = True) -> Iterator[R]:
        """What ``load`` gives for each item, in order; that of the next item is made meanwhile, if ``overlap``."""
        overlap = overlap and self._writer is not None
        lane = "load" if overlap else "compute"

        def timed_load(item: T) -> R:
            with self._timeline.span("load", lane), self._streams.on_load_stream():
                return load(item)

        made = (
            prefetch_results(timed_load, items, threads=1, max_ahead=1)
            if overlap
            else (timed_load(item) for item in items)
        )
        with closing(made):
            self._finish_compute()
            for result in self._timeline.record_waits("wait for loads", made):
                yield result
                self._finish_compute()

    def store_async(self, write: Callable[[], None]) -> None:
        """Write something, in the order of these calls; returns at once unless much is to be written already."""
        moment = self._streams.record_event()

        def timed_write() -> None:
            with (
                self._timeline.span("store", "store" if self._writer else "compute"),
                self._streams.on_store_stream(moment),
            ):
                write()

        if self._writer is None:
            timed_write()
            return
        self._writer.submit(timed_write)
        self._num_pending += 1
        if self._num_pending > _PENDING:
            self._wait_for(1)

    def flush_stores(self) -> None:
        """Wait until all is written."""
        self._wait_for(self._num_pending)

    def close(self) -> None:
        """End the threads, once they have written what they were given or a write has failed."""
        if self._writer is not None:
            self._writer.close(wait=True)

    def _finish_compute(self) -> None:
        """What comes next takes the place of what is computed with: a device is behind what was called."""
        if self._streams.asynchronous:
            with self._timeline.span("compute"):
                self._streams.synchronize()

    def _wait_for(self, count: int) -> None:
        with self._timeline.span("wait for stores"):
            for _ in range(count):
                assert self._writer is not None
                self._writer.result()
                self._num_pending -= 1


def _run_write(write: Callable[[], None]) -> None:
    write()
