"""Form of a graph's features: compressed rows become dense ones where few of the numbers are zero.

A product with a dense matrix passes once over memory; one with compressed rows reads a column number with each value,
and jumps. The threshold is a constant, not measured: the same data give the same graph, and the same sums, on every
machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.matrices import DENSE_SHARE
from outgrow.graph.readers.source import FeatureTable, LazyMatrix, LazySparse


class DenseRows(LazyMatrix):
    """Compressed rows that are read as dense ones; entries of one place are added. Final.

    Args:
        rows: ``[V, D]``, checked.
    """

    def __init__(self, rows: csr_array | LazySparse) -> None:
        self._rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""
        return int(self._rows.shape[0]), int(self._rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element: that of the values."""
        return np.dtype(self._rows.dtype)

    @property
    def share(self) -> float:
        """Share of the numbers that the rows store."""
        return _stored_share(self._rows)

    def read_rows(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last - 1``, dense."""
        return np.ascontiguousarray(self._rows[first:last].toarray())


def choose_feature_form(features: FeatureTable) -> FeatureTable:
    """Return features as they are to be stored: compressed rows as dense ones from `DENSE_SHARE` on."""
    if isinstance(features, (csr_array, LazySparse)) and _stored_share(features) >= DENSE_SHARE:
        return DenseRows(features)
    return features


def describe_feature_form(origin: GraphOrigin, features: FeatureTable | None) -> GraphOrigin:
    """Return the origin of a graph, which tells of sparse features that are stored dense."""
    if not isinstance(features, DenseRows):
        return origin
    form = f"; dense, as {features.share:.0%} of the numbers are stored"
    read = tuple((what, where + form if what == "features" else where) for what, where in origin.read)
    return replace(origin, read=read)


def _stored_share(rows: csr_array | LazySparse) -> float:
    size = int(rows.shape[0]) * int(rows.shape[1])
    return int(rows.indptr[-1]) / size if size else 0.0
