"""Graphs of several types from tables: one for each node type, and one for each edge type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.core.validation import validate_choice
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.node_ids import ArrowArray, NodeIds
from outgrow.graph.readers.node_parts import NodePart, count_borders, join_node_parts
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.tables.edge_table import EdgeBatch, EdgeRoles, find_edge_roles, read_edge_batches
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.typed_ids import TypedIds, UnknownIds, join_ids
from outgrow.graph.readers.tables.typed_nodes import NodeTypeTable, TypedNodeTable, read_typed_nodes
from outgrow.graph.readers.typed_parts import Relation, name_relation

_UNKNOWN = ("refuse", "add", "drop")


@dataclass(frozen=True, kw_only=True)
class EdgeTypeTable:
    """The table of one edge type.

    Attributes:
        relation: Type of the sources, name, type of the destinations.
        table: The table.
        columns: Column of each role that is not found by its name, as in `TableOptions`.
    """

    relation: Relation
    table: Table
    columns: Mapping[str, str] = field(default_factory=dict)


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
        self._unknown_nodes = validate_choice("choice of unknown_nodes", unknown_nodes, {n: n for n in _UNKNOWN})
        self._split_index = split_index
        self._scratch: Path | None = None
        self._memory_bytes: int | None = None
        self._refuse_twice([each.name for each in nodes], "node type")
        self._refuse_twice([name_relation(each.relation) for each in edges], "edge type")
        self._names = self._list_types()
        self._roles = [_find_roles(each) for each in edges]

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
        """Yield all edges, type after type; a weight is 1 where only other types have weights, with a warning.

        Raises:
            InputError: At the end, if nodes are unknown; or a broken table.
        """
        first = dict(zip(self._names, count_borders(self._parts), strict=False))
        weighted = self._check_weights()
        for number, (edges, roles) in enumerate(zip(self._edges, self._roles, strict=True)):
            unknown = UnknownIds(edges.relation, edges.table)
            for batch in self._read_batches(edges, roles):
                src, dst = (self._ids[kind].find(ids) for kind, ids in _ends(edges, batch))
                known = (src >= 0) & (dst >= 0)
                if not known.all():
                    unknown.add(batch, src, dst)
                weight = np.ones(len(src), np.float32) if weighted and batch.weight is None else batch.weight
                yield EdgeChunk(
                    src[known] + first[edges.relation[0]],
                    dst[known] + first[edges.relation[2]],
                    np.full(int(known.sum()), number, np.int32),
                    None if weight is None else weight[known],
                )
            unknown.report(drop=self._unknown_nodes == "drop")

    def read_ids(self) -> NodeIds | None:
        """Return the id of each node, unique within its type; None if no table has ids."""
        counts = [part.count or 0 for part in self._parts]
        ids = [self._ids[name] for name in self._names]
        return join_ids(ids, counts, scratch=self._scratch, memory_bytes=self._memory_bytes)

    def list_unread(self) -> tuple[str, ...]:
        """Return the columns that are not read, after the names of their types."""
        names = [f"{kind.name}.{name}" for kind in self._tables.values() for name in kind.unread]
        for edges, roles in zip(self._edges, self._roles, strict=True):
            names += [f"{name_relation(edges.relation)}.{name}" for name in roles.unread]
        return tuple(names)

    def describe_origin(self) -> GraphOrigin:
        """Return which column each part of the nodes and edges comes from."""
        read = [(f"{what} of {kind.name}", where) for kind in self._tables.values() for what, where in kind.read]
        for edges, roles in zip(self._edges, self._roles, strict=True):
            of, where = name_relation(edges.relation), edges.table.path.name
            read += [(f"{role} of {of}", f"{where}, column {name}") for role, name in roles.list_columns().items()]
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    @cached_property
    def _tables(self) -> dict[str, TypedNodeTable]:
        return {
            each.name: read_typed_nodes(each, scratch=self._scratch, memory_bytes=self._memory_bytes)
            for each in self._nodes
        }

    @cached_property
    def _ids(self) -> dict[str, TypedIds]:
        """The ids of each type; if nodes are added, those that only edges name included."""
        made = {name: kind.ids for name, kind in self._tables.items()}
        for name in self._names:
            if name not in made:
                made[name] = TypedIds.make_empty(self._scratch, self._memory_bytes)
        if self._unknown_nodes == "add":
            for edges, roles in zip(self._edges, self._roles, strict=True):
                for batch in self._read_batches(edges, roles, ids_known=False):
                    for kind, ids in _ends(edges, batch):
                        made[kind].add(ids)
        return made

    @cached_property
    def _parts(self) -> list[NodePart]:
        parts = []
        for name in self._names:
            given = self._tables.get(name)
            count = len(self._ids[name])
            parts.append(NodePart(name=name, count=count) if given is None else given.make_part(count))
        return parts

    def _read_batches(self, edges: EdgeTypeTable, roles: EdgeRoles, *, ids_known: bool = True) -> Iterator[EdgeBatch]:
        import pyarrow as pa

        # As they are written, where ids are texts: 007 is another id than 7.
        kinds = (edges.relation[0], edges.relation[2])
        texts = {
            role: pa.large_string()
            for role, kind in zip(("src", "dst"), kinds, strict=True)
            if (self._ids[kind].are_text if ids_known else kind in self._tables and self._tables[kind].ids.are_text)
        }
        return read_edge_batches(edges.table, replace(roles, relation=None), texts)

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

    def _check_weights(self) -> bool:
        without = [
            name_relation(edges.relation)
            for edges, roles in zip(self._edges, self._roles, strict=True)
            if roles.weight is None
        ]
        if len(without) in (0, len(self._edges)):
            return not without
        warn_about_data(f"edges have weights of some types only: those of {', '.join(without)} get weight 1")
        return True

    def _refuse_twice(self, names: Sequence[str], what: str) -> None:
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"two tables of {what} {twice[0]}",
                needed=f"one table of each {what}; files of one table have the same columns",
                got=f"{names.count(twice[0])} tables",
                repair="join their columns into one table",
            )


def _ends(edges: EdgeTypeTable, batch: EdgeBatch) -> tuple[tuple[str, ArrowArray], tuple[str, ArrowArray]]:
    return (edges.relation[0], batch.src), (edges.relation[2], batch.dst)


def _find_roles(edges: EdgeTypeTable) -> EdgeRoles:
    """Return the roles of the columns; those called as a type, or ``TYPE_id``, name its nodes."""
    columns = dict(edges.columns)
    src, _, dst = edges.relation
    for role, kind in (("src", src), ("dst", dst)) if src != dst else ():
        lower = {name.lower(): name for name in edges.table.names}
        found = [lower[name] for name in (kind.lower(), f"{kind}_id".lower(), f"{kind}id".lower()) if name in lower]
        if found and role not in columns:
            columns[role] = found[0]
    roles = find_edge_roles(edges.table, TableOptions(columns=columns))
    # The type is that of the table, so that a column of types says nothing new or something else.
    unread = roles.unread if roles.relation is None else (*roles.unread, roles.relation)
    return replace(roles, relation=None, unread=unread)
