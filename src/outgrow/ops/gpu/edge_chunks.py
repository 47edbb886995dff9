"""Ranges of edges whose rows fit memory: what a layer makes of an edge is held for a range of edges at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_NUMBERS_AT_ONCE = 1 << 26


class EdgeChunk(NamedTuple):
    """Consecutive edges, and the rows that they belong to, of which the first and the last may be cut.

    Attributes:
        edges: Range of the edges.
        rows: Range of the rows.
        indptr: ``[rows + 1]`` int64, the edges of each row among these.
        positions: ``[edges]`` int64, 0 to the number of edges less one.
    """

    edges: slice
    rows: slice
    indptr: Tensor
    positions: Tensor


def edge_chunks(indptr: Tensor, num_edges: int, width: int) -> Iterator[EdgeChunk]:
    """Yield all edges in order, in ranges that depend on their number and on the numbers of each alone.

    Args:
        indptr: ``[M + 1]`` int64.
        num_edges: ``E``.
        width: Numbers that are held for an edge.
    """
    step = max(1, _NUMBERS_AT_ONCE // max(1, width))
    borders = torch.arange(0, num_edges + step, step, device=indptr.device).clamp(max=num_edges)
    # The row of the first edge of each range, and the one after that of the last: one wait for the device.
    rows = torch.searchsorted(indptr, torch.stack([borders[:-1], borders[1:] - 1]), right=True).tolist()
    for number, (first_row, last_row) in enumerate(zip(*rows, strict=True)):
        first, last = number * step, min(num_edges, (number + 1) * step)
        of_rows = indptr[first_row - 1 : last_row + 1].clamp(first, last) - first
        positions = torch.arange(last - first, device=indptr.device)
        yield EdgeChunk(slice(first, last), slice(first_row - 1, last_row), of_rows, positions)
