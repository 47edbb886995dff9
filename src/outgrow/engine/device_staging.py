"""Copies of batches to a device, one batch ahead of the computation, by a thread and on a stream of their own.

The memory of a copy belongs to the stream that copies. `DeviceStaging.hand_over` tells it which other stream reads it:
else the next copy could be written to what an unfinished kernel still reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.nn.layer import Features
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import DeviceStreams


class DeviceStaging:
    """Moves blocks and features to the device of a worker. Final.

    Args:
        comm: Communicator; gives the device, the ledger and the timeline.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._streams = DeviceStreams(comm.device)

    def copy_batch(self, blocks: Iterable[Block], rows: Features) -> tuple[list[Block], Features]:
        """Return copies on the device; waits for them. For the thread that copies.

        Args:
            blocks: Blocks of a batch, on the CPU.
            rows: ``[m, D]`` features of the sources of the first one.
        """
        device = self._comm.device
        with self._comm.timeline.span("copy to the device"), self._streams.on_load_stream():
            return [block.to(device) for block in blocks], move_features_to_device(rows, self._comm)

    def hand_over(self, blocks: Iterable[Block], rows: Features) -> None:
        """Let the stream of the calling thread read copies. For the thread that computes."""
        if self._streams.asynchronous:
            stream = torch.cuda.current_stream(self._comm.device)
            for tensor in iterate_tensors([*blocks, rows]):
                if tensor.is_cuda:
                    tensor.record_stream(stream)


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a value: itself, elements of a list, tuple or mapping, or attributes, at any depth."""
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, dict):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    for part in parts:
        yield from iterate_tensors(part)
