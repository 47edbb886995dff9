"""CSR checks, row normalisation, block-diagonal features of typed nodes.

SciPy's own check passes over the ends of rows wherever the last of them is 0 or less, and takes differences
that can overflow. Its loops check nothing: they read and write where the ends of rows say.

Each type has columns of its own. In the rows of a type those of the others are not stored, so a product with one weight
matrix multiplies them with that type's part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array

from outgrow.core.graph_schema import MOST_BLOCKS
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.source import BlockFeatures, EdgeChunk, GraphSource, NodeTableSource

_MOST_COLUMNS = 2**31 - 1


def csr_from_arrays(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: Sequence[object]
) -> csr_array:
    """Return the CSR matrix of these arrays.

    Args:
        data: ``[N]`` real numbers.
        indices: ``[N]`` integer, column of each value.
        indptr: ``[V + 1]`` integer, ends of the rows.
        shape: ``V`` and the number of columns.

    Raises:
        ValueError: They are not the arrays of one matrix.
    """
    for name, values, kinds in (("data", data, "biuf"), ("indices", indices, "iu"), ("indptr", indptr, "iu")):
        if values.ndim != 1 or values.dtype.kind not in kinds:
            raise ValueError(f"{name} of {values.dtype} and shape {list(values.shape)}")
    counts = [n for n in shape if type(n) is int and n >= 0]
    if len(shape) != 2 or len(counts) != 2 or counts[1] > _MOST_COLUMNS:
        raise ValueError(f"a shape of {str(list(shape))[:80]}")
    _check_row_ends(indptr, counts[0], len(indices))
    if len(data) != len(indices):
        raise ValueError(f"{len(data)} values in {len(indices)} columns")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < counts[1]:
        raise ValueError(f"columns from {indices.min()} to {indices.max()} of {counts[1]}")
    # Only now: the constructor trusts the arrays, and its checks leave out what was checked above.
    made = csr_array((data, indices, indptr), shape=(counts[0], counts[1]))
    made.check_format(full_check=True)
    return made


def validate_csr(matrix: csr_array) -> csr_array:
    """Return the matrix after a check of its arrays.

    Raises:
        ValueError: They are not the arrays of one matrix.
    """
    return csr_from_arrays(matrix.data, matrix.indices, matrix.indptr, [int(n) for n in matrix.shape])


def _check_row_ends(indptr: NDArray[Any], num_rows: int, num_values: int) -> None:
    if len(indptr) != num_rows + 1:
        raise ValueError(f"{len(indptr)} ends of rows for {num_rows} rows")
    if int(indptr[0]) != 0 or int(indptr[-1]) > num_values:
        raise ValueError(f"ends of rows from {indptr[0]} to {indptr[-1]} for {num_values} values")
    # A comparison, since a difference of neighbours can overflow.
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        raise ValueError(f"ends of rows that fall at row {int(np.argmax(falls))}")


class RowNormalizedSource(GraphSource):
    """Source whose sparse feature rows are divided by their sums, as is usual for bags of words. Final.

    Args:
        source: What to read; its features are sparse and not negative.
    """

    def __init__(self, source: GraphSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """Name of the source."""
        return self._source.name

    def read_tables(self) -> NodeTableSource:
        """Return the tables of the source, with non-empty feature rows that sum to one."""
        tables = self._source.read_tables()
        assert isinstance(tables.features, csr_array)
        counts = tables.features
        # Empty rows stay empty: their sum of 0 must not be divided by.
        sums = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
        scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
        values = (counts.data * np.repeat(scale, np.diff(counts.indptr))).astype(np.float32)
        return replace(tables, features=csr_array((values, counts.indices, counts.indptr), shape=counts.shape))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield the edges of the source."""
        return self._source.read_edges()

    def describe_origin(self) -> GraphOrigin:
        """Return what the source says, and that rows are divided."""
        origin = self._source.describe_origin()
        divided = {"features": ", rows divided by their sums"}
        return replace(origin, read=tuple((what, where + divided.get(what, "")) for what, where in origin.read))


DENSE_SHARE = 0.25
"""Least share of stored numbers of which features are kept dense: they take at most twice the memory, and less time."""

Matrix = NDArray[Any] | csr_array


def block_diagonal_features(counts: Sequence[int], parts: Sequence[Matrix | None]) -> csr_array | BlockFeatures:
    """Return ``[V, D]`` features of all types, where ``D`` is the sum of their widths; rows of types without are empty.

    They are dense for each type where at least `DENSE_SHARE` of their numbers are not zero, else CSR: bags of words.
    Half precision becomes float32 in CSR.

    Args:
        counts: Number of nodes of each type.
        parts: Their features; None for none. One type at least has some.
    """
    known = [part for part in parts if part is not None]
    stored = sum(part.nnz if isinstance(part, csr_array) else np.count_nonzero(part) for part in known)
    firsts = [0, *accumulate(counts)]
    numbers = sum(part.shape[0] * part.shape[1] for part in known)
    if stored >= DENSE_SHARE * numbers and len(known) <= MOST_BLOCKS:
        dense = [
            (first, part.toarray() if isinstance(part, csr_array) else part)
            for first, part in zip(firsts, parts, strict=False)
            if part is not None
        ]
        return BlockFeatures(parts=tuple(dense), num_rows=firsts[-1])
    blocks = zip(counts, parts, strict=True)
    diagonal = [csr_array((count, 0), dtype=np.float32) if part is None else _to_csr(part) for count, part in blocks]
    return csr_array(block_diag(diagonal, format="csr"))


def _to_csr(block: Matrix) -> csr_array:
    # SciPy has no half precision.
    return csr_array(block.astype(np.float32) if block.dtype == np.float16 else block)


def type_widths(parts: Sequence[Matrix | None]) -> list[int]:
    """Return how many columns of `block_diagonal_features` each type has."""
    return [0 if part is None else int(part.shape[1]) for part in parts]
