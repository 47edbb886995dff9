"""What a graph gets beside the edges that are read: missing reverses, inverse relations, or nothing."""

from __future__ import annotations

from typing import final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_order import (
    REVERSED,
    DirectedPolicy,
    EdgeColumns,
    EdgePolicy,
    UndirectedPolicy,
    pack_key,
    repeat_column,
)
from outgrow.graph.inverse_relations import name_inverses
from outgrow.graph.readers.source import EdgeChunk


@final
class InverseRelationPolicy(EdgePolicy):
    """Policy that keeps edges as they are read, and adds the inverse of each, of a relation of its own.

    As knowledge graphs are trained on since Dettmers et al. (AAAI 2018) and Lacroix et al. (ICML 2018). An inverse has
    the weight, the features and the time of its edge.
    """

    keeps_parallel_edges = True
    bytes_per_bare_edge = 20
    bytes_per_full_edge = 44

    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """Return the edges, followed by their inverses.

        Raises:
            InputError: The edges have no relations.
        """
        if chunk.relation is None:
            raise InputError(
                "the edges have no relations to be inverted",
                needed="edges of relations, for inverse_relations",
                got="edges without",
                repair="name the column of relations; or choose undirected, which adds missing reverse edges",
            )
        relation = chunk.relation.astype(np.int32)
        return EdgeColumns(
            np.concatenate([pack_key(chunk.dst, chunk.src), pack_key(chunk.src, chunk.dst)]),
            np.concatenate([relation, relation + np.int32(REVERSED)]),
            repeat_column(chunk.weight),
            repeat_column(chunk.features),
            repeat_column(chunk.time),
        )

    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """Return all edges unchanged."""
        return edges

    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names, followed by one for the inverse of each.

        Raises:
            InputError: The graph has such a relation already.
        """
        inverses = name_inverses(names)
        again = sorted({*names} & {*inverses})
        if again:
            raise InputError(
                "the graph has inverse relations already",
                needed="relations without those that inverse_relations adds",
                got=f"{len(again)} relations that an added one would be named as, such as {again[0]!r}",
                repair="leave inverse_relations out",
            )
        return (*names, *inverses)


def edge_policy_for(undirected: bool, *, inverse_relations: bool = False) -> EdgePolicy:
    """Return the policy for the user's flags.

    Raises:
        InputError: Both are given.
    """
    if undirected and inverse_relations:
        raise InputError(
            "reverse edges are asked for twice",
            needed="undirected, or inverse_relations",
            got="both",
            repair="choose inverse_relations for the inverse of every edge, undirected for those that are missing",
        )
    if inverse_relations:
        return InverseRelationPolicy()
    return UndirectedPolicy() if undirected else DirectedPolicy()
