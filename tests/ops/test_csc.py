"""Degrees, self-loops and the transpose against loops over a list of edges."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings

from outgrow.core.block import Edges
from outgrow.graph.topology import Topology
from outgrow.ops.csc import cached_transpose, destination, in_degree, replace_self_loops
from support import Drawn, bipartite, destinations_of, random_topology, topologies, topology_of, with_edge_features


def pairs(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.indices.tolist(), destinations_of(topology.block.edges).tolist(), strict=True))


def assert_transposed(edges: Edges) -> None:
    back, src, dst = cached_transpose(edges), edges.indices.tolist(), destinations_of(edges).tolist()
    assert len(back.indptr) == edges.num_src + 1
    for u in range(edges.num_src):
        span = slice(int(back.indptr[u]), int(back.indptr[u + 1]))
        of_u = [e for e in range(edges.num_edges) if src[e] == u]
        assert back.edge[span].tolist() == of_u
        assert back.indices[span].tolist() == [dst[e] for e in of_u]


@given(bipartite())
@settings(deadline=None)
def test_the_transpose_lists_out_edges_in_edge_order(drawn: Drawn) -> None:
    assert_transposed(drawn.edges())


def test_the_transpose_of_wide_indices() -> None:
    assert_transposed(random_topology(20, 90, index=torch.int64).block.edges)


def test_the_transpose_is_built_once() -> None:
    edges = random_topology(20, 90).block.edges
    assert cached_transpose(edges) is cached_transpose(edges)


@given(bipartite())
@settings(deadline=None)
def test_destination_of_each_edge(drawn: Drawn) -> None:
    edges = drawn.edges()
    assert torch.equal(destination(edges), destinations_of(edges))


@given(topologies())
@settings(deadline=None)
def test_in_degree_counts_edges(topology: Topology) -> None:
    count = Counter(dst for _, dst in pairs(topology))
    assert topology.degree.tolist() == [count[v] for v in range(topology.num_nodes)]
    assert topology.degree.dtype == torch.float64


def test_in_degree_sums_weights() -> None:
    topology = random_topology(30, 200, weighted=True)
    assert topology.weight is not None
    expected = torch.zeros(30, dtype=torch.float64)
    expected.index_add_(0, destinations_of(topology.block.edges), topology.weight.double())
    torch.testing.assert_close(in_degree(topology.indptr, topology.weight), expected, rtol=1e-14, atol=1e-14)


@given(topologies())
@settings(deadline=None)
def test_every_node_gets_exactly_one_self_loop_at_the_end_of_its_row(topology: Topology) -> None:
    looped = topology.with_self_loops
    others = [pair for pair in pairs(topology) if pair[0] != pair[1]]
    expected = sorted([*others, *((v, v) for v in range(topology.num_nodes))], key=lambda p: (p[1], p[0] == p[1], p[0]))
    assert pairs(looped) == expected
    assert looped.indices.dtype == topology.indices.dtype
    assert looped.weight is None


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_an_added_self_loop_weighs_one_and_others_keep_their_weight(index: torch.dtype) -> None:
    topology = topology_of(3, [(0, 0), (1, 0), (2, 0), (0, 2), (2, 2), (2, 2)], index=index, weighted=True)
    assert topology.weight is not None
    weight = topology.weight.tolist()
    indptr, indices, new = replace_self_loops(topology.indptr, topology.indices, topology.weight)
    assert new is not None
    assert indptr.tolist() == [0, 3, 4, 6]
    assert indices.tolist() == [1, 2, 0, 1, 0, 2]
    # Node 0 keeps the weight of its loop, node 1 has none, node 2 keeps that of the last of two.
    assert new.tolist() == [weight[1], weight[2], weight[0], 1.0, weight[3], weight[5]]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64]
)
def test_self_loops_have_features_as_they_have_weights(dtype: torch.dtype) -> None:
    """An added one has zeros, or codes of no category; of several the last counts."""
    pairs = [(0, 0), (1, 0), (2, 0), (0, 2), (2, 2), (2, 2)]
    topology = with_edge_features(topology_of(3, pairs), dtype=dtype)
    given = topology.edge_features
    assert given is not None
    added = torch.full((1, 3), 0 if dtype.is_floating_point else -1, dtype=dtype)
    looped = topology.with_self_loops
    expected = torch.cat([given[1:3], given[:1], added, given[3:4], given[5:]])
    assert looped.edge_features is not None
    assert torch.equal(looped.edge_features, expected)
    assert looped.edge_features.dtype == dtype
    assert looped.feature_sizes == topology.feature_sizes


def test_self_loops_of_a_graph_without_edges_have_no_features() -> None:
    looped = with_edge_features(topology_of(2, [])).with_self_loops
    assert looped.edge_features is not None
    assert torch.equal(looped.edge_features, torch.zeros(2, 3, dtype=torch.float64))
