"""Edges of a graph as readers yield them, in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outgrow.graph.readers.source import EdgeChunk
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_CHUNK = 1 << 18


def read_stored_edges(topology: Topology) -> Iterator[EdgeChunk]:
    """Yield the edges of a graph in its order, in chunks of bounded size; its arrays may be mapped."""
    indptr, indices = as_numpy(topology.indptr), as_numpy(topology.indices)
    relation = None if topology.relation is None else as_numpy(topology.relation)
    weight = None if topology.weight is None else as_numpy(topology.weight)
    for first in range(0, len(indices), _CHUNK):
        last = min(len(indices), first + _CHUNK)
        low = int(np.searchsorted(indptr, first, side="right")) - 1
        high = int(np.searchsorted(indptr, last, side="left"))
        counts = np.diff(np.clip(indptr[low : high + 1], first, last))
        yield EdgeChunk(
            # Copies: a view would keep the mapping.
            src=indices[first:last].astype(np.int64),
            dst=np.repeat(np.arange(low, high), counts),
            relation=None if relation is None else np.array(relation[first:last]),
            weight=None if weight is None else np.array(weight[first:last]),
        )
