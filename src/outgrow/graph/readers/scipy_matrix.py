"""Graphs as adjacency matrices of SciPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.readers.npz import iter_array_edges
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource


@final
class ScipySource(GraphSource):
    """Source of a square sparse matrix: entry ``[i, j]`` is an edge from ``i`` to ``j``, and its value the weight.

    Edges have no weights if all values are 1. As in SciPy, entries that are given twice are added up, and an entry
    that is stored is an edge, also if it is 0.

    Args:
        matrix: ``[V, V]``, of any format.

    Raises:
        InputError: Another shape, or values that are no real numbers.
    """

    def __init__(self, matrix: Any) -> None:
        shape = matrix.shape
        if len(shape) != 2 or shape[0] != shape[1] or matrix.dtype.kind not in "fiub":
            raise InputError(
                "the matrix is no adjacency matrix",
                needed="a square matrix of real numbers: a row and a column for each node",
                got=f"{matrix.dtype} of shape {list(shape)}",
                repair="give [[None, B], [None, None]] to scipy.sparse.block_array if B leads from one type to another",
            )
        self._matrix = matrix

    @property
    def name(self) -> str:
        """``scipy``: matrices have no name."""
        return "scipy"

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes."""
        return NodeTableSource(num_nodes=int(self._matrix.shape[0]))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all entries, row by row."""
        rows = self._matrix.tocsr(copy=True)
        rows.sum_duplicates()
        entries = rows.tocoo()
        weight = None if (entries.data == 1).all() else entries.data
        yield from iter_array_edges(np.stack([entries.row, entries.col]), None, weight, "the matrix")
