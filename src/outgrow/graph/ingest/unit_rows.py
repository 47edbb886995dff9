"""Feature rows that sum to one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from outgrow.graph.ingest.source import EdgeChunk, Source, Tables


class UnitRows(Source):
    """A source whose sparse feature rows are divided by their sums, as is usual for bags of words. Final.

    Args:
        source: What to read; its features are sparse and not negative.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """That of the source."""
        return self._source.name

    def tables(self) -> Tables:
        """Those of the source, with every row of the features that is not empty summing to one."""
        tables = self._source.tables()
        assert isinstance(tables.features, csr_array)
        counts = tables.features
        sums = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
        scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
        values = (counts.data * np.repeat(scale, np.diff(counts.indptr))).astype(np.float32)
        return replace(tables, features=csr_array((values, counts.indices, counts.indptr), shape=counts.shape))

    def edges(self) -> Iterator[EdgeChunk]:
        """Those of the source."""
        return self._source.edges()
