"""A sampled block without some edges is that of the graph without them: edges, degrees, degrees by relation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.excluded_edges import ExcludedEdges
from outgrow.graph.sampling.edge_sampler import Fanout
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.ops.csc import destination
from outgrow.ops.pair_sets import PairSet, find_edges_of_pairs
from support import random_topology, with_edge_features, with_relations

NODES = 40
GRAPHS = {
    "plain": random_topology(NODES, 300),
    "weighted": random_topology(NODES, 300, weighted=True),
    "relations": with_relations(random_topology(NODES, 300), 3),
    "relations and weights": with_relations(random_topology(NODES, 300, weighted=True), 3),
    "features": with_edge_features(random_topology(NODES, 300), 2),
}
SEEDS = torch.arange(0, NODES, 2)


def pairs_of(graph: Topology) -> PairSet:
    """Both ends of every ninth edge, and a loop, which is no pair."""
    tails = destination(graph.block.edges)
    some = torch.arange(0, graph.num_edges, 9)
    heads = torch.cat([graph.indices[some].long(), torch.tensor([5])])
    return PairSet.from_pairs(heads, torch.cat([tails[some], torch.tensor([5])]), NODES)


def between(graph: Topology, pairs: PairSet) -> Tensor:
    """``[E]`` bool: edges between the two nodes of a pair, edge by edge."""
    codes = {*pairs.codes.tolist()}
    ends = zip(graph.indices.tolist(), destination(graph.block.edges).tolist(), strict=True)
    return torch.tensor([u != v and min(u, v) * NODES + max(u, v) in codes for u, v in ends])


def without(graph: Topology, removed: Tensor) -> Topology:
    before = torch.cat([torch.zeros(1, dtype=torch.int64), (~removed).cumsum(0)])
    kept = {
        name: None if value is None else value[~removed]
        for name, value in ((name, getattr(graph, name)) for name in ("relation", "weight", "edge_features"))
    }
    return replace(graph, indptr=before[graph.indptr], indices=graph.indices[~removed], **kept)


def block_of(graph: Topology, fanout: Fanout, *, self_loops: bool) -> tuple[Block, NeighborSampler]:
    sampler = NeighborSampler([graph.sampling_view(self_loops=self_loops)], [fanout], 3)
    [block] = sampler.sample_blocks(SEEDS, 1, 0)
    return block, sampler


def listed(block: Block) -> list[tuple[object, ...]]:
    """Destination, source and what else an edge has, in order."""
    edges = block.edges
    heads, tails = block.src_nodes[edges.indices.long()].tolist(), block.dst_nodes[destination(edges)].tolist()
    others = [None if each is None else each.tolist() for each in (edges.relation, edges.weight, edges.features)]
    columns = [each if each is not None else [None] * len(heads) for each in others]
    return sorted(zip(tails, heads, *columns, strict=True), key=repr)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_all_in_edges(name: str, *, self_loops: bool) -> None:
    graph = GRAPHS[name]
    pairs = pairs_of(graph)
    removed = between(graph, pairs)
    assert 20 < int(removed.sum()) < graph.num_edges
    block, sampler = block_of(graph, -1, self_loops=self_loops)
    found = ExcludedEdges(pairs).remove_from(block, sampler.sampling.views[0])
    expected, _ = block_of(without(graph, removed), -1, self_loops=self_loops)
    assert listed(found) == listed(expected)
    assert len(found.edges.indices) < len(block.edges.indices)
    degree = dict(zip(found.src_nodes.tolist(), found.src_degree.tolist(), strict=True))
    for node, value in zip(expected.src_nodes.tolist(), expected.src_degree.tolist(), strict=True):
        assert degree[node] == value
    assert torch.equal(found.dst_degree, found.src_degree[: found.edges.num_dst])


@pytest.mark.parametrize("fanout", [3, (2, 1, 2)], ids=["number", "by relation"])
@pytest.mark.parametrize("name", ["relations", "relations and weights"])
def test_drawn_in_edges(name: str, fanout: Fanout) -> None:
    """What is left of a draw stands for as many edges as before, beside the degrees of the graph without the pairs."""
    graph = GRAPHS[name]
    pairs = pairs_of(graph)
    block, sampler = block_of(graph, fanout, self_loops=False)
    found = ExcludedEdges(pairs).remove_from(block, sampler.sampling.views[0])
    assert block.edge_ids is not None
    assert found.edge_ids is not None
    removed = between(graph, pairs)
    assert found.edge_ids.tolist() == [edge for edge in block.edge_ids.tolist() if not removed[edge]]
    assert found.sample_weight is not None
    assert block.sample_weight is not None
    weight = dict(zip(block.edge_ids.tolist(), block.sample_weight.tolist(), strict=True))
    assert found.sample_weight.tolist() == [weight[edge] for edge in found.edge_ids.tolist()]
    left = without(graph, removed)
    tails, kinds = destination(left.block.edges), left.relation
    assert kinds is not None
    assert found.relation_degree is not None
    values = torch.ones(left.num_edges) if left.weight is None else left.weight
    rows = zip(found.dst_nodes[destination(found.edges)].tolist(), found.edges.relation.tolist(), strict=True)
    for (node, kind), degree in zip(rows, found.relation_degree.tolist(), strict=True):
        expected = values[(tails == node) & (kinds == kind)].double().sum().item()
        assert degree == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_edges_of_pairs(name: str) -> None:
    graph = GRAPHS[name]
    pairs = pairs_of(graph)
    tails, edges = find_edges_of_pairs(graph.indptr, graph.indices, pairs)
    assert sorted(edges.tolist()) == between(graph, pairs).nonzero()[:, 0].tolist()
    assert torch.equal(destination(graph.block.edges)[edges], tails)


def test_no_pairs_change_nothing() -> None:
    block, sampler = block_of(GRAPHS["plain"], 3, self_loops=True)
    none = PairSet.from_pairs(torch.tensor([4]), torch.tensor([4]), NODES)
    found = ExcludedEdges(none).remove_from(block, sampler.sampling.views[0])
    assert listed(found) == listed(block)
    assert torch.equal(found.src_degree, block.src_degree)
