"""Edges by pairs of relation and row, on a GPU. Letters: ``V`` rows, ``E`` edges, ``R`` relations, ``P`` pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.gpu.csc import edge_destinations


def sort_by_pair(
    indptr: Tensor, edge: Tensor | None, relation: Tensor, num_relations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return edges of rows sorted by relation, and by row within a relation; equal ones keep their order.

    Waits for the device, which alone knows how many pairs there are.

    Args:
        indptr: ``[V + 1]`` int64.
        edge: ``[E]`` position of the relation of each edge; None if it is that of the edge.
        relation: ``[E]`` integer, in ``[0, num_relations)``.
        num_relations: ``R``.

    Returns:
        ``[R]`` int64, the number of pairs of each relation; ``[P]`` int64, the row of each pair; ``[P + 1]`` int64, the
        ends of its edges; ``[E]`` int64, the position of each edge among the given ones.
    """
    # Edges come by row, so a stable sort by relation alone leaves those of a relation by row.
    kinds, order = torch.sort(relation if edge is None else relation[edge], stable=True)
    pair = kinds.long() * len(indptr) + edge_destinations(indptr, len(order))[order]
    found, sizes = torch.unique_consecutive(pair, return_counts=True)
    every = torch.arange(num_relations, device=indptr.device)
    last = torch.searchsorted(found // len(indptr), every, right=True)
    ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return torch.diff(last, prepend=last.new_zeros(1)), found % len(indptr), ends, order


def add_rows(out_VF: Tensor, rows: Tensor, values_NF: Tensor) -> None:
    """Add ``values[n]`` to ``out[rows[n]]``, in place; ``rows`` are ``[N]`` distinct int64."""
    # Rows are distinct, so that no two additions meet and their order does not matter.
    out_VF.index_add_(0, rows, values_NF)
