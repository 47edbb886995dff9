"""`add_inverse_relations`: a graph with the inverse of every edge, of a relation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import validate_types
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.graph import Graph
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.stored_edges import read_stored_edges


@check_arguments(unchecked=("graph",))
def add_inverse_relations(graph: Graph) -> Graph:
    """Return a graph that has for each edge of relation ``r`` from ``u`` to ``v`` one of ``r^-1`` from ``v`` to ``u``.

    As knowledge graphs are trained on since Dettmers et al. (AAAI 2018). Relations of inverses follow all others, in
    their order. An inverse has the weight, the features and the time of its edge. Nodes, labels and links to validate
    and to test on are unchanged: these are ranked in their own direction.

    Edges are made in memory. For a graph whose edges do not fit twice, ``outgrow convert --inverse-relations`` makes
    them in bounded memory.

    Args:
        graph: Graph whose edges have relations.

    Raises:
        InputError: The edges have no relations, or the graph has inverse relations already.
    """
    validate_types({"graph": graph}, {"graph": Graph})
    made = assemble_graph(_EdgesOfGraph(graph))
    before, topology = graph.topology, made.topology
    features = topology.edge_features
    if features is not None and before.edge_features is not None:
        # NumPy has no bfloat16: such features have passed through float32.
        features = features.to(before.edge_features.dtype)
    topology = replace(
        topology, edge_features=features, feature_columns=before.feature_columns, node_time=before.node_time
    )
    return replace(graph, topology=topology, relation_names=made.relation_names)


@final
class _EdgesOfGraph(GraphSource):
    """The edges of a graph, whose inverses are added."""

    adds_inverse_relations = True

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def name(self) -> str:
        return self._graph.name

    def read_tables(self) -> NodeTableSource:
        graph = self._graph
        return NodeTableSource(
            num_nodes=graph.num_nodes,
            relation_names=graph.relation_names,
            edge_feature_sizes=graph.topology.feature_sizes,
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        return read_stored_edges(self._graph.topology)

    def has_dates(self) -> bool:
        return self._graph.topology.times_are_dates
