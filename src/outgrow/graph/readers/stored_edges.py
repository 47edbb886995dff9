"""Edges of a graph as readers yield them, in chunks, and the relations of these that are no inverses of others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import EdgeChunk
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_CHUNK = 1 << 18
_SHOWN = 3


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


def list_forward_relations(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the relations that are no inverses of others: the first half, if each of the second inverts one of it.

    Raises:
        InputError: The graph has relations, but no inverse of each.
    """
    half = names[: len(names) // 2]
    if names and names != (*half, *(f"{name}^-1" for name in half)):
        raise InputError(
            "the graph has relations without inverses",
            needed="a graph that was converted with --undirected or --inverse-relations, as the new edges are to be",
            got=f"relations {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}",
            repair="append with --directed",
        )
    return half
