"""Weights of edges in a block that does not hold all in-edges: from the edge and the graph's degrees alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.graph.topology import Topology
from outgrow.ops.aggregation.relational import relation_mean_weight
from outgrow.ops.edge_weight import graph_edge_weight, mean_weight, symmetric_weight
from support import destinations_of, random_topology, with_relations

RELATIONS = 3


def every_other(topology: Topology) -> Block:
    """Every other in-edge of each node, each standing for as many as there are to one that is kept."""
    whole = topology.block
    dst = destinations_of(whole.edges)
    place = torch.arange(whole.edges.num_edges) - whole.edges.indptr[dst]
    kept = (place % 2 == 0).nonzero()[:, 0]
    count = dst[kept].bincount(minlength=topology.num_nodes)
    indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    edges = whole.edges
    weight = torch.ones(edges.num_edges) if edges.weight is None else edges.weight
    relation_degree = None
    if edges.relation is not None:
        pair = dst * RELATIONS + edges.relation
        total = torch.zeros(topology.num_nodes * RELATIONS).index_add_(0, pair, weight)
        relation_degree = total[pair][kept]
    return replace(
        whole,
        edges=Edges(
            indptr=indptr,
            indices=edges.indices[kept],
            num_src=edges.num_src,
            relation=None if edges.relation is None else edges.relation[kept],
            weight=None if edges.weight is None else edges.weight[kept],
        ),
        edge_ids=kept,
        sample_weight=(edges.indptr.diff() / count)[dst[kept]].float(),
        relation_degree=relation_degree,
    )


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("function", [mean_weight, symmetric_weight, graph_edge_weight, relation_mean_weight])
def test_an_edge_weighs_as_much_as_in_the_graph_times_those_that_it_stands_for(
    function: object, weighted: bool
) -> None:
    topology = with_relations(random_topology(40, 400, weighted=weighted), RELATIONS)
    block = every_other(topology)

    def of(which: Block) -> Tensor:
        given = (which, RELATIONS, torch.float64) if function is relation_mean_weight else (which, torch.float64)
        weight = function(*given)  # type: ignore[operator]
        return torch.ones(which.edges.num_edges, 1, dtype=torch.float64) if weight is None else weight

    assert block.edge_ids is not None
    assert block.sample_weight is not None
    expected = of(topology.block)[block.edge_ids] * block.sample_weight[:, None]
    torch.testing.assert_close(of(block), expected, rtol=1e-6, atol=0)
    assert topology.weight is None or torch.equal(topology.block.edges.weight, topology.weight)


def test_the_mean_of_a_sample_is_its_plain_mean() -> None:
    block = every_other(random_topology(40, 400))
    weight = mean_weight(block, torch.float64)[:, 0]
    counts = block.edges.indptr.diff()
    torch.testing.assert_close(weight, (1 / counts.double())[destinations_of(block.edges)], rtol=1e-6, atol=0)


def test_destinations_keep_what_they_stand_for() -> None:
    block = every_other(with_relations(random_topology(40, 400), RELATIONS))
    low, high = int(block.edges.indptr[10]), int(block.edges.indptr[25])
    part = block.slice_destinations(10, 25)
    for name in ("sample_weight", "relation_degree"):
        assert torch.equal(getattr(part, name), getattr(block, name)[low:high])
