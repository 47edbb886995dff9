"""Partitions that balance the edges that batches sample."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outgrow.engine.batches import BatchConfig
from outgrow.graph.partition.presampled import PresampledMetis, presample_weights, sampling_signature
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology

_ANY_SEED = 0  # the partition of a graph is the same for runs of any seed
_PRESAMPLING_EPOCH = 0  # epochs are numbered from 1


def make_presampled_partition(views: Sequence[Topology], nodes: Tensor, batches: BatchConfig) -> PresampledMetis:
    """Return METIS balanced by seeds and by the in-edges of an epoch that is sampled first and not trained.

    Args:
        views: The graph of each layer, with or without self-loops.
        nodes: ``[n]`` int64, the nodes to train on.
        batches: Configuration of the batches.
    """

    def compute_weights() -> Tensor:
        sampler = NeighborSampler(views, batches.fanout_per_hop(len(views)), _ANY_SEED, weighted=batches.weighted)
        return presample_weights(
            sampler,
            _PRESAMPLING_EPOCH,
            batches.seeds_of_epoch(nodes, _ANY_SEED, _PRESAMPLING_EPOCH),
            views[0].num_nodes,
        )

    return PresampledMetis(course=sampling_signature(views, nodes, batches), weights=compute_weights)
