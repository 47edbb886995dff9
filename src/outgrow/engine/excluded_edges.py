"""Edges that a batch of links excludes from its messages: those between the ends of its links, in either direction.

A sampled neighbourhood without these edges is one of the graph without them: what was drawn of a node and is left
stands for its other in-edges as before, and degrees are those of that graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.hidden_edges import remove_edges
from outgrow.graph.topology import GraphView, SelfLoopView, Topology
from outgrow.ops.pair_sets import PairSet, find_edges_of_pairs, mark_edges_of_pair_set, sum_rows_without_pairs
from outgrow.ops.rows.positions import find_positions


class ExcludedEdges:
    """The edges between the two ends of some links, in both directions and of all relations. Final.

    Args:
        pairs: The ends of the links.
    """

    def __init__(self, pairs: PairSet) -> None:
        self.pairs = pairs

    def remove_from_all(self, blocks: Sequence[Block], views: Sequence[GraphView]) -> list[Block]:
        """Return the sampled blocks of some layers without the edges: see `remove_from`."""
        return [self.remove_from(block, view) for block, view in zip(blocks, views, strict=True)]

    def remove_from(self, block: Block, view: GraphView) -> Block:
        """Return a sampled block without the edges, with the degrees of the graph without them.

        Args:
            block: The block, on the CPU.
            view: The graph as the layer of the block sees it.
        """
        edges = block.edges
        mark_E = mark_edges_of_pair_set(edges.indptr, edges.indices, block.src_nodes, block.dst_nodes, self.pairs)
        left = remove_edges(block, mark_E)
        src_degree = self._correct_degrees(block.src_nodes, block.src_degree, view)
        left = replace(left, src_degree=src_degree, dst_degree=src_degree[: edges.num_dst])
        if left.relation_degree is None:
            return left
        return replace(left, relation_degree=self._correct_relation_degrees(left, view))

    def _correct_degrees(self, nodes: Tensor, degree: Tensor, view: GraphView) -> Tensor:
        """Return ``[n]``: degrees of nodes, from those of the whole graph."""
        changed = (find_positions(self.pairs.ends, nodes) >= 0).nonzero()[:, 0]
        graph, self_loops = _graph_of(view)
        out = degree.clone()
        out[changed] = sum_rows_without_pairs(
            graph.indptr, graph.indices, graph.weight, nodes[changed], self.pairs, self_loops=self_loops
        )
        return out

    def _correct_relation_degrees(self, block: Block, view: GraphView) -> Tensor:
        """Return ``[E]``: the weight of all in-edges of a destination and relation, without the excluded ones."""
        graph, _ = _graph_of(view)
        assert graph.relation is not None
        assert block.edges.relation is not None
        assert block.relation_degree is not None
        destination, number = find_edges_of_pairs(graph.indptr, graph.indices, self.pairs)
        weight = torch.ones(len(number)) if graph.weight is None else graph.weight[number]
        relation = graph.relation[number].long()
        width = int(relation.max()) + 1 if len(relation) else 1
        code, place = torch.unique(destination * width + relation, return_inverse=True)
        removed = torch.zeros(len(code), dtype=torch.float64).index_add_(0, place, weight.double())
        rows = torch.repeat_interleave(block.edges.indptr.diff())
        asked = block.edges.relation.long()
        # Added self-loops have relation -1, and are never excluded.
        known = (asked >= 0) & (asked < width)
        at = find_positions(code, torch.where(known, block.dst_nodes[rows] * width + asked, -1))
        fewer = torch.where(at >= 0, removed[at.clamp(min=0)], 0.0) if len(code) else torch.zeros(len(at))
        return block.relation_degree - fewer


def _graph_of(view: GraphView) -> tuple[Topology, bool]:
    """Return the graph of a view, and whether the view has one self-loop per node."""
    return (view.graph, True) if isinstance(view, SelfLoopView) else (view, False)
