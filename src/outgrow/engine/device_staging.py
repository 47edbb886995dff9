"""Copies of batches to a GPU, one batch ahead of the computation, by a thread and on a stream of their own.

The memory of a copy belongs to the stream that copies. Its allocator is told which other stream reads it: else the next
copy could be written to what an unfinished kernel still reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TypeVar

from outgrow.core.tensors import iterate_tensors
from outgrow.engine.prefetch import BackgroundWorker
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import DeviceStreams, let_current_stream_read

T = TypeVar("T")
R = TypeVar("R")
Copied = tuple[R, Iterable[object]]
"""A result, and what of it was copied to the device: tensors, or what has tensors."""


def copy_ahead(
    items: Generator[T], copy: Callable[[T], Copied[R]], comm: Comm, *, takes_items: bool = True
) -> Generator[R]:
    """Yield the results of ``copy`` on each item, made while the one before is in use.

    Close the iterator to end it early; that closes ``items``, too.

    Args:
        items: What to copy, such as batches.
        copy: Called by the thread that copies; copies are asynchronous operations of its current stream.
        comm: Communicator; gives the device and the timeline.
        takes_items: Whether that thread takes the items, too; else the calling thread does, one ahead, and may
            communicate for them.
    """
    streams = DeviceStreams(comm.device)

    def copy_item(item: T) -> Copied[R]:
        with comm.timeline.span("copy to the device"), streams.on_load_stream():
            return copy(item)

    worker = BackgroundWorker(copy_item, _close_at_end(items) if takes_items else None, name="outgrow-copy")
    with closing(worker):
        for result, copied in worker if takes_items else _submit_each(items, worker):
            let_current_stream_read(iterate_tensors([*copied]), comm.device)
            yield result


def _submit_each(items: Generator[T], worker: BackgroundWorker[T, R]) -> Iterator[R]:
    """Yield the results of a worker, each after the next item was submitted."""
    with closing(items):
        num_waiting = 0
        for item in items:
            worker.submit(item)
            num_waiting += 1
            if num_waiting > 1:
                yield worker.result()
                num_waiting -= 1
    if num_waiting:
        yield worker.result()


def _close_at_end(items: Generator[T]) -> Iterator[T]:
    # By the thread that runs them, which may be within them when this one ends.
    with closing(items):
        yield from items
