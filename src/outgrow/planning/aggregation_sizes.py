"""What aggregations hold and compute beside rows of nodes: attention of edges, and edges grouped by relation."""

from __future__ import annotations

import torch

from outgrow.core.block import Block
from outgrow.graph.graph import Graph
from outgrow.graph.topology import Topology
from outgrow.nn.gin import GINConv
from outgrow.nn.hetero import HeteroConv
from outgrow.nn.hgt import HGTConv
from outgrow.nn.layer import Conv, Layer, NodeMessages
from outgrow.nn.relation_convs import HeteroAggregation
from outgrow.ops.aggregation.edge_attention import DotProductAttention, DynamicAttention
from outgrow.ops.aggregation.pair_edges import count_relation_pairs
from outgrow.ops.aggregation.typed_attention import TypedAttention
from outgrow.ops.rows.gather import add_bincount


def count_heads(conv: Conv) -> int:
    """Return the attention weights of an edge that the aggregation computes by itself, from the rows of both ends."""
    aggregation = conv.aggregation
    if isinstance(aggregation, TypedAttention | DotProductAttention):
        return aggregation.heads
    if isinstance(aggregation, DynamicAttention):
        return len(aggregation.attention)
    return max(map(count_heads, _parts_of(conv)), default=0)


def count_attention(conv: Conv) -> int:
    """Return the attention weights of an edge that are computed from scores of both ends; one relation has an edge."""
    parts = _parts_of(conv)
    return max(map(count_attention, parts)) if parts else conv.spec.score


def groups_by_relation(conv: Conv) -> bool:
    """Whether the edges of each relation are a block of their own."""
    return isinstance(conv.aggregation, HeteroAggregation)


def count_inner_numbers(conv: Conv) -> int:
    """Return the numbers of a destination that an update holds beside its output."""
    # The update of HGT keeps what its activation gave.
    return conv.spec.aggregate[1] if isinstance(conv, HGTConv) else 0


def count_update_numbers(conv: Conv) -> int:
    """Return the numbers of a destination that an update passes through an activation or the like, but its output."""
    if not isinstance(conv, GINConv):
        return 0
    # The sum with the node itself has three results, of which an activation with its gradient has two.
    return conv.spec.out_features + 3 * conv.spec.aggregate[1] // 2


def count_scaled_weights(conv: Conv) -> int:
    """Return the numbers of a matrix that multiplies a sum with the input, scaled by a trained number."""
    return conv.spec.in_features * conv.spec.out_features if isinstance(conv, GINConv) else 0


def count_pairs(graph: Graph) -> int:
    """Return the number of pairs of relation and destination that have edges; 0 if edges have no relation."""
    topology = graph.topology
    if topology.relation is None:
        return 0
    return int(count_relation_pairs(topology.indptr, topology.relation, graph.num_relations).sum())


def count_edges_by_relation(graph: Graph) -> tuple[int, ...]:
    """Return the number of edges of each relation; empty if edges have none."""
    relation = graph.topology.relation
    if relation is None:
        return ()
    counts = torch.zeros(graph.num_relations, dtype=torch.int64)
    add_bincount(counts, relation)
    return tuple(counts.tolist())


def has_edge_weights(layer: Layer, graph: Graph) -> bool:
    """Return whether a layer with fixed weights has edge weights: tried on a graph of one node with a self-loop."""
    rows = NodeMessages(torch.empty(1, 1, layer.spec.source[1]), None)
    return layer.conv.edge_weight(_one_edge(graph), rows, NodeMessages(None, None)) is not None


def count_edge_scores(layer: Layer, graph: Graph) -> int:
    """Return ``K`` of `outgrow.nn.layer.Conv.edge_scores` of features, tried on the same graph; 0 for none."""
    if not layer.conv.edge_dim:
        return 0
    scores = layer.conv.edge_scores(_one_edge(graph))
    return 0 if scores is None else scores.shape[1]


def _one_edge(graph: Graph) -> Block:
    """Return a block of one node with a self-loop that has what edges of a graph have."""
    given, features = graph.topology, graph.edge_features
    return Topology(
        indptr=torch.tensor([0, 1]),
        indices=torch.zeros(1, dtype=torch.int32),
        relation=None if given.relation is None else torch.zeros(1, dtype=given.relation.dtype),
        weight=None if given.weight is None else given.weight.new_ones(1),
        edge_features=None if features is None else features.new_zeros(1, features.shape[1]),
        feature_sizes=given.feature_sizes,
    ).block


def _parts_of(conv: Conv) -> list[Conv]:
    return [conv.conv_of(each) for each in conv.edge_types] if isinstance(conv, HeteroConv) else []
