"""Mutants of the features of edges: taken from another edge than the one that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.graph.sampling import layer_sampling
from outgrow.graph.topology import Topology
from outgrow.ops import subgraph
from outgrow.strategies.tensor import owned_edges
from suites.hits import Hits


@contextmanager
def features_by_place_in_the_part() -> Iterator[Hits]:
    """Edges of a worker, or of a chunk, have the features of the first edges of the graph."""
    hits, right = Hits(), subgraph._copy_features

    def copied(plan: Any, edges: Edges, features: Tensor) -> Tensor:
        found = right(plan, edges, features)
        wrong = features[torch.arange(len(found)) % max(1, len(features))]
        hits.note(not torch.equal(wrong, found))
        return wrong

    with patch.object(subgraph, "_copy_features", copied):
        yield hits


@contextmanager
def features_by_place_in_the_sample() -> Iterator[Hits]:
    """Sampled edges have the features of the first edges of the graph."""
    hits, right = Hits(), layer_sampling.gather_sampled_features

    def gathered(features: Tensor, edges: Tensor, out: Tensor) -> Tensor:
        wrong = torch.arange(len(edges)) % max(1, len(features))
        hits.note(not torch.equal(wrong, edges))
        return right(features, wrong, out)

    with patch.object(layer_sampling, "gather_sampled_features", gathered):
        yield hits


@contextmanager
def loops_with_features_of_the_next_edge() -> Iterator[Hits]:
    """A self-loop that the graph has gets the features of the edge behind it."""
    hits, right = Hits(), subgraph.self_loop_edges

    def found(indptr: Any, indices: Any, nodes: Any) -> Any:
        edges = right(indptr, indices, nodes)
        there = edges >= 0
        edges[there] = (edges[there] + 1) % len(indices)
        hits.note(bool(there.any()))
        return edges

    with patch.object(subgraph, "self_loop_edges", found):
        yield hits


@contextmanager
def scores_of_other_edges() -> Iterator[Hits]:
    """A worker computes the scores of its own in-edges from the features of the first edges of the graph."""
    hits, right = Hits(), owned_edges.own_edge_features

    def own(topology: Topology, nodes: Tensor, *, self_loops: bool) -> Tensor:
        found = right(topology, nodes, self_loops=self_loops)
        assert topology.edge_features is not None
        wrong = topology.edge_features[torch.arange(len(found)) % topology.num_edges]
        hits.note(not torch.equal(wrong, found))
        return wrong

    with patch.object(owned_edges, "own_edge_features", own):
        yield hits
