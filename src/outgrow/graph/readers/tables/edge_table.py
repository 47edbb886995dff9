"""Edge tables as sources of graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.core.user_warnings import warn_about_data
from outgrow.core.validation import validate_choice
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.node_ids import ArrowArray, NodeIds
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource
from outgrow.graph.readers.tables.column_names import is_weight_like
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.edge_batches import EdgeBatch, join_batches, read_edge_batches
from outgrow.graph.readers.tables.edge_features import EdgeFeatureReader
from outgrow.graph.readers.tables.edge_roles import columns_by_role, find_edge_roles
from outgrow.graph.readers.tables.id_columns import choose_id_types
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import DataType, Table
from outgrow.graph.readers.tables.time_columns import Clock, TimeColumn, missing_column_error

UNKNOWN_NODES = ("refuse", "add", "drop")
"""What may become of edges to nodes that a node table does not name."""
_SHOWN = 3


@final
class EdgeTableSource(GraphSource):
    """Source of the edges of a table.

    Nodes whose ids are integers are numbered by them, unless they are relabelled: then in ascending order of the ids,
    which needs two passes. Nodes whose ids are texts are numbered in the order in which these first occur, row by row,
    the source before the destination. Relations that are texts are numbered likewise.

    Args:
        table: The table, or its path.
        options: ``columns``, ``edge_features``, ``time_column``, ``num_nodes``, ``relabel`` and ``unknown_nodes``
            apply.
        src_ids: Encoder of the sources, which a node table has filled; None if the edges alone say which nodes there
            are.
        dst_ids: Encoder of the destinations; None for that of the sources.
        categories: Encoder of the categories of each column of features, which tables of one graph share.
        clock: What the times of the graph are, of whose tables any may have the column of times; None for a table that
            is alone, and must have it.

    Attributes:
        features: Reader of the columns of features; None if there are none.
        times: The column of times; None if there is none.

    Raises:
        InputError: The columns are unclear, the file is broken, or options exclude each other.
    """

    def __init__(
        self,
        table: Table | Path,
        options: TableOptions | None = None,
        *,
        src_ids: IdEncoder | None = None,
        dst_ids: IdEncoder | None = None,
        categories: MutableMapping[str, IdEncoder] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options or TableOptions()
        validate_choice("unknown_nodes", self._options.unknown_nodes, dict.fromkeys(UNKNOWN_NODES))
        if self._options.relabel and self._options.num_nodes is not None:
            raise _too_many_nodes_error("relabel")
        named = [*columns_by_role(self._options).values(), *self._options.edge_features, self._options.time_column]
        named = [name for name in named if name and not name.isdecimal()]
        self._table = table if isinstance(table, Table) else open_table(table, named=named)
        # A file without rows has no columns, and is a graph if the user says how many nodes there are.
        self._roles = find_edge_roles(self._table, self._options) if self._table.names else None
        self._src_ids = src_ids
        self._dst_ids = dst_ids or src_ids
        self._is_given = src_ids is not None
        self._types: dict[str, DataType] | None = None
        self._integers: Ids | None = None
        self._relations = IdEncoder()
        features = {} if self._roles is None else self._roles.features
        self.features = EdgeFeatureReader(self._table, features, categories) if features else None
        time = None if self._roles is None else self._roles.time
        if self._options.time_column and time is None and clock is None:
            raise missing_column_error(str(self._table.path), self._options.time_column, [*self._table.names])
        self.times = None if time is None else TimeColumn(self._table, time, clock or Clock())
        self._scratch: tuple[Path, int] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the file has not even a header."""
        return self._roles is None

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return self._table.path.name.split(".")[0]

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Say where tables of ids may lie, and how many bytes of memory they may take."""
        self._scratch = (folder, memory_bytes)

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes, if it is known before the edges are read."""
        known = self._options.num_nodes
        if self._options.relabel:
            self._choose_types()
            known = None if self._integers is None else len(self._integers)
        return NodeTableSource(num_nodes=self._table.num_nodes if known is None else known)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges.

        Raises:
            InputError: A row that is not an edge, with its line or row; an edge to a node that is unknown; a broken
                file; or a number of nodes that are known by their ids.
        """
        if self._roles is None:
            return
        types = self._choose_types()
        unknown = _UnknownNodes(self._table, self._options.unknown_nodes)
        batches = read_edge_batches(self._table, self._roles, types, self.features, self.times)
        for batch in batches if self._src_ids is None else join_batches(batches):
            if not self._is_given:
                yield self._number_batch(batch)
            elif (chunk := self._find_batch(batch, unknown)) is not None:
                yield chunk
        unknown.report()
        _release_memory()

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the names of relations that are texts."""
        return tuple(str(name) for name in self._relations.finish()) if len(self._relations) else ()

    def read_edge_feature_sizes(self) -> tuple[int, ...]:
        """Return the number of categories of each column of features, 0 for numbers."""
        return () if self.features is None else self.features.sizes

    def has_dates(self) -> bool:
        """Return whether columns of times have dates."""
        return self.times is not None and self.times.clock.has_dates

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns of features and of their categories."""
        return () if self.features is None else self.features.list_columns()

    def read_ids(self) -> NodeIds | None:
        """Return the id of each node; None if they number the nodes."""
        if self._integers is not None:
            return NodeIds.from_integers(self._integers)
        return None if self._src_ids is None else self._src_ids.finish()

    def read_progress(self) -> tuple[int, int] | None:
        """Return how many bytes of the file or files were read, and how many there are."""
        return self._table.bytes_read, self._table.num_bytes

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the columns that are not read; of what may be weights, with the option that reads it."""
        if self._roles is None:
            return ()
        weighted = self._roles.weight is not None or "weight" in self._options.columns
        hints = {
            name: f" (--columns weight={shorten_name(name)} reads it)"
            for name in self._roles.unread
            if is_weight_like(name) and not weighted
        }
        if self._roles.undirected is not None:
            hints[self._roles.undirected] = " (of edges that go both ways, which --undirected adds)"
        unnamed = "" if self._table.has_names else "column "
        return tuple(f"{unnamed}{shorten_name(name)}{hints.get(name, '')}" for name in self._roles.unread)

    def describe_origin(self) -> GraphOrigin:
        """Return which column each part of the edges was read from."""
        columns = {} if self._roles is None else self._roles.list_columns()
        where = self._table.path.name
        read = [(role, f"{where}, column {shorten_name(name)}") for role, name in columns.items()]
        if self.times is not None:
            read.append(("times of edges", f"{where}, column {shorten_name(self.times.name)}"))
        if self.features is not None:
            read.append(("edge features", f"{where}, columns {self.features.describe_columns()}"))
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    def _choose_types(self) -> dict[str, DataType]:
        """Return the type of ids, decided once; make encoders where they are needed."""
        import pyarrow as pa

        if self._types is not None:
            return self._types
        columns = {} if self._roles is None else self._roles.list_columns()
        types = choose_id_types(self._table, columns)
        text = pa.large_string()
        ends = [types[role] for role in ("src", "dst") if role in types]
        # Ids of one encoder are of one type: the integer 7 is not found beside the text "007".
        are_texts = text in ends and self._src_ids is self._dst_ids
        if self._options.relabel and not are_texts and not self._is_given:
            self._integers = self._collect_integers(types)
            are_texts = self._integers is None
        if are_texts:
            types |= {"src": text, "dst": text}
        if are_texts and not self._is_given:
            if self._options.num_nodes is not None:
                raise _too_many_nodes_error("ids that are texts")
            self._src_ids = self._dst_ids = IdEncoder(*(self._scratch or ()))
        if self._is_given:
            # Ids of a node table that are texts are found as they are written: 007 is no 7.
            ends_ids = {"src": self._src_ids, "dst": self._dst_ids}
            types |= {role: text for role, ids in ends_ids.items() if ids is not None and ids.are_text}
        self._types = types
        return types

    def _collect_integers(self, types: Mapping[str, DataType]) -> Ids | None:
        """Return all ids, ascending; None if any is a text."""
        if self._roles is None:
            return np.empty(0, np.int64)
        try:
            return _unique_ids(read_edge_batches(self._table, self._roles, types))
        except InputError:
            # What else is wrong will be seen when the rows are read as texts.
            return None

    def _number_batch(self, batch: EdgeBatch) -> EdgeChunk:
        relation = self._number_relations(batch.relation)
        if self._src_ids is not None:
            src, dst = self._src_ids.encode_columns([batch.src, batch.dst])
        else:
            src, dst = (np.asarray(ids.to_numpy(zero_copy_only=False)) for ids in (batch.src, batch.dst))
            if self._integers is not None:
                src, dst = np.searchsorted(self._integers, src), np.searchsorted(self._integers, dst)
        return EdgeChunk(src, dst, relation, batch.weight, batch.features, batch.time)

    def _find_batch(self, batch: EdgeBatch, unknown: _UnknownNodes) -> EdgeChunk | None:
        """Return the edges of a batch whose nodes are those of node tables; None once one is refused."""
        assert self._src_ids is not None
        assert self._dst_ids is not None
        src, dst = self._src_ids.find(batch.src), self._dst_ids.find(batch.dst)
        known = (src >= 0) & (dst >= 0)
        relation, weight, features, time = batch.relation, batch.weight, batch.features, batch.time
        if not known.all():
            if self._options.unknown_nodes == "add":
                if self._src_ids is self._dst_ids:
                    src, dst = self._src_ids.encode_columns([batch.src, batch.dst])
                else:
                    src, dst = self._src_ids.encode(batch.src), self._dst_ids.encode(batch.dst)
            else:
                unknown.add(batch, src, dst)
                src, dst = src[known], dst[known]
                relation = None if relation is None else relation.filter(_to_arrow(known))
                weight = None if weight is None else weight[known]
                features = None if features is None else features[known]
                time = None if time is None else time[known]
        if unknown.is_refused:
            return None
        return EdgeChunk(src, dst, self._number_relations(relation), weight, features, time)

    def _number_relations(self, relation: ArrowArray | None) -> Ids | None:
        import pyarrow as pa

        if relation is None or pa.types.is_integer(relation.type):
            return None if relation is None else np.asarray(relation.to_numpy(zero_copy_only=False))
        return self._relations.encode(relation)


class _UnknownNodes:
    """Edges to nodes that no node table names: counted, the first ones kept for a message.

    Args:
        table: The edge table.
        policy: What becomes of such edges.

    Attributes:
        count: How many there are so far.
    """

    def __init__(self, table: Table, policy: str) -> None:
        self._table = table
        self._policy = policy
        self._first: list[str] = []
        self.count = 0

    @property
    def is_refused(self) -> bool:
        """Whether there was an edge that makes the graph refused."""
        return bool(self.count) and self._policy == "refuse"

    def add(self, batch: EdgeBatch, src: Ids, dst: Ids) -> None:
        """Add the edges of a batch that have -1 for one of their nodes."""
        bad = np.flatnonzero((src < 0) | (dst < 0))
        self.count += len(bad)
        for at in bad[: _SHOWN - len(self._first)]:
            name = (batch.src if src[at] < 0 else batch.dst)[int(at)].as_py()
            self._first.append(f"{name!r} ({self._table.locate_row(batch.first_row + int(at))})")

    def report(self) -> None:
        """Refuse, or warn; called once all edges are read.

        Raises:
            InputError: There are such edges, and they are to be refused.
        """
        if not self.count:
            return
        got = f"{self.count:,} edges to other nodes, such as {', '.join(self._first)}"
        if self.is_refused:
            raise InputError(
                f"edges of {self._table.path} lead to nodes that the node table does not name",
                needed="nodes of the node table",
                got=got,
                repair="complete the node table, or give --unknown-nodes add, or drop (unknown_nodes=...)",
            )
        warn_about_data(f"dropped of {self._table.path.name}: {got}")


def _unique_ids(batches: Iterator[EdgeBatch]) -> Ids:
    known = np.empty(0, dtype=np.int64)
    fresh, num_fresh = list[Ids](), 0
    for batch in batches:
        src, dst = (np.asarray(ids.to_numpy(zero_copy_only=False)) for ids in (batch.src, batch.dst))
        fresh.append(np.union1d(src, dst))
        num_fresh += len(fresh[-1])
        # Merging when the new ids outnumber the known ones bounds memory by V, and each id is sorted few times.
        if num_fresh > max(len(known), 1 << 16):
            known = np.unique(np.concatenate([known, *fresh]))
            fresh, num_fresh = [], 0
    return np.unique(np.concatenate([known, *fresh]))


def _to_arrow(mask: Any) -> ArrowArray:
    import pyarrow as pa

    return pa.array(mask)


def _release_memory() -> None:
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _too_many_nodes_error(other: str) -> InputError:
    return InputError(
        f"num_nodes and {other} exclude each other",
        needed="nodes that are numbered from 0 by their ids, or no num_nodes",
        got="both",
        repair="drop num_nodes (--nodes): nodes are those that have edges",
    )
