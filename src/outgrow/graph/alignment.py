"""Alignment of a graph with another: relations and feature columns are matched by name, never by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import GraphSchema
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.edge_columns import align_edge_columns
from outgrow.graph.graph import Graph
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.topology import Topology
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.csc import destination
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.ops.sparse import PartialRows, SparseRows


def describe_schema(graph: Graph) -> GraphSchema:
    """Return the names of a graph."""
    columns = tuple((kind.name, kind.num_columns) for kind in graph.node_types)
    return GraphSchema(
        relations=graph.relation_names,
        columns=columns if any(count for _, count in columns) else (),
        edge_columns=graph.topology.feature_columns,
    )


def align_graph(graph: Graph, schema: GraphSchema, *, reads_relations: bool, reads_types: bool = False) -> Graph:
    """Return a graph with the relations and feature columns of another, in its order; warn if that changes any.

    Those of edges too, and the codes of their categories.

    Nodes keep their ids. The result is in memory where something changes, else the graph itself.

    Args:
        graph: The graph.
        schema: Names of the other graph.
        reads_relations: Whether relations matter to what is computed.
        reads_types: Whether a model finds the columns of types by their names itself, so that these may stay.

    Raises:
        InputError: A name is missing or unknown, or a type has another number of columns.
    """
    own = describe_schema(graph)
    if own.edge_columns != schema.edge_columns:
        graph = replace(graph, topology=align_edge_columns(graph.topology, schema.edge_columns, graph.name))
    if reads_relations and not _is_numbered_prefix(own.relations, schema.relations):
        _require_same_names("relations", graph.name, own.relations, schema.relations)
        if own.relations != schema.relations:
            number = np.array([schema.relations.index(name) for name in own.relations])
            links = graph.held_out_links
            graph = replace(
                graph,
                topology=_renumber(graph.topology, number),
                relation_names=schema.relations,
                held_out_links=None if links is None else _renumber_links(links, number),
            )
            _warn_of_order("relations", graph.name)
    if reads_types:
        # Numbers of relations may differ, their names may not.
        _require_same_names("relations", graph.name, own.relations, schema.relations)
    if own.columns != schema.columns:
        _require_same_names("types of nodes", graph.name, _describe(own.columns), _describe(schema.columns))
        if reads_types:
            return graph
        graph = replace(graph, features=_permute_columns(graph, own, schema))
        _warn_of_order("feature columns", graph.name)
    return graph


def _is_numbered_prefix(own: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether relations have no names but numbers, of which the last ones may not occur."""
    return own == wanted[: len(own)] and wanted == tuple(map(str, range(len(wanted)))) and bool(own)


def _describe(columns: Sequence[tuple[str, int]]) -> list[str]:
    return [f"{name} ({count} columns)" for name, count in columns]


def _require_same_names(what: str, graph: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown or len(given) != len(wanted):
        found = [f"no {', '.join(missing)}"] if missing else []
        found += [f"{', '.join(unknown)}, which the model does not know"] if unknown else []
        raise InputError(
            f"the {what} of {graph!r} are not those that the model was trained on",
            needed=f"{', '.join(wanted) or 'none'}, in any order",
            got="; ".join(found) or f"{len(given)} of them",
            repair=f"give the {what} of the graph the names that they had, or train a model on this graph",
        )


def _warn_of_order(what: str, graph: str) -> None:
    warn_about_data(f"the {what} of {graph!r} are in another order than in training, and were matched by name")


def _renumber(topology: Topology, number: NDArray[np.int64]) -> Topology:
    """Give relation ``r`` the number ``number[r]``; edges of one row and source stay sorted by relation."""
    assert topology.relation is not None
    relation = torch.from_numpy(number)[topology.relation.long()].to(topology.relation.dtype)
    weight, features, time = topology.weight, topology.edge_features, topology.edge_time
    source = topology.indices.numpy()
    row = destination(topology.block.edges).numpy()
    # Only edges beside one of the same two nodes can change their places.
    same = np.concatenate([[False], (source[1:] == source[:-1]) & (row[1:] == row[:-1]), [False]])
    parallel = np.flatnonzero(same[1:] | same[:-1])
    if len(parallel):
        order = np.lexsort((relation.numpy()[parallel], source[parallel], row[parallel]))
        there = torch.from_numpy(parallel)
        moved = torch.from_numpy(parallel[order])
        relation[there] = relation[moved]
        if weight is not None:
            weight = weight.clone()
            weight[there] = weight[moved]
        if features is not None:
            features = features.clone()
            features[there] = features[moved]
        if time is not None:
            time = time.clone()
            time[there] = time[moved]
    return replace(topology, relation=relation, weight=weight, edge_features=features, edge_time=time)


def _renumber_links(links: HeldOutLinks, number: NDArray[np.int64]) -> HeldOutLinks:
    table = torch.from_numpy(number)
    val, test = (LinkTriples(part.head, part.tail, table[part.relation]) for part in links)
    return replace(links, val=val, test=test)


def _permute_columns(graph: Graph, own: GraphSchema, schema: GraphSchema) -> NodeFeatures:
    """Return the features of a graph, with the columns of its types in the order of a schema."""
    assert graph.features is not None
    first = dict(
        zip((name for name, _ in schema.columns), accumulate((n for _, n in schema.columns), initial=0), strict=False)
    )
    place = np.concatenate([first[name] + np.arange(count) for name, count in own.columns])
    features = graph.features
    if isinstance(features, OwnedRows):
        return replace(features, rows=_permute_rows(features.rows, place, own, schema))
    return _permute_rows(features, place, own, schema)


def _permute_rows(
    features: torch.Tensor | PartialRows, place: NDArray[np.int64], own: GraphSchema, schema: GraphSchema
) -> torch.Tensor | PartialRows:
    if isinstance(features, torch.Tensor):
        return torch.empty_like(features).index_copy_(1, torch.from_numpy(place), features)
    if isinstance(features, BlockRows):
        given, wanted = ([name for name, count in each.columns if count] for each in (own, schema))
        order = [given.index(name) for name in wanted]
        blocks = tuple(features.blocks[at] for at in order)
        return BlockRows(blocks=blocks, rows=tuple(features.rows[at] for at in order), num_rows=len(features))
    columns = place[features.indices.numpy()]
    # The constructor keeps the arrays that it is given, which may be mapped from a file: these are copies.
    rows = csr_array((features.values.numpy().copy(), columns, features.indptr.numpy()), shape=features.shape)
    rows.sort_indices()
    return SparseRows(
        indptr=features.indptr,
        indices=torch.from_numpy(rows.indices.astype(np.int32)),
        values=torch.from_numpy(rows.data),
        num_columns=features.num_columns,
    )
