"""Fixed weights of edges against the formulas on a dense adjacency matrix."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings

from outgrow.graph.topology import Topology
from outgrow.ops.edge_weight import mean_weight, symmetric_weight
from support import destinations_of, random_topology, topologies


def expected(topology: Topology, *, symmetric: bool) -> torch.Tensor:
    """Edge by edge; zero where a degree is."""
    degree, src, dst = topology.degree, topology.indices.long(), destinations_of(topology.block.edges)
    weight = torch.ones(len(src), dtype=torch.float64) if topology.weight is None else topology.weight.double()
    below = (degree[src] * degree[dst]).sqrt() if symmetric else degree[dst]
    return torch.where(below > 0, weight / below, torch.zeros_like(weight))


@given(topologies())
@settings(deadline=None)
def test_any_graph(topology: Topology) -> None:
    for graph in (topology, topology.with_self_loops):
        for function, symmetric in ((mean_weight, False), (symmetric_weight, True)):
            ours = function(graph.block, torch.float64)
            assert ours.shape == (graph.num_edges, 1)
            torch.testing.assert_close(ours[:, 0], expected(graph, symmetric=symmetric), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("index", "dtype"), [(torch.int32, torch.float32), (torch.int64, torch.float64)])
def test_types_and_weighted_edges(index: torch.dtype, dtype: torch.dtype) -> None:
    topology = random_topology(40, 200, index=index, weighted=True).with_self_loops
    for function, symmetric in ((mean_weight, False), (symmetric_weight, True)):
        ours = function(topology.block, dtype)
        assert ours.dtype == dtype
        reference = expected(topology, symmetric=symmetric).to(dtype)
        torch.testing.assert_close(ours[:, 0], reference, rtol=1e-6, atol=0)


def test_means_of_a_destination_sum_to_one() -> None:
    topology = random_topology(40, 200, weighted=True)
    total = torch.zeros(40, dtype=torch.float64)
    total.index_add_(0, destinations_of(topology.block.edges), mean_weight(topology.block, torch.float64)[:, 0])
    torch.testing.assert_close(total, (topology.degree > 0).double(), rtol=0, atol=1e-14)


def test_the_degrees_are_those_of_the_block_record_not_of_its_edges() -> None:
    block = random_topology(40, 200).block
    edges = dataclasses.replace(block.edges, cache={})
    doubled = dataclasses.replace(block, edges=edges, dst_degree=2 * block.dst_degree)
    halved = mean_weight(block, torch.float64) / 2
    torch.testing.assert_close(mean_weight(doubled, torch.float64), halved, rtol=1e-15, atol=0)


def test_weights_are_computed_once_for_each_type() -> None:
    block = random_topology(40, 200).block
    assert mean_weight(block, torch.float64) is mean_weight(block.with_rng_key(5), torch.float64)
    assert mean_weight(block, torch.float32).dtype == torch.float32
