"""METIS partitions balanced by the work of mini-batches, which is estimated from batches sampled beforehand.

The work of a worker for a batch is the number of in-edges sampled for its nodes. Some nodes are in most
batches and others in none, so parts with equal nodes or edges need not have equal work (Polisetty et al.:
GSplit, 2023, section 3.2; pre-sampling as in Yang et al.: GNNLab, EuroSys 2022).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from outgrow.graph.partition.metis import run_metis
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.partitioner import Array, Partitioner, fill_empty_parts
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_FINE = 100
"""The mean weight of a node: METIS takes whole numbers."""


@dataclass(frozen=True, kw_only=True)
class PresampledMetis(Partitioner):
    """METIS with parts balanced by sampled in-edges and by seeds, which weigh the same in total.

    Attributes:
        course: Name for how batches are sampled: see `sampling_signature`.
        imbalance: How much heavier than the mean a part may be.
        weights: Computes the ``[V]`` float64 weights of nodes; called only if no partition is cached: see
            `presample_weights`.
    """

    name: ClassVar[str] = "metis-access"
    course: str
    imbalance: float = 0.03
    weights: Callable[[], Tensor] = field(compare=False, repr=False)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        if num_parts == 1:
            return Partition.from_assignment(torch.zeros(topology.num_nodes, dtype=torch.int16), 1)
        given = self.weights()
        # Scaled to a mean of 100, so that rounding to whole numbers changes the balance by little.
        weight: Array = as_numpy((given * (_FINE * topology.num_nodes / max(given.sum().item(), 1e-9))).round().long())
        part = run_metis(topology, num_parts, weight, imbalance=self.imbalance, seed=0, memory_bytes=None)
        fill_empty_parts(part, num_parts, as_numpy(topology.indptr.diff()))
        return Partition.from_assignment(torch.from_numpy(part), num_parts)


def presample_weights(sampler: NeighborSampler, epoch: int, batches: Sequence[Tensor], num_nodes: int) -> Tensor:
    """Return ``[V]`` float64: each node's share of the sampled in-edges and of the seeds of an epoch, averaged.

    Args:
        sampler: Samples the batches.
        epoch: Number of the epoch.
        batches: ``[n]`` int64 seeds of each batch.
        num_nodes: ``V``.
    """
    sampled = torch.zeros(num_nodes, dtype=torch.float64)
    seeds = torch.zeros(num_nodes, dtype=torch.float64)
    for step, batch in enumerate(batches):
        seeds[batch] += 1
        for block in sampler.sample_blocks(batch, epoch, step):
            sampled[block.dst_nodes] += block.edges.indptr.diff()
    return sum((each / max(1.0, each.sum().item()) / 2 for each in (sampled, seeds)), torch.zeros(()))


def sampling_signature(views: Sequence[Topology], nodes: Tensor, *about: object) -> str:
    """Return a name for how batches are sampled: equal for equal training nodes, layers and options.

    Args:
        views: The topology as each layer wants it.
        nodes: ``[n]`` int64, the nodes to train on.
        about: Further values that it depends on.
    """
    digest = hashlib.sha256(repr(([view.num_edges for view in views], about)).encode())
    # The nodes themselves, not their number: another split is another signature.
    digest.update(as_numpy(nodes).tobytes())
    return digest.hexdigest()[:16]
