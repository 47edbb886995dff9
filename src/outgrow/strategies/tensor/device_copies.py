"""Copies between a worker's device and its host, which holds what the memory of the device does not."""

from __future__ import annotations

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
            edges = moved.block.edges
            stored = edges.indptr, edges.indices, edges.relation, edges.weight, edges.features
            num_bytes = sum(each.nbytes for each in stored if each is not None)
            self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.TOPOLOGY, num_bytes)
        return moved

    def load_rows(self, rows: Tensor, kind: Kind) -> Tensor:
        """Return rows on the device."""
        if rows.device != self.device:
            self._ledger.add_bytes(Link.HOST_TO_DEVICE, kind, rows.nbytes)
        return rows.to(self.device)

    def store_rows(self, rows: Tensor, like: Tensor, kind: Kind) -> Tensor:
        """Return rows of the device on that of a table, to be written there."""
        if rows.device != like.device:
            self._ledger.add_bytes(Link.DEVICE_TO_HOST, kind, rows.nbytes)
        return rows.to(like.device)
