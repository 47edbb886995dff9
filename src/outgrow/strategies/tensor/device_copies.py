"""Copies between a worker's device and its host, which holds what the memory of the device does not."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.chunk_blocks import ChunkBlock


class DeviceCopies:
    """Copies tensors to where they are needed, and counts the bytes. Where host and device are one, nothing is copied.

    Args:
        comm: Gives the device and the ledger.
    """

    def __init__(self, comm: Comm) -> None:
        self.device = comm.device
        self._ledger = comm.ledger

    def load_edges(self, chunk: ChunkBlock) -> ChunkBlock:
        """Return a chunk with its edges on the device."""
        moved = chunk.to(self.device)
        if moved.block is not chunk.block:
            tensors = [*vars(moved.block).values(), *vars(moved.block.edges).values()]
            num_bytes = sum(each.nbytes for each in tensors if isinstance(each, Tensor))
            self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.TOPOLOGY, num_bytes)
        return moved

    def load_rows(self, rows: Tensor, kind: Kind) -> Tensor:
        """Return rows on the device."""
        return self.move_rows(rows, self.device, kind)

    def move_rows(self, rows: Tensor, device: torch.device, kind: Kind) -> Tensor:
        """Return rows on a device: that of the worker, or its host."""
        if rows.device != device:
            link = Link.DEVICE_TO_HOST if device.type == "cpu" else Link.HOST_TO_DEVICE
            self._ledger.add_bytes(link, kind, rows.nbytes)
        return rows.to(device)
