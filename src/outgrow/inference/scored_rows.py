"""Rows of a worker's own nodes that links are ranked by: in memory, or in a file that is read in blocks.

Letters: ``N`` own nodes, ``F`` columns, ``P`` positions, ``Q`` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.ops.rows.positions import find_positions
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_storage import RowStorage


class ScoredRows(Protocol):
    """Rows of ascending own nodes.

    Attributes:
        nodes: ``[N]`` int64.
        width: ``F``.
        dtype: Of the rows.
        device: Where rows are.
    """

    nodes: Tensor
    width: int
    dtype: torch.dtype
    device: torch.device

    def select(self, at_P: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows, ``[M, F]``, and for each position, in any order, which of them it is, ``[P]`` int64."""

    def iterate_blocks(self, first: int, last: int, size: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the rows at positions ``first`` to ``last - 1``, and the first position, ``size`` at a time."""


class TensorRows:
    """Rows in memory. Final.

    Args:
        nodes: ``[N]`` int64, ascending.
        rows: ``[N, F]``.
    """

    def __init__(self, nodes: Tensor, rows: Tensor) -> None:
        self.nodes = nodes
        self.rows = rows
        self.width = rows.shape[1]
        self.dtype = rows.dtype
        self.device = rows.device

    def select(self, at_P: Tensor) -> tuple[Tensor, Tensor]:
        """Return all rows, and the positions."""
        return self.rows, at_P

    def iterate_blocks(self, first: int, last: int, size: int) -> Iterator[tuple[int, Tensor]]:
        """Yield slices."""
        for start in range(first, last, size):
            yield start, self.rows[start : min(last, start + size)]


class StorageRows:
    """Rows in storage, of which some are read at a time. Final.

    Args:
        nodes: ``[N]`` int64, ascending.
        storage: The rows, in this order.
    """

    device = torch.device("cpu")

    def __init__(self, nodes: Tensor, storage: RowStorage) -> None:
        self.nodes = nodes
        self.storage = storage
        self.width = storage.width
        self.dtype = storage.dtype

    def select(self, at_P: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows at the distinct positions."""
        # Ascending, so that rows near each other in a file are read together.
        distinct, inverse = torch.unique(at_P, return_inverse=True)
        found = torch.empty(len(distinct), self.width, dtype=self.dtype)
        self.storage.read_rows(distinct, found, torch.arange(len(distinct)))
        return found, inverse

    def iterate_blocks(self, first: int, last: int, size: int) -> Iterator[tuple[int, Tensor]]:
        """Yield blocks, each read when it is asked for."""
        for start in range(first, last, size):
            block = torch.empty(min(last, start + size) - start, self.width, dtype=self.dtype)
            self.storage.read_range(start, start + len(block), block)
            yield start, block


def fetch_scored_rows(rows: ScoredRows, nodes_Q: Tensor, comm: Comm) -> Tensor:
    """Return the rows of the same nodes on all workers, ``[Q, F]``, from the owner of each. All workers together."""
    at = find_positions(rows.nodes, nodes_Q)
    mine = at >= 0
    # Zero on the workers that do not own the node, so a sum hands each row to all of them.
    found = torch.zeros(len(at), rows.width, dtype=rows.dtype, device=rows.device)
    some, place = rows.select(at[mine])
    found[mine.to(rows.device)] = some[place.to(rows.device)]
    return comm.all_reduce(found, Kind.ACTIVATIONS)
