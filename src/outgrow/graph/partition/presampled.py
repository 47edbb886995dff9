"""METIS partitions balanced by the work of mini-batches, which is estimated from batches sampled beforehand.

The work of a worker for a batch is the number of in-edges sampled for its nodes. Some nodes are in most
batches and others in none, so parts with equal nodes or edges need not have equal work (Polisetty et al.:
GSplit, 2023, section 3.2; pre-sampling as in Yang et al.: GNNLab, EuroSys 2022).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from outgrow.graph.partition.metis import run_metis
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.partitioner import Array, Partitioner, fill_empty_parts
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import GraphView, Topology
from outgrow.ops.backend import as_numpy


@dataclass(frozen=True, kw_only=True)
class PresampledMetis(Partitioner):
    """METIS with parts balanced by sampled in-edges and by seeds, each as a weight of its own.

    One weight that is their sum would let many seeds make up for few edges. Worse, where few nodes are trained on, a
    seed then weighs as much as thousands of other nodes, and METIS cannot merge it with its neighbours when it
    coarsens the graph, which costs cut edges.

    Attributes:
        course: Name for how batches are sampled: see `sampling_signature`.
        imbalance: How much heavier than the mean a part may be.
        weights: Computes the ``[V, 2]`` int64 weights of nodes; called only if no partition is cached: see
            `presample_weights`.
    """

    name: ClassVar[str] = "metis-access"
    course: str
    imbalance: float = 0.03
    weights: Callable[[], Tensor] = field(compare=False, repr=False)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        if num_parts == 1:
            return Partition.from_assignment(torch.zeros(topology.num_nodes, dtype=torch.int16), 1)
        weight: Array = np.ascontiguousarray(as_numpy(self.weights()))
        part = run_metis(topology, num_parts, weight, imbalance=self.imbalance, seed=0, memory_bytes=None)
        fill_empty_parts(part, num_parts, as_numpy(topology.indptr.diff()))
        return Partition.from_assignment(torch.from_numpy(part), num_parts)


def presample_weights(sampler: NeighborSampler, epoch: int, batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """Return ``[V, 2]`` int64: in-edges that an epoch samples of each node, and how often the node is a seed.

    Args:
        sampler: Samples the batches.
        epoch: Number of the epoch.
        batches: ``[n]`` int64 seeds of each batch.
        num_nodes: ``V``.
    """
    weights = torch.zeros((num_nodes, 2), dtype=torch.int64)
    sampled, seeds = weights.unbind(1)
    for step, batch in enumerate(batches):
        seeds[batch] += 1
        for block in sampler.sample_blocks(batch, epoch, step):
            # Added one by one: drawn for several times, a node has several rows.
            sampled.index_add_(0, block.dst_nodes, block.edges.indptr.diff())
    return weights


def sampling_signature(views: Sequence[GraphView], nodes: Tensor, *about: object) -> str:
    """Return a name for how batches are sampled: equal for equal training nodes, layers and options.

    Args:
        views: The topology as each layer wants it.
        nodes: ``[n]`` int64, the nodes to train on.
        about: Further values that it depends on.
    """
    # The weights are named, so that partitions of stores that balanced their sum are not taken for these.
    digest = hashlib.sha256(repr(("in-edges", "seeds", [view.num_edges for view in views], about)).encode())
    # The nodes themselves, not their number: another split is another signature.
    digest.update(as_numpy(nodes).tobytes())
    return digest.hexdigest()[:16]
