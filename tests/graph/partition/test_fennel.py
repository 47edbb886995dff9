"""Fennel: balanced by all that counts, better than chance, better with more passes, and refused options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.partition.fennel import FennelPartitioner
from outgrow.graph.partition.methods import METHODS, HashPartitioner, MetisPartitioner
from outgrow.graph.partition.quality import measure_quality
from outgrow.planning.graph_stats.counted import CountedGraph, make_workload
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from support import random_topology, topology_of

PARTS = 4


def largest_over_mean(nodes: Tensor, part: Tensor) -> float:
    counts = torch.bincount(part[nodes].long(), minlength=PARTS).double()
    return float(counts.max() / counts.mean())


@pytest.mark.parametrize("name", ["products@0.02", "reddit@0.01"])
def test_nodes_edges_and_seeds_are_balanced(name: str) -> None:
    graph = og.load(name)
    # Nodes to train on that are all in one place: what balances nodes alone puts them together.
    seeds = torch.arange(graph.num_nodes // 5)
    plain, seeded = (
        method.partition_nodes(graph.topology, PARTS)
        for method in (FennelPartitioner(), FennelPartitioner().with_seeds(seeds))
    )
    found = measure_quality(graph.topology, seeded)
    assert found.node_balance <= 1.06
    assert found.edge_balance <= 1.06
    assert largest_over_mean(seeds, seeded.part) <= 1.06 < largest_over_mean(seeds, plain.part)


def test_fewer_edges_are_cut_than_by_chance() -> None:
    for name in ("products@0.02", "wordnet"):
        topology = og.load(name).topology
        fennel, hashed = (
            measure_quality(topology, method.partition_nodes(topology, PARTS))
            for method in (FennelPartitioner(), HashPartitioner())
        )
        assert 3 * fennel.edge_cut < hashed.edge_cut


def test_two_cliques_are_told_apart() -> None:
    """In any order of the nodes."""
    nodes = np.random.default_rng(3).permutation(40)
    groups = nodes[:20], nodes[20:]
    topology = topology_of(40, [(int(a), int(b)) for group in groups for a in group for b in group if a != b])
    found = FennelPartitioner().partition_nodes(topology, 2)
    assert measure_quality(topology, found).edge_cut == 0


def test_more_passes_do_not_cut_more() -> None:
    topology = og.load("wordnet").topology
    cuts = [
        measure_quality(topology, FennelPartitioner(passes=passes).partition_nodes(topology, PARTS)).edge_cut
        for passes in (1, 3, 10)
    ]
    assert cuts == sorted(cuts, reverse=True)
    assert cuts[2] < 0.9 * cuts[0]


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 120), st.integers(0, 5), st.data())
def test_odd_graphs(num_nodes: int, num_edges: int, seed: int, data: st.DataObject) -> None:
    topology = random_topology(num_nodes, num_edges, seed=seed)
    num_parts = data.draw(st.integers(1, num_nodes))
    method = FennelPartitioner(passes=2).with_seeds(torch.arange(0, num_nodes, 3))
    first, again = (method.partition_nodes(topology, num_parts) for _ in range(2))
    assert torch.equal(first.part, again.part)
    assert int(first.part_sizes.min()) > 0


@pytest.mark.parametrize("name", ["fennel", "metis"])
def test_mini_batches_balance_their_seeds_and_whole_graphs_do_not(name: str) -> None:
    graph = og.load("products@0.002")
    model = og.nn.SAGE(graph.num_features, 4, graph.num_classes)
    strategies = ((Sampled, True), (SplitParallel, True), (Migrate, True), (Orchestrate, True), (Full, False))
    for strategy, seeded in strategies:
        method = strategy(partition=name).partition_method(graph, model, og.TrainConfig().batch_config)
        assert isinstance(method, FennelPartitioner | MetisPartitioner)
        assert (method.seeds is not None) is seeded
        assert (method.cache_key == METHODS[name].cache_key) is not seeded


@pytest.mark.parametrize("name", ["fennel", "metis"])
def test_plans_count_the_partition_that_is_trained(name: str) -> None:
    graph = og.load("products@0.01")
    model = og.nn.SAGE(graph.num_features, 4, graph.num_classes)
    batches = og.TrainConfig(batch_size=64, fanout=(3, 3)).batch_config
    work = make_workload(graph, model, batches)
    counts = {}
    for strategy in (Sampled(partition=name), Full(partition=name)):
        spec = work.sampling_spec(name) if strategy.uses_minibatches else None
        counted = CountedGraph(graph).partition_stats(name, PARTS, spec)
        trained = strategy.partition_method(graph, model, batches).partition_nodes(graph.topology, PARTS)
        assert counted.nodes.tolist() == trained.part_sizes.tolist()
        assert counted.halo.sum() == sum(measure_quality(graph.topology, trained).halo)
        counts[strategy.name] = counted.halo.tolist()
    assert counts["sampled"] != counts["full"]


def test_another_split_is_another_partition() -> None:
    plain = FennelPartitioner()
    keys = {plain.with_seeds(torch.arange(count)).cache_key for count in (3, 4)} | {plain.cache_key}
    assert len(keys) == 3
    assert plain.with_seeds(torch.arange(3)).cache_key in keys
    assert replace(plain, passes=2).cache_key not in keys


@pytest.mark.parametrize("options", [{"passes": 0}, {"imbalance": 0.0}, {"imbalance": -1.0}])
def test_wrong_options(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="out of range"):
        FennelPartitioner(**options)  # type: ignore[arg-type]
