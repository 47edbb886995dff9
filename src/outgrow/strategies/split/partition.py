"""Partitions that are even in what batches draw."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outgrow.engine.batches import Batches
from outgrow.graph.partition.presampled import MetisByAccess, access_weights, course_of
from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.graph.topology import Topology

_ANY_SEED = 0  # the partition of a graph is the same for runs of any seed
_BEFORE = 0  # epochs are numbered from 1


def by_access(views: Sequence[Topology], nodes: Tensor, batches: Batches) -> MetisByAccess:
    """METIS with parts that are even in the in-edges of an epoch that is drawn first and not trained, and in seeds.

    Args:
        views: The graph as each layer sees it.
        nodes: ``[n]`` int64, the nodes to train on.
        batches: What batches are made of.
    """

    def weights() -> Tensor:
        sampler = Sampler(views, batches.hops(len(views)), _ANY_SEED, weighted=batches.weighted)
        return access_weights(sampler, _BEFORE, batches.of_epoch(nodes, _ANY_SEED, _BEFORE), views[0].num_nodes)

    return MetisByAccess(course=course_of(views, nodes, batches), weights=weights)
