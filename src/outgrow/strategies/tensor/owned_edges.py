"""In-edges of a worker's own nodes, where all workers hold all edges: what is computed of them is gathered by all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.ledger import Kind
from outgrow.engine.shard import GraphShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Conv, Layer
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.rows.gather import concat_ranges
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.all_to_all import ColumnExchange


class OwnedEdges:
    """The in-edges of a worker's nodes, with or without self-loops, made when they are first asked for. Final.

    Args:
        shard: Gives the nodes that the worker owns.
        whole_block: Returns all edges as a layer needs them.
    """

    def __init__(self, shard: GraphShard, whole_block: Callable[[Layer], Block]) -> None:
        self.shard = shard
        self._whole_block = whole_block
        self._found: dict[bool, tuple[Block, ColumnExchange]] = {}

    def block_for(self, layer: Layer) -> tuple[Block, ColumnExchange]:
        """Return the edges with their features, and the exchange that gathers values of all edges."""
        looped = layer.spec.self_loops
        if looped not in self._found:
            own, topology, comm = self.shard.owned_nodes, self.shard.topology, self.shard.comm
            block, exchange = owned_in_edges(self._whole_block(layer), own.to(comm.device), comm)
            if topology.edge_features is not None:
                features = own_edge_features(topology, own, self_loops=looped).to(comm.device)
                edges = replace(block.edges, features=features, feature_sizes=topology.feature_sizes, cache={})
                block = replace(block, edges=edges)
            self._found[looped] = block, exchange
        return self._found[looped]

    def gather_scores(self, layer: Layer) -> Tensor | None:
        """Compute the scores of the features of own in-edges and gather those of all edges, ``[E, K]``.

        None for layers that take no scores from features: these stay where they are, only scores cross.
        """
        if not takes_scores_of_features(layer):
            return None
        block, exchange = self.block_for(layer)
        scores = layer.conv.edge_scores(block)
        return None if scores is None else exchange.all_gather_rows(scores, Kind.ACTIVATIONS)


def owned_in_edges(whole: Block, own: Tensor, comm: Comm) -> tuple[Block, ColumnExchange]:
    """Return the in-edges of a worker's nodes, and the exchange that gathers values of all edges.

    All workers call it together. All nodes are sources of the block.

    Args:
        whole: All edges.
        own: ``[n]`` int64, the worker's nodes.
        comm: Communicator of the workers.
    """
    edges = whole.edges
    counts = edges.indptr.diff()[own]
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    # The exchange treats edges as nodes: each worker owns these numbers, and a gather puts them in order.
    number = concat_ranges(edges.indptr[own], counts)
    relation, weight = (None if each is None else each[number] for each in (edges.relation, edges.weight))
    # Without features: those of the view may not be held.
    part = Edges(indptr=ends, indices=edges.indices[number], num_src=edges.num_src, relation=relation, weight=weight)
    block = replace(whole, edges=part, dst_nodes=own, dst_degree=whole.dst_degree[own], edge_ids=number)
    return block, ColumnExchange(comm, number.cpu())


def own_edge_features(topology: Topology, own: Tensor, *, self_loops: bool) -> Tensor:
    """Return the features of the in-edges of a worker's nodes, without a copy of those of all edges."""
    graph = ChunkGraph(topology, self_loops=self_loops)
    edges, _ = graph.extract_chunk(own, topology.nodes.int(), topology.num_nodes)
    assert edges.features is not None
    return edges.features


def reads_features_of_all_edges(layer: Layer) -> bool:
    """Whether a layer reads features of edges in another way than for scores, which their owners compute."""
    sums_scored = isinstance(layer.conv.aggregation, WeightedSum) and takes_scores_of_features(layer)
    return layer.conv.edge_dim > 0 and not sums_scored


def takes_scores_of_features(layer: Layer) -> bool:
    """Whether features of edges add to scores."""
    return layer.conv.edge_dim > 0 and type(layer.conv).edge_scores is not Conv.edge_scores
