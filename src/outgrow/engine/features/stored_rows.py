"""`StoredRows`: rows of some nodes in a `RowStorage`, which feature stores read as if they were a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.owned_rows import locate_nodes
from outgrow.runtime.storage.row_storage import RowStorage


class StoredRows:
    """Rows of some nodes, in memory or in a file that is read in coalesced runs. Final.

    Args:
        storage: The rows, in the order of ``nodes``.
        nodes: ``[n]`` int64, ascending: the node of each row; None for all nodes in order.
        num_nodes: ``V``; None for as many as there are rows.
    """

    device = torch.device("cpu")

    def __init__(self, storage: RowStorage, nodes: Tensor | None = None, num_nodes: int | None = None) -> None:
        self.storage = storage
        self.nodes = nodes
        self.dtype = storage.dtype
        self.shape = (storage.num_rows if num_nodes is None else num_nodes, storage.width)

    def __len__(self) -> int:
        return self.shape[0]

    def read_nodes(self, nodes: Tensor, out: Tensor, to: Tensor | None) -> None:
        """Read the rows of nodes: ``out[to] = rows of nodes``.

        Args:
            nodes: ``[n]`` int64; each must have a row.
            out: ``[m, W]``; a narrower type rounds.
            to: ``[n]`` int64, distinct rows of ``out``; None for all in order.

        Raises:
            InputError: The row of a node is not here.
        """
        rows = nodes if self.nodes is None else locate_nodes(self.nodes, nodes)
        # Ascending, so that rows near each other in a file are read together.
        rows, order = rows.sort()
        to = order if to is None else to[order]
        distinct, inverse = torch.unique_consecutive(rows, return_inverse=True)
        if len(distinct) == len(rows) and torch.promote_types(self.dtype, out.dtype) == out.dtype:
            self.storage.read_rows(rows, out, to)
            return
        # Several workers may ask for one row, and storage does not round.
        found = torch.empty(len(distinct), self.shape[1], dtype=self.dtype)
        self.storage.read_rows(distinct, found, torch.arange(len(distinct)))
        out.index_copy_(0, to, found[inverse].to(out.dtype))
