"""Fennel: nodes are assigned one after the other, in one pass or some over the edges, in memory for nodes alone.

Tsourakakis, Gkantsidis, Radunovic, Vojnovic: FENNEL: streaming graph partitioning for massive scale graphs, WSDM
2014; restreaming as in Nishimura, Ugander: Restreaming graph partitioning, KDD 2013. A node joins the part with the
most of its in-neighbours, less a cost that grows with the size of the part. Size counts nodes, in-edges and seeds
alike, and none of the three may exceed its mean by more than the imbalance, where that is possible.

Letters: ``V`` nodes, ``E`` edges, ``P`` parts; three loads: nodes, in-edges, seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.partitioner import SeedBalancingPartitioner, fill_empty_parts, require_in_range
from outgrow.graph.partition.quality import count_cut_edges
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, serial_kernel

Array = NDArray[Any]

_GAMMA = 1.5
"""Exponent of the cost of a part's size, as published."""
_COSTS = (1.0, 0.1, 0.03)
"""Parts of the published cost that are tried. Where few neighbours of a node come before it, the published one
outweighs them for good, since later passes begin where the first one ended."""


@dataclass(frozen=True, kw_only=True)
class FennelPartitioner(SeedBalancingPartitioner):
    """Fennel with restreaming. Reads the edges in order, once for each pass; holds a few numbers for each node.

    Attributes:
        passes: Passes over the edges for each of three costs of a part's size, of which the best is taken; from the
            second on, all nodes have a part already.
        imbalance: How many more nodes, in-edges or seeds than the mean a part may have, from 0.001. Nodes with many
            in-edges can make it impossible.
    """

    name: ClassVar[str] = "fennel"
    passes: int = 10
    imbalance: float = 0.05

    def __post_init__(self) -> None:
        require_in_range("passes", self.passes, 1, 1000)
        require_in_range("imbalance", self.imbalance, 0.001, 1000)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        num_nodes = topology.num_nodes
        is_seed = self._mark_seeds(num_nodes)
        mean = np.array([num_nodes, topology.num_edges, is_seed.sum(dtype=np.int64)], dtype=np.float64) / num_parts
        # The cost at which one more cut edge and one more node in the larger part weigh the same on average.
        alpha = math.sqrt(num_parts) * topology.num_edges / num_nodes**_GAMMA
        indptr, indices = as_numpy(topology.indptr), as_numpy(topology.indices)
        best, least_cut = np.empty(0, dtype=np.int32), topology.num_edges + 1
        for share in _COSTS:
            part = np.full(num_nodes, -1, dtype=np.int32)
            loads = np.zeros((3, num_parts), dtype=np.float64)
            for _ in range(self.passes):
                most = np.ceil((1 + self.imbalance) * mean)
                _assign_nodes(indptr, indices, is_seed, part, loads, mean, most, share * _GAMMA * alpha)
            cut, _ = count_cut_edges(indptr, indices, part, num_parts)
            if cut < least_cut:
                best, least_cut = part, cut
        fill_empty_parts(best, num_parts, np.diff(indptr))
        return Partition.from_assignment(torch.from_numpy(best), num_parts)


@serial_kernel
def _assign_nodes(
    indptr: Array,
    indices: Array,
    is_seed: NDArray[np.uint8],
    part: NDArray[np.int32],
    loads: NDArray[np.float64],
    mean: NDArray[np.float64],
    most: NDArray[np.float64],
    cost: float,
) -> None:
    """Assign every node, in order; nodes that have a part leave it first.

    Args:
        indptr: ``[V + 1]``.
        indices: ``[E]``.
        is_seed: ``[V]``, 1 for seeds.
        part: ``[V]``, changed: part of each node, -1 for none.
        loads: ``[3, P]``, changed.
        mean: ``[3]``, loads of a part if all were equal; 0 for loads that do not count.
        most: ``[3]``, bounds of the loads of a part.
        cost: Cost of a node in a part of size 1.
    """
    num_parts = loads.shape[1]
    neighbors = np.zeros(num_parts, dtype=np.int64)
    weight = np.zeros(3, dtype=np.float64)
    counted = 0
    for load in range(3):
        counted += mean[load] > 0
    for v in range(len(part)):
        first, last = indptr[v], indptr[v + 1]
        weight[0], weight[1], weight[2] = 1, last - first, is_seed[v]
        if part[v] >= 0:
            for load in range(3):
                loads[load, part[v]] -= weight[load]
        for e in range(first, last):
            source = indices[e]
            if source != v and part[source] >= 0:
                neighbors[part[source]] += 1
        best, best_score = -1, 0.0
        least, least_size = 0, np.inf
        for candidate in range(num_parts):
            size, fits = 0.0, True
            for load in range(3):
                if mean[load] > 0:
                    size += loads[load, candidate] / mean[load]
                    fits &= loads[load, candidate] + weight[load] <= most[load]
            # In nodes, as the published cost is.
            size *= mean[0] / counted
            if size < least_size:
                least, least_size = candidate, size
            score = neighbors[candidate] - cost * math.sqrt(size)
            if fits and (best < 0 or score > best_score):
                best, best_score = candidate, score
        # A node too heavy for every part goes where it does least harm.
        chosen = best if best >= 0 else least
        for e in range(first, last):
            if part[indices[e]] >= 0:
                neighbors[part[indices[e]]] = 0
        part[v] = chosen
        for load in range(3):
            loads[load, chosen] += weight[load]
