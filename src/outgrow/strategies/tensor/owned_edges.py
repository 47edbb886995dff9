"""In-edges of a worker's own nodes, where all workers hold all edges: what is computed of them is gathered by all."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Conv, Layer
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.rows.gather import concat_ranges
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.all_to_all import ColumnExchange


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
