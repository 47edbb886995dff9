"""Edge tables as sources of graphs: their rows in batches, ids and relations numbered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.graph import GraphOrigin
from outgrow.graph.node_ids import ArrowArray, NodeIds
from outgrow.graph.readers.conversions import to_weights
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource
from outgrow.graph.readers.tables.edge_roles import EdgeRoles, find_edge_roles
from outgrow.graph.readers.tables.id_columns import choose_id_types, to_id_array
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import DataType, Table

__all__ = ["EdgeBatch", "EdgeRoles", "EdgeTableSource", "find_edge_roles", "read_edge_batches"]


class EdgeBatch(NamedTuple):
    """Some edges of a table, in its order.

    Attributes:
        src: ``[n]`` Arrow array of int64 or large strings, without nulls.
        dst: ``[n]`` likewise.
        relation: ``[n]`` Arrow array of int64 or large strings; None if edges have no type.
        weight: ``[n]`` float32; None if edges have no weight.
        first_row: Number of the first of these rows in the table, from 0.
    """

    src: ArrowArray
    dst: ArrowArray
    relation: ArrowArray | None
    weight: NDArray[np.float32] | None
    first_row: int


def read_edge_batches(
    table: Table, roles: EdgeRoles, id_types: Mapping[str, DataType] | None = None
) -> Iterator[EdgeBatch]:
    """Yield the edges of a table, in batches of bounded size.

    Args:
        table: The table.
        roles: Which column is what.
        id_types: Type of ``src``, ``dst`` and ``relation``, ``pa.int64()`` or ``pa.large_string()``; None for what the
            first rows look like: integers are int64 if all are, or most; all else is text.

    Raises:
        InputError: A value of another type, with its line or row; or a broken file.
    """
    import pyarrow as pa

    columns = roles.list_columns()
    chosen = {**choose_id_types(table, columns), **dict(id_types or {})}
    types = {name: pa.float64() if role == "weight" else chosen[role] for role, name in columns.items()}
    row = 0
    for batch in table.read_batches([*columns.values()], types):
        arrays = dict(zip(columns, batch.columns, strict=True))
        ids = {role: to_id_array(arrays[role], chosen[role]) for role in arrays if role != "weight"}
        weight = arrays.get("weight")
        yield EdgeBatch(
            ids["src"],
            ids["dst"],
            ids.get("relation"),
            None if weight is None else to_weights(weight.to_numpy(zero_copy_only=False), "weight of the edges"),
            row,
        )
        row += len(batch)


@final
class EdgeTableSource(GraphSource):
    """Source of the edges of a table.

    Nodes whose ids are integers are numbered by them, unless they are relabelled; those whose ids are texts in the
    order in which these first occur, row by row. Relations that are texts likewise.

    Args:
        table: The table, or its path.
        options: ``columns``, ``num_nodes``, ``relabel`` and ``unknown_nodes`` apply.
        src_ids: Encoder of sources that a node table has filled; None if ids are but those of the edges.
        dst_ids: Encoder of destinations; None for that of sources.
    """

    def __init__(
        self,
        table: Table | Path,
        options: TableOptions | None = None,
        *,
        src_ids: IdEncoder | None = None,
        dst_ids: IdEncoder | None = None,
    ) -> None:
        self._options = options or TableOptions()
        self._table = table if isinstance(table, Table) else open_table(table)
        self._roles = find_edge_roles(self._table, self._options)
        self._given = src_ids is not None
        self._src_ids = src_ids
        self._dst_ids = dst_ids or src_ids
        self._relations = IdEncoder()

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return self._table.path.name.split(".")[0]

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes, if it is known."""
        return NodeTableSource(num_nodes=self._options.num_nodes)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges.

        Raises:
            InputError: A row that is not an edge, with its number; or a broken file.
        """
        import pyarrow as pa

        columns = self._roles.list_columns()
        types = choose_id_types(self._table, columns)
        text = pa.large_string()
        if self._given or self._options.relabel or text in (types["src"], types["dst"]):
            types |= {"src": text, "dst": text}
            self._src_ids = self._src_ids or IdEncoder()
            self._dst_ids = self._dst_ids or self._src_ids
        for batch in read_edge_batches(self._table, self._roles, types):
            yield self._make_chunk(batch)

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the names of relations that are texts."""
        return tuple(str(name) for name in self._relations.finish())

    def read_ids(self) -> NodeIds | None:
        """Return the id of each node; None if they number the nodes."""
        return None if self._src_ids is None else self._src_ids.finish()

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the columns that are not read."""
        return self._roles.unread

    def describe_origin(self) -> GraphOrigin:
        """Return which column each part of the edges comes from."""
        where = self._table.path.name
        read = [(role, f"{where}, column {name}") for role, name in self._roles.list_columns().items()]
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    def _make_chunk(self, batch: EdgeBatch) -> EdgeChunk:
        if self._src_ids is None:
            src, dst = (np.asarray(ids.to_numpy(zero_copy_only=False)) for ids in (batch.src, batch.dst))
        else:
            assert self._dst_ids is not None
            src, dst = self._src_ids.encode(batch.src), self._dst_ids.encode(batch.dst)
        return EdgeChunk(src, dst, self._number_relations(batch.relation), batch.weight)

    def _number_relations(self, relation: ArrowArray | None) -> Ids | None:
        import pyarrow as pa

        if relation is None or pa.types.is_integer(relation.type):
            return None if relation is None else np.asarray(relation.to_numpy(zero_copy_only=False))
        return self._relations.encode(relation)
