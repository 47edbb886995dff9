"""Partitions that are balanced by an epoch of batches which is sampled first and not trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from outgrow.engine.batches import BatchConfig
from outgrow.engine.link_batches import LinkBatches
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.partition.presampled import PresampledMetis, presample_weights, sampling_signature
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import GraphView, Topology

PRESAMPLING_EPOCH = 0
"""Number of the epoch that is sampled first: epochs of training are numbered from 1."""
_ANY_SEED = 0  # the partition of a graph is the same for runs of any seed


def make_presampled_partition(views: Sequence[GraphView], nodes: Tensor, batches: BatchConfig) -> PresampledMetis:
    """Return METIS balanced by seeds and by the in-edges of an epoch that is sampled first and not trained.

    Args:
        views: The graph of each layer, with or without self-loops.
        nodes: ``[n]`` int64, the nodes to train on.
        batches: Configuration of the batches.
    """
    course = sampling_signature(views, nodes, batches)
    return _presample_partition(
        views, batches, course, lambda: batches.seeds_of_epoch(nodes, _ANY_SEED, PRESAMPLING_EPOCH)
    )


def make_partition_presampled_for_links(
    topology: Topology, views: Sequence[GraphView], batches: BatchConfig, links: LinkOptions
) -> PresampledMetis:
    """Return `make_presampled_partition` for batches of links.

    Args:
        topology: The graph, whose edges are the links.
        views: The graph of each layer, with or without self-loops.
        batches: Configuration of the batches.
        links: How links are trained on.
    """
    every = torch.empty(0, dtype=torch.int64) if links.relations is None else links.relations
    about = "links", links.sampling, links.negatives, links.relations is None
    drawn = LinkBatches(FullGraphShard(topology), links, batches, _ANY_SEED)
    return _presample_partition(
        views,
        batches,
        sampling_signature(views, every, batches, *about),
        lambda: (each.seeds for each in drawn.of_epoch(PRESAMPLING_EPOCH)),
    )


def _presample_partition(
    views: Sequence[GraphView], batches: BatchConfig, course: str, draw_seeds: Callable[[], Iterable[Tensor]]
) -> PresampledMetis:
    def compute_weights() -> Tensor:
        sampler = NeighborSampler(views, batches.fanout_per_hop(len(views)), _ANY_SEED, **batches.sampling_options)
        return presample_weights(sampler, PRESAMPLING_EPOCH, draw_seeds(), views[0].num_nodes)

    return PresampledMetis(course=course, weights=compute_weights)
