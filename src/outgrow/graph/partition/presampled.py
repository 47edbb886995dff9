"""Parts that have equally much of the work of mini-batches, as batches that are drawn beforehand show it.

A worker's work for a batch are the in-edges that are drawn of its nodes. Some nodes are in most batches and others in
none, so parts that are even in nodes or in edges need not be even in work (Polisetty et al.: GSplit, 2023, section 3.2;
pre-sampling as in Yang et al.: GNNLab, EuroSys 2022).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from outgrow.graph.partition.methods import Array, Partitioner, fill_empty_parts
from outgrow.graph.partition.metis import run_metis
from outgrow.graph.partition.partition import Partition
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_FINE = 100
"""The mean weight of a node: METIS takes whole numbers."""


@dataclass(frozen=True, kw_only=True)
class PresampledMetis(Partitioner):
    """METIS with parts that are even in in-edges drawn and in seeds, which weigh the same in total.

    Attributes:
        course: What tells the batches apart from others: see `course_of`.
        imbalance: How much heavier than the mean a part may be.
        weights: ``[V]`` float64 weight of each node, made when a partition is not known yet: see `presample_weights`.
    """

    name: ClassVar[str] = "metis-access"
    course: str
    imbalance: float = 0.03
    weights: Callable[[], Tensor] = field(compare=False, repr=False)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        if num_parts == 1:
            return Partition.from_assignment(torch.zeros(topology.num_nodes, dtype=torch.int16), 1)
        given = self.weights()
        weight: Array = as_numpy((given * (_FINE * topology.num_nodes / max(given.sum().item(), 1e-9))).round().long())
        part = run_metis(topology, num_parts, weight, imbalance=self.imbalance, seed=0, memory_bytes=None)
        fill_empty_parts(part, num_parts, as_numpy(topology.indptr.diff()))
        return Partition.from_assignment(torch.from_numpy(part), num_parts)


def presample_weights(sampler: NeighborSampler, epoch: int, batches: Sequence[Tensor], num_nodes: int) -> Tensor:
    """``[V]`` float64: shares of all in-edges that are drawn and of all seeds in an epoch, one half each.

    Args:
        sampler: Draws the batches.
        epoch: Its number.
        batches: ``[n]`` int64 seeds of each.
        num_nodes: ``V``.
    """
    drawn = torch.zeros(num_nodes, dtype=torch.float64)
    seeds = torch.zeros(num_nodes, dtype=torch.float64)
    for step, batch in enumerate(batches):
        seeds[batch] += 1
        for block in sampler.sample_blocks(batch, epoch, step):
            drawn[block.dst_nodes] += block.edges.indptr.diff()
    return sum((each / max(1.0, each.sum().item()) / 2 for each in (drawn, seeds)), torch.zeros(()))


def sampling_signature(views: Sequence[Topology], nodes: Tensor, *about: object) -> str:
    """A name for how batches are drawn: the same for the same nodes to train on, layers and options.

    Args:
        views: The topology as each layer wants it.
        nodes: ``[n]`` int64, the nodes to train on.
        about: What else it depends on.
    """
    digest = hashlib.sha256(repr(([view.num_edges for view in views], about)).encode())
    digest.update(as_numpy(nodes).tobytes())
    return digest.hexdigest()[:16]
