"""`OwnedRows`: rows of some nodes of a matrix, of which no other row can be read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.ops.block_rows import as_range
from outgrow.ops.sparse import PartialRows, index_rows, slice_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnedRows:
    """Rows of some nodes of a ``[V, D]`` matrix, such as those of a part of a graph. Reading another is an error.

    Attributes:
        rows: ``[n, D]`` dense, sparse or of blocks: the rows that are here.
        nodes: ``[n]`` int64, ascending: the node of each row.
        num_rows: ``V``.
    """

    rows: Tensor | PartialRows
    nodes: Tensor
    num_rows: int

    def __len__(self) -> int:
        return self.num_rows

    @property
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""
        return self.num_rows, self.rows.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """Device of the rows."""
        return self.rows.device

    @property
    def nbytes(self) -> int:
        """Size of the rows that are here, in bytes."""
        return self.rows.nbytes

    def locate(self, nodes: Tensor) -> Tensor:
        """Return which of ``rows`` are those of some nodes, ``[n]`` int64.

        Raises:
            InputError: The row of a node is not here.
        """
        return locate_nodes(self.nodes, nodes)

    def index_rows(self, nodes: Tensor) -> Tensor | PartialRows:
        """Return the rows of these nodes, ``[n]`` int64; not copied if they are all that are here, in order.

        Raises:
            InputError: The row of a node is not here.
        """
        if len(nodes) == len(self.nodes) and torch.equal(nodes, self.nodes):
            return self.rows
        return index_rows(self.rows, self.locate(nodes))

    def slice_rows(self, first: int, last: int) -> Tensor | PartialRows:
        """Return the rows of nodes ``first`` to ``last - 1``, without a copy.

        Raises:
            InputError: One of them is not here.
        """
        if first >= last:
            return slice_rows(self.rows, 0, 0)
        low, high = self.locate(torch.tensor([first, last - 1])).tolist()
        # Nodes ascend: none between the two is missing if there are as many rows as nodes.
        if high - low != last - 1 - first:
            self.locate(torch.arange(first, last))
        return slice_rows(self.rows, low, high + 1)


NodeFeatures = Tensor | PartialRows | OwnedRows
"""Features of the nodes of a graph, ``[V, D]``: of all nodes, or of those that a part of the graph owns."""


def held_rows(features: NodeFeatures) -> Tensor | PartialRows:
    """Return the rows that are here: the matrix itself, or those of some nodes, of the same form, type and width."""
    return features.rows if isinstance(features, OwnedRows) else features


def locate_nodes(held: Tensor, nodes: Tensor) -> Tensor:
    """Return the position of each of some nodes among those whose rows are here, ``[n]`` int64.

    Args:
        held: ``[h]`` int64, ascending.
        nodes: ``[n]`` int64.

    Raises:
        InputError: A node is not among them.
    """
    span = as_range(held)
    at: Tensor
    if isinstance(span, slice):
        at = nodes - span.start
        absent = (nodes < span.start) | (nodes >= span.stop)
    else:
        at = torch.searchsorted(held, nodes)
        at.clamp_(max=len(held) - 1)
        absent = held[at] != nodes
    if absent.any():
        first = int(nodes[absent][0])
        raise InputError(
            f"the features of node {first} are not here",
            needed=f"one of the {len(held):,} nodes whose rows this part of the graph has",
            got=f"{int(absent.sum()):,} of {len(nodes):,} nodes that other parts own, the first is {first}",
            repair="train with one worker for each part, which ask each other for rows; or use the whole graph",
        )
    return at
