"""A small problem on a graph of two node types and five edge types, and models with modules per type that learn it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from outgrow.graph.graph import Graph, NodeType
from outgrow.nn import (
    HGT,
    RGCN,
    SAGE,
    Conv,
    Epilogue,
    GATConv,
    GATv2Conv,
    GINEConv,
    HeteroConv,
    Layer,
    Model,
    TransformerConv,
    TypedRGCN,
    to_hetero,
)
from planted import NODES, WIDTH, planted
from suites.sessions import graph_of
from support import destinations_of, normal, with_edge_features

HIDDEN, CLASSES, COLUMNS = 8, 2, 3
KINDS = (("user", 0, 70), ("item", 70, NODES))
RELATIONS = ("user__follows__user", "user__buys__item", "item__bought_by__user", "item__like__item")


def typed_graph() -> Graph:
    """The planted problem with types: both have nodes of both communities. Two edge types connect users."""
    graph = graph_of(planted())
    topology = with_edge_features(graph.topology, COLUMNS)
    src, dst = topology.indices.long(), destinations_of(topology.block.edges)
    relation = 2 * (src >= KINDS[0][2]) + (dst >= KINDS[0][2])
    drawn = normal(topology.num_edges, seed=8) > 0
    relation = torch.where((relation == 0) & drawn, len(RELATIONS), relation)
    # Edges between the same nodes lie in the order of their relations, as those of a store do.
    order = torch.argsort((dst * NODES + src) * (len(RELATIONS) + 1) + relation, stable=True)
    topology = replace(topology, indices=topology.indices[order], relation=relation[order].to(torch.int8))
    return replace(
        graph,
        topology=topology,
        node_types=tuple(NodeType(name=name, first=first, last=last) for name, first, last in KINDS),
        relation_names=(*RELATIONS, "user__blocks__user"),
    )


def make_reading(graph: Graph) -> Model:
    """Another convolution for each edge type, all but one of which read the features of edges."""
    count = graph.num_edge_features
    makers: tuple[Callable[[int], Conv], ...] = (
        lambda out: GATv2Conv(HIDDEN, out, 2, edge_dim=count, attention_dropout=0.3, self_loops=False),
        lambda out: GINEConv(HIDDEN, out, count),
        lambda out: TransformerConv(HIDDEN, out, 2, edge_dim=count, attention_dropout=0.3),
        lambda out: GATConv(HIDDEN, out, 2, edge_dim=count, self_loops=False),
        lambda out: GATConv(HIDDEN, out, 2, attention_dropout=0.3, self_loops=False),
    )
    layers = [
        Layer(
            HeteroConv({each: make(out) for each, make in zip(graph.types.edge_types, makers, strict=True)}, how), then
        )
        for out, how, then in (
            (HIDDEN, "mean", Epilogue(norm=True, activation=torch.relu, dropout=0.3)),
            (CLASSES, "max", None),
        )
    ]
    return Model(layers, input_dropout=0.2)


MODELS: Mapping[str, Callable[[Graph], Model]] = {
    "hetero-sage": lambda graph: to_hetero(SAGE(WIDTH, HIDDEN, CLASSES, dropout=0.3, norm=True), graph),
    "hetero-reading": make_reading,
    "rgcn": lambda graph: RGCN(WIDTH, HIDDEN, CLASSES, num_relations=graph.num_relations, bases=None, dropout=0.3),
    "rgcn-typed": lambda graph: TypedRGCN(WIDTH, HIDDEN, CLASSES, types=graph.types, num_blocks=2, dropout=0.3),
    "hgt": lambda graph: HGT(WIDTH, HIDDEN, CLASSES, types=graph.types, heads=2, dropout=0.3),
}
"""Those with full matrices, with blocks and a weight for each type, and with convolutions of each edge type."""
WITHOUT_SLICES = ("hetero-reading", "hgt")
"""They mix the columns of a row, which strategy `tensor` therefore refuses."""
