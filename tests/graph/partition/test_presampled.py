"""Parts balanced by the work of mini-batches: sampled in-edges and seeds, each on its own."""

from __future__ import annotations

import torch
from torch import Tensor

import outgrow as og
from outgrow.engine.batches import BatchConfig
from outgrow.graph.partition.methods import MetisPartitioner
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.presampled import PresampledMetis, presample_weights
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.strategies.split.presampling import make_presampled_partition
from support import topology_of

PARTS = 4
BATCHES = BatchConfig(size=512, fanout=(10, 10))


def weights_of(topology: Topology, seeds: Tensor, epoch: int) -> Tensor:
    sampler = NeighborSampler([topology] * 2, (10, 10), 0)
    return presample_weights(sampler, epoch, BATCHES.seeds_of_epoch(seeds, 0, epoch), topology.num_nodes)


def largest_over_mean(made: Partition, weights: Tensor) -> list[float]:
    totals = torch.zeros(PARTS, 2, dtype=torch.float64).index_add_(0, made.part.long(), weights.double())
    found: list[float] = (totals.max(0).values / totals.mean(0)).tolist()
    return found


def test_weights_are_counts_of_sampled_edges_and_of_seeds() -> None:
    topology = topology_of(5, [(0, 1), (2, 1), (1, 3)])
    weights = weights_of(topology, torch.tensor([1, 3]), 0)
    # In the second hop from 3, node 1 is sampled once more; it is in both blocks as a seed.
    assert weights[:, 1].tolist() == [0, 1, 0, 1, 0]
    assert weights[0].tolist() == weights[2].tolist() == weights[4].tolist() == [0, 0]
    assert weights[1, 0] > weights[3, 0] > 0


def test_sampled_edges_and_seeds_are_both_even_in_another_epoch() -> None:
    """The sum of both, which is what was balanced once, hides that one of them is uneven."""
    graph = og.load("wordnet")
    # Few seeds, all near one another: each would weigh as much as many other nodes.
    seeds = torch.arange(3000)
    made = make_presampled_partition([graph.topology] * 2, seeds, BATCHES).partition_nodes(graph.topology, PARTS)
    plain = MetisPartitioner().partition_nodes(graph.topology, PARTS)
    later = weights_of(graph.topology, seeds, 1)
    assert max(largest_over_mean(made, later)) < 1.1
    assert max(largest_over_mean(plain, later)) > 1.5
    assert measure_quality(graph.topology, made).edge_cut < 0.5 * graph.num_edges


def test_graphs_without_edges_and_nodes_never_drawn() -> None:
    for edges in ([], [(0, 1), (1, 2)]):
        topology = topology_of(9, edges)
        method = PresampledMetis(course="a", weights=lambda: torch.zeros(9, 2, dtype=torch.int64))
        assert int(method.partition_nodes(topology, 3).part_sizes.min()) > 0
        made = make_presampled_partition([topology], torch.arange(4), BatchConfig(size=2, fanout=(2,)))
        assert int(made.partition_nodes(topology, 3).part_sizes.min()) > 0
