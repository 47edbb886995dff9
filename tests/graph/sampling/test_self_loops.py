"""Self-loops of a layer are added to what is drawn, and are drawn as if the graph held them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from outgrow.graph.sampling import edge_sampler
from outgrow.graph.sampling.edge_sampler import FASTGCN, NEIGHBOR, SAMPLERS, WITH_REPLACEMENT
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import GraphView, Topology
from outgrow.ops.sampling.self_loops import ADDED, GivenLoops
from support import topology_of, with_edge_features

SEEDS = torch.tensor([3, 0, 12, 11])


def some_graph() -> Topology:
    """Weighted, with parallel edges and self-loops, several of one node."""
    generator = torch.Generator().manual_seed(1)
    edges = [(int(u), int(v)) for u, v in torch.randint(0, 12, (60, 2), generator=generator)]
    graph = topology_of(13, [*edges, (3, 3), (3, 3), (11, 11)])
    weighted = replace(graph, weight=torch.rand(graph.num_edges, generator=generator) + 0.5)
    return with_edge_features(weighted)


def drawn(view: GraphView, sampler: str, *, weighted: bool) -> list[dict[str, Any]]:
    """What the blocks of a batch hold."""
    blocks = NeighborSampler([view, view], [3, -1], 7, weighted=weighted, sampler=sampler).sample_blocks(SEEDS, 1, 2)
    return [
        {name: None if value is None else value.tolist() for name, value in values.items()}
        for values in (
            {
                "src_nodes": block.src_nodes,
                "edge_ids": block.edge_ids,
                "sample_weight": block.sample_weight,
                "indices": block.edges.indices,
                "weight": block.edges.weight,
                "features": block.edges.features,
            }
            for block in blocks
        )
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_self_loops_take_no_copy_of_the_graph(sampler: str, weighted: bool) -> None:
    """Where draws do not depend on the edges. The blocks are those of a graph that holds the loops."""
    if weighted and sampler == FASTGCN:
        return
    graph = some_graph()
    view = graph.sampling_view(self_loops=True)
    found = drawn(view, sampler, weighted=weighted)
    by_number = sampler in (NEIGHBOR, WITH_REPLACEMENT) and not weighted
    assert ("with_self_loops" in vars(graph.without_edge_features)) == (not by_number)
    # Of features, which are wide, no view is ever made.
    assert "with_self_loops" not in vars(graph)
    held = graph.with_self_loops
    assert view.num_edges == held.num_edges
    assert view.degree.tolist() == pytest.approx(held.degree.tolist(), rel=1e-12)
    assert found == drawn(held, sampler, weighted=weighted)


@contextmanager
def given_loops_are_not_skipped() -> Iterator[None]:
    """Edges of a row are looked up as if the graph had no self-loops of its own."""
    right = edge_sampler.resolve_looped_edges
    none = GivenLoops(np.empty(0, np.int64), np.empty(0, np.int64))

    def resolved(rows: Any, indptr: Any, chosen: Any, graph: Any, loops: Any, edges: Any, sources: Any) -> None:
        right(rows, indptr, chosen, graph, none, edges, sources)

    with patch.object(edge_sampler, "resolve_looped_edges", resolved):
        yield


@contextmanager
def loops_lose_their_weight() -> Iterator[None]:
    """A self-loop that the graph has weighs as much as an added one."""
    right = edge_sampler.resolve_looped_edges

    def resolved(rows: Any, indptr: Any, chosen: Any, graph: Any, loops: Any, edges: Any, sources: Any) -> None:
        right(rows, indptr, chosen, graph, loops, edges, sources)
        edges[np.isin(edges, loops.edges)] = ADDED

    with patch.object(edge_sampler, "resolve_looped_edges", resolved):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each for each in (given_loops_are_not_skipped, loops_lose_their_weight)
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    graph = some_graph()
    with MUTANTS[name]():
        found = drawn(graph.sampling_view(self_loops=True), NEIGHBOR, weighted=False)
    assert found != drawn(graph.with_self_loops, NEIGHBOR, weighted=False)
