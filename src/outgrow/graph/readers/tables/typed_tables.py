"""Graphs of several types from tables: one for each node type, and one for each edge type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.core.validation import validate_choice
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.readers.node_parts import NodePart, count_borders, join_node_parts, part_error
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.tables.column_names import SKIPPED
from outgrow.graph.readers.tables.column_types import list_names
from outgrow.graph.readers.tables.edge_roles import find_edge_roles
from outgrow.graph.readers.tables.edge_table import UNKNOWN_NODES, EdgeTableSource
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.time_columns import Clock
from outgrow.graph.readers.tables.typed_ids import TypedIds, join_ids
from outgrow.graph.readers.tables.typed_nodes import NodeTypeTable, TypedNodeTable, find_id_column, read_typed_nodes
from outgrow.graph.readers.times import NO_TIME
from outgrow.graph.readers.typed_parts import (
    Relation,
    are_weighted,
    check_types_without_features,
    fill_edge_features,
    name_relation,
)


@dataclass(frozen=True, kw_only=True)
class EdgeTypeTable:
    """The table of one edge type.

    Attributes:
        relation: Type of the sources, name, type of the destinations.
        table: The table.
        columns: Column of each role that is not found by its name, as in `TableOptions`.
        features: Columns of features of edges, as in `TableOptions`.
        time_column: Column of times, if the table has it.
    """

    relation: Relation
    table: Table
    columns: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    time_column: str = ""


@final
class TypedTableSource(GraphSource):
    """Source of the tables of node types and edge types.

    Node types follow one another as given; each edge type is a relation, ``author__writes__paper``. An edge names
    nodes by the ids of their types' tables or, of tables without ids, by the numbers of their rows.

    Args:
        name: Name of the graph.
        nodes: Table of each node type, in order.
        edges: Table of each edge type, in order.
        unknown_nodes: What becomes of an edge to a node that its type's table does not name: ``"refuse"``, ``"drop"``,
            or ``"add"``, with features of 0; a type may then have no table.
        split_index: Which of several splits is chosen.

    Raises:
        InputError: Two tables of a type, an edge type whose node type has no table, or columns that are unclear.
    """

    def __init__(
        self,
        name: str,
        nodes: Sequence[NodeTypeTable],
        edges: Sequence[EdgeTypeTable],
        *,
        unknown_nodes: str = "refuse",
        split_index: int = 0,
    ) -> None:
        self._name = name
        self._nodes = list(nodes)
        self._edges = list(edges)
        self._unknown_nodes = unknown_nodes
        validate_choice("unknown_nodes", unknown_nodes, dict.fromkeys(UNKNOWN_NODES))
        self._split_index = split_index
        self._scratch: Path | None = None
        self._memory_bytes: int | None = None
        self._refuse_twice([each.name for each in nodes], "node type")
        self._refuse_twice([name_relation(each.relation) for each in edges], "edge type")
        self._names = self._list_types()
        self._edge_options = [_choose_options(each, unknown_nodes) for each in edges]
        self._categories: dict[str, IdEncoder] = {}
        self._clock = Clock()

    @property
    def name(self) -> str:
        """Name as given."""
        return self._name

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Say where temporary files may lie, and how many bytes of memory ids may take."""
        self._scratch, self._memory_bytes = folder, memory_bytes

    def read_tables(self) -> NodeTableSource:
        """Return the tables of all nodes, as `outgrow.graph.readers.node_parts.join_node_parts` joins them.

        Raises:
            InputError: A table that is broken or that `outgrow.graph.readers.tables.node_table` refuses, or labels
                of several types that are not of one kind.
        """
        relations = tuple(name_relation(each.relation) for each in self._edges)
        return replace(join_node_parts(self._parts, self._split_index), relation_names=relations)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, type after type.

        A weight is 1 where only other types have weights, and features are zeros, each with a warning.

        Raises:
            InputError: At the end, if nodes are unknown; or a broken table.
        """
        first = dict(zip(self._names, count_borders(self._parts), strict=False))
        weighted = self._are_weighted()
        form = self._join_features()
        timed = any(source.times is not None for source in self._sources)
        for number, (edges, source) in enumerate(zip(self._edges, self._sources, strict=True)):
            for chunk in source.read_edges():
                count = len(chunk.src)
                yield EdgeChunk(
                    chunk.src + first[edges.relation[0]],
                    chunk.dst + first[edges.relation[2]],
                    np.full(count, number, np.int32),
                    np.ones(count, np.float32) if weighted and chunk.weight is None else chunk.weight,
                    fill_edge_features(chunk.features, form, count),
                    np.full(count, NO_TIME) if timed and chunk.time is None else chunk.time,
                )

    def read_edge_feature_sizes(self) -> tuple[int, ...]:
        """Return the number of categories of each column of features; tables share the categories of a column."""
        found = [sizes for source in self._sources if (sizes := source.read_edge_feature_sizes())]
        return tuple(map(max, zip(*found, strict=True)))

    def has_dates(self) -> bool:
        """Return whether columns of times have dates."""
        return self._clock.has_dates

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns of features, and of the categories of all tables."""
        found = [columns for source in self._sources if (columns := source.read_edge_columns())]
        # Tables share the categories of texts; of those that are numbered one table may have fewer.
        return tuple(max(same, key=lambda column: len(column.categories)) for same in zip(*found, strict=True))

    def read_ids(self) -> NodeIds | None:
        """Return the id of each node, unique within its type; None if no table has ids."""
        ids = [self._ids[name] for name in self._names]
        return join_ids(ids, scratch=self._scratch, memory_bytes=self._memory_bytes)

    def read_held_out_links(self) -> None:
        """Return None: links are held out of the edges."""

    def list_unread(self) -> tuple[str, ...]:
        """Return the columns that are not read, after the names of their types."""
        names = [f"{kind.name}.{name}" for kind in self._tables.values() for name in kind.unread]
        for edges, source in zip(self._edges, self._sources, strict=True):
            names += [f"{name_relation(edges.relation)}.{name}" for name in source.list_unread()]
        return tuple(names)

    def describe_origin(self) -> GraphOrigin:
        """Return which column each part of the nodes and edges comes from."""
        read = [(f"{what} of {kind.name}", where) for kind in self._tables.values() for what, where in kind.read]
        for edges, source in zip(self._edges, self._sources, strict=True):
            of = name_relation(edges.relation)
            read += [(f"{role} of {of}", where) for role, where in source.describe_origin().read]
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    @cached_property
    def _tables(self) -> dict[str, TypedNodeTable]:
        return {
            each.name: read_typed_nodes(each, scratch=self._scratch, memory_bytes=self._memory_bytes, clock=self._clock)
            for each in self._nodes
        }

    @cached_property
    def _ids(self) -> dict[str, TypedIds]:
        """The ids of each type."""
        return {
            name: self._tables[name].ids
            if name in self._tables
            else TypedIds.make_empty(self._scratch, self._memory_bytes)
            for name in self._names
        }

    @cached_property
    def _sources(self) -> list[EdgeTableSource]:
        """The edges of each type; if nodes are added, all are read, so that their number is known."""
        made = []
        for edges, options in zip(self._edges, self._edge_options, strict=True):
            src, _, dst = edges.relation
            source = EdgeTableSource(
                edges.table,
                options,
                src_ids=self._ids[src].encoder,
                dst_ids=self._ids[dst].encoder,
                categories=self._categories,
                clock=self._clock,
            )
            if self._scratch is not None and self._memory_bytes is not None:
                source.set_scratch(self._scratch, self._memory_bytes)
            made.append(source)
        for source in made if self._unknown_nodes == "add" else ():
            for _ in source.read_edges():
                pass
        return made

    @cached_property
    def _parts(self) -> list[NodePart]:
        assert len(self._sources) == len(self._edges)
        parts = []
        for name in self._names:
            given = self._tables.get(name)
            count = len(self._ids[name])
            parts.append(NodePart(name=name, count=count) if given is None else given.make_part(count))
        return parts

    def _list_types(self) -> list[str]:
        """Return the node types: those of tables, then those that only edges name."""
        names = [each.name for each in self._nodes]
        for edges in self._edges:
            for end in (edges.relation[0], edges.relation[2]):
                if end in names:
                    continue
                if self._unknown_nodes != "add":
                    raise InputError(
                        f"edges {' '.join(edges.relation)} lead to a type of nodes without a table",
                        needed=f"a table of each type of nodes, such as nodes/{end}.csv with a column id",
                        got=f"none of {end}; tables of {', '.join(names) or 'no type'}",
                        repair=f"write one, or read the nodes of {end} from the edges: --unknown-nodes add",
                    )
                names.append(end)
        return names

    def _are_weighted(self) -> bool:
        given = zip(self._edges, self._edge_options, strict=True)
        without = [
            name_relation(edges.relation)
            for edges, options in given
            if edges.table.names and find_edge_roles(edges.table, options).weight is None
        ]
        return are_weighted(without, len(self._edges))

    def _join_features(self) -> NDArray[np.float32] | None:
        """Return no rows of the width of the features of edges; None if these have none.

        Raises:
            InputError: Types with other columns than others; or none, where columns are categories.
        """
        named = {
            name_relation(edges.relation): source for edges, source in zip(self._edges, self._sources, strict=True)
        }
        found = {name: source.features for name, source in named.items() if source.features is not None}
        if not found:
            return None
        if len({features.names for features in found.values()}) > 1:
            got = "; ".join(f"{name} {list_names(features.names)}" for name, features in found.items())
            raise part_error("features of edges of several types", "the same columns in all tables that have some", got)
        any_one = next(iter(found.values()))
        without = [name for name, source in named.items() if source.features is None and not source.is_empty]
        check_types_without_features(without, coded=any_one.has_categories)
        return np.empty((0, len(any_one.sizes)), np.float32)

    def _refuse_twice(self, names: Sequence[str], what: str) -> None:
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"two tables of {what} {twice[0]}",
                needed=f"one table of each {what}; files of one table have the same columns",
                got=f"{names.count(twice[0])} tables",
                repair="join their columns into one table",
            )


def _choose_options(edges: EdgeTypeTable, unknown_nodes: str) -> TableOptions:
    """Return the options of an edge table: columns called as a type, or ``TYPE_id``, name its nodes."""
    # The type is that of the table, so that a column of types says nothing new or something else.
    columns = {"relation": SKIPPED, **edges.columns}
    src, _, dst = edges.relation
    for role, kind in (("src", src), ("dst", dst)) if src != dst else ():
        found = find_id_column(edges.table, kind)
        if found is not None and role not in columns:
            columns[role] = found
    return TableOptions(
        columns=columns,
        edge_features=edges.features,
        time_column=edges.time_column,
        unknown_nodes=unknown_nodes,
    )
