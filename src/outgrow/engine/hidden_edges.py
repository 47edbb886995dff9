"""Edges that a step of link prediction hides from the layers: those between the pairs of nodes that it asks about.

Layers compute what they would on the graph without these edges: degrees and what follows from them are those of the
edges that are left. Self-loops stay, and edges keep their ids, by which random draws are keyed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.graph_types import RowWidths
from outgrow.core.ledger import Kind
from outgrow.engine.row_exchange import RowFetchPlan
from outgrow.engine.shard import GraphShard, LayerView
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features, Layer
from outgrow.ops.csc import destination, in_degree
from outgrow.ops.owned_rows import NodeFeatures
from outgrow.ops.pair_draws import PairRange, mark_edges_of_pairs, mark_linked_pairs
from outgrow.runtime.distributed.comm import ExchangeHandle

BYTES_PER_EDGE = 112
"""Most that an edge that is left takes in a step: its position, id, relation and weight, transposed and by pairs."""
_CHUNK_EDGES = 1 << 22
"""Edges whose degrees are summed at a time, which bounds the copy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenEdges:
    """The edges that a step hides.

    Attributes:
        pairs: The pairs of nodes between which edges are hidden, in both directions and of all relations.
        topology: In-edges of all nodes, to find out which pairs have a link that is predicted.
        relations: ``[n]`` int64, the relations that are predicted: edges between other pairs stay. None for all.
    """

    pairs: PairRange
    topology: Topology
    relations: Tensor | None = None

    def remove_from(self, block: Block) -> Block:
        """Return a block without the hidden edges; its degrees are still those of the whole graph."""
        edges = block.edges
        mark_E = mark_edges_of_pairs(edges.indptr, edges.indices, block.src_nodes, block.dst_nodes, self.pairs)
        if self.relations is not None:
            self._keep_other_pairs(block, mark_E)
        return remove_edges(block, mark_E)

    def _keep_other_pairs(self, block: Block, mark_E: Tensor) -> None:
        """Unmark, in place, the edges between pairs without a link that is predicted."""
        assert self.relations is not None
        graph = self.topology
        assert graph.relation is not None
        marked = mark_E.nonzero()[:, 0]
        heads = block.src_nodes[block.edges.indices[marked].long()].cpu()
        tails = block.dst_nodes[destination(block.edges)[marked]].cpu()
        chosen = torch.zeros(int(max(graph.relation.max(), self.relations.max())) + 1, dtype=torch.bool)
        chosen[self.relations] = True
        asked = mark_linked_pairs(graph.indptr, graph.indices, graph.relation, chosen, heads, tails)
        mark_E[marked] = asked.to(mark_E.device)

    def compute_degrees(self, graph: ChunkGraph, nodes: Tensor) -> Tensor:
        """Return ``[n]`` float64: degrees of ascending nodes in a view of the graph without the hidden edges."""
        place_V = torch.arange(graph.num_nodes, dtype=torch.int32)
        sizes = graph.row_sizes(nodes).cumsum(0)
        found = [torch.empty(0, dtype=torch.float64)]
        for first, last in _ranges_of(sizes):
            some = nodes[first:last]
            edges, _ = graph.extract_chunk(some, place_V, graph.num_nodes)
            unknown = torch.empty(0, dtype=torch.float64)
            block = Block(edges=edges, src_nodes=place_V, dst_nodes=some, src_degree=unknown, dst_degree=unknown)
            left = self.remove_from(block).edges
            found.append(in_degree(left.indptr, left.weight))
        return torch.cat(found)


def remove_edges(block: Block, mark_E: Tensor) -> Block:
    """Return a block without some edges, ``[E]`` bool; its degrees, and those of relations, are as before."""
    kept = (~mark_E).nonzero()[:, 0]
    # A sum of kept edges before each edge maps old row ends to new ones without a loop over rows.
    return select_edges(block, torch.searchsorted(kept, block.edges.indptr), kept)


def select_edges(block: Block, indptr: Tensor, kept: Tensor) -> Block:
    """Return a block of some edges, which keep their ids, with its nodes and degrees as before.

    Args:
        block: The block.
        indptr: ``[n + 1]`` int64, where the in-edges of each destination begin among those that are kept.
        kept: Positions of the edges in the block.
    """
    edges = block.edges
    of_edges = ("indices", "relation", "weight", "features")
    left = replace(edges, indptr=indptr, cache={}, **_select_rows(edges, of_edges, kept))
    # Random draws are functions of these ids.
    ids = kept + block.first_edge if block.edge_ids is None else block.edge_ids.index_select(0, kept)
    others = _select_rows(block, ("edge_scores", "sample_weight", "relation_degree"), kept)
    return replace(block, edges=left, first_edge=0, edge_ids=ids, **others)


def _select_rows(given: object, names: tuple[str, ...], kept: Tensor) -> dict[str, Any]:
    """Return some tensors of a record by name, with the rows ``kept`` alone; None as it is."""
    values = {name: getattr(given, name) for name in names}
    return {name: None if each is None else each.index_select(0, kept) for name, each in values.items()}


def _ranges_of(sizes: Tensor) -> list[tuple[int, int]]:
    """Return ranges of rows with at most ``_CHUNK_EDGES`` edges each, or one row; from running sums of their edges."""
    ranges = list[tuple[int, int]]()
    first = 0
    while first < len(sizes):
        before = int(sizes[first - 1]) if first else 0
        last = max(first + 1, int(torch.searchsorted(sizes, before + _CHUNK_EDGES, right=True)))
        ranges.append((first, last))
        first = last
    return ranges


class ShardOfStep(GraphShard):
    """A shard as a step sees it that hides edges. Rows are exchanged as on the whole shard. Final.

    Args:
        shard: The whole shard.
        hidden: The edges that are hidden.
    """

    def __init__(self, shard: GraphShard, hidden: HiddenEdges) -> None:
        self.shard = shard
        self.hidden = hidden
        self.topology = shard.topology
        self.comm = shard.comm
        self.owned_nodes = shard.owned_nodes
        # By whether there are self-loops, as all other needs of layers are equal.
        self._views: dict[bool, LayerView] = {}

    def layer_view(self, layer: Layer) -> LayerView:
        """Return the edges that are not hidden; all workers together at the first call for a layer of each kind."""
        self_loops = layer.spec.self_loops
        if self_loops not in self._views:
            self._views[self_loops] = self._make_view(self.shard.layer_view(layer))
        return self._views[self_loops]

    @torch.no_grad()
    def _make_view(self, whole: LayerView) -> LayerView:
        block = self.hidden.remove_from(whole.block)
        own = in_degree(block.edges.indptr, block.edges.weight)
        # Only the owner of a node has all its in-edges, so degrees of the halo come from there.
        known = self.shard.with_halo(own[:, None], Kind.TOPOLOGY)[:, 0]
        block = replace(block, src_degree=known, dst_degree=own)
        if whole.local_graph is None:
            return LayerView(block=block)
        return LayerView(block=block, local_graph=replace(whole.local_graph, block=block))

    def select_owned(self, values: NodeFeatures) -> Features:
        """Return the own rows."""
        return self.shard.select_owned(values)

    def filter_owned(self, nodes: Tensor) -> Tensor:
        """Return the own nodes among these."""
        return self.shard.filter_owned(nodes)

    def local_index(self, nodes: Tensor) -> Tensor:
        """Return the own rows of the own nodes among these."""
        return self.shard.local_index(nodes)

    def fetch_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> ExchangeHandle:
        """Start fetching the rows of the whole shard's halo."""
        return self.shard.fetch_halo(rows, kind, widths)

    def with_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> Tensor:
        """Return the own rows, then those of the whole shard's halo."""
        return self.shard.with_halo(rows, kind, widths)

    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """Plan fetching rows of these nodes."""
        return self.shard.plan_fetch(nodes)

    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """Gather the rows of all workers on rank 0."""
        return self.shard.gather_to_rank_zero(rows)


def shard_of_step(shard: GraphShard, hidden: HiddenEdges | None) -> GraphShard:
    """Return a shard as a step sees it."""
    return shard if hidden is None else ShardOfStep(shard, hidden)
