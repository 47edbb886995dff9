"""Weakly connected components, by union-find over the edges in memory of ``V`` numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, serial_kernel


class ComponentCounts(NamedTuple):
    """Weakly connected components.

    Attributes:
        number: How many there are; a node without edges is one.
        largest: Nodes of the largest one.
    """

    number: int
    largest: int


def find_components(topology: Topology) -> NDArray[Any]:
    """Return ``[V]``: the smallest node of the component of each node.

    Edges are read once, in order, so that they may be mapped from a file.
    """
    # The narrowest type: this array is all the memory that is needed.
    parent = np.arange(topology.num_nodes, dtype=np.int32 if topology.num_nodes < 2**31 else np.int64)
    _join_components(as_numpy(topology.indptr), as_numpy(topology.indices), parent)
    return parent


def count_components(topology: Topology) -> ComponentCounts:
    """Return the number of weakly connected components, and the size of the largest one."""
    sizes = np.bincount(find_components(topology))
    return ComponentCounts(int(np.count_nonzero(sizes)), int(sizes.max(initial=0)))


@serial_kernel
def _join_components(indptr: NDArray[np.int64], indices: NDArray[Any], parent: NDArray[Any]) -> None:
    for v in range(len(parent)):
        for e in range(indptr[v], indptr[v + 1]):
            a, b = v, indices[e]
            # Path halving (Tarjan and van Leeuwen, 1984): each step makes the path shorter.
            while parent[a] != a:
                parent[a] = parent[parent[a]]
                a = parent[a]
            while parent[b] != b:
                parent[b] = parent[parent[b]]
                b = parent[b]
            if a < b:
                parent[b] = a
            else:
                parent[a] = b
    # A parent is never larger than its child, so that its root is known here.
    for v in range(len(parent)):
        parent[v] = parent[parent[v]]
