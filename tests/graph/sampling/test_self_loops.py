"""Self-loops of a layer are added to what is drawn, and are drawn as if the graph held them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outgrow.graph.sampling.edge_sampler import FASTGCN, NEIGHBOR, SAMPLERS, WITH_REPLACEMENT
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from support import topology_of


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_self_loops_take_no_copy_of_the_graph(sampler: str, weighted: bool) -> None:
    """Where draws do not depend on the edges. The blocks are those of a graph that holds the loops."""
    if weighted and sampler == FASTGCN:
        return
    generator = torch.Generator().manual_seed(1)
    edges = [(int(u), int(v)) for u, v in torch.randint(0, 12, (60, 2), generator=generator)]
    edges += [(3, 3), (3, 3), (11, 11)]
    graph = topology_of(13, edges)
    graph = replace(graph, weight=torch.rand(graph.num_edges, generator=generator) + 0.5)
    view = graph.sampling_view(self_loops=True)
    blocks = NeighborSampler([view, view], [3, -1], 7, weighted=weighted, sampler=sampler).sample_blocks(
        torch.tensor([3, 0, 12, 11]), 1, 2
    )
    by_number = sampler in (NEIGHBOR, WITH_REPLACEMENT) and not weighted
    assert ("with_self_loops" in vars(graph)) == (not by_number)
    held = graph.with_self_loops
    assert view.num_edges == held.num_edges
    assert view.degree.tolist() == pytest.approx(held.degree.tolist(), rel=1e-12)
    expected = NeighborSampler([held, held], [3, -1], 7, weighted=weighted, sampler=sampler).sample_blocks(
        torch.tensor([3, 0, 12, 11]), 1, 2
    )
    for mine, theirs in zip(blocks, expected, strict=True):
        assert torch.equal(mine.src_nodes, theirs.src_nodes)
        assert mine.edge_ids is not None
        assert theirs.edge_ids is not None
        assert torch.equal(mine.edge_ids, theirs.edge_ids)
        assert (mine.sample_weight is None) == (theirs.sample_weight is None)
        if mine.sample_weight is not None and theirs.sample_weight is not None:
            assert torch.equal(mine.sample_weight, theirs.sample_weight)
        assert torch.equal(mine.edges.indices, theirs.edges.indices)
        assert mine.edges.weight is not None
        assert theirs.edges.weight is not None
        assert torch.equal(mine.edges.weight, theirs.edges.weight)
