"""Edge tables in parquet: one row per edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.columns import (
    RelabelledSource,
    assign_column_roles,
    make_edge_chunk,
    shorten_name,
    unread_columns,
)
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

_BATCH_ROWS = 1 << 17


@final
class ParquetSource(GraphSource):
    """Reader of a file with columns ``src``, ``dst``, optionally ``relation``, ``weight`` (or synonyms).

    Args:
        path: The file.
        num_nodes: ``V``; None for one more than the largest id.
        relabel: Renumber ids from 0 in ascending order; they may then be any integers. Reads the file twice.
        columns: What to take the columns for, in order, instead of their own names.
    """

    def __init__(
        self,
        path: Path,
        *,
        num_nodes: int | None = None,
        relabel: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._num_nodes = num_nodes
        rows = _ParquetRows(Path(path), columns)
        self._read: GraphSource = RelabelledSource(rows) if relabel else rows

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return self._read.name

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes, if it is known."""
        return self._read.read_tables() if self._num_nodes is None else NodeTableSource(num_nodes=self._num_nodes)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, 131,072 at a time.

        Raises:
            InputError: Columns that are missing, empty or not numbers; or a broken file.
        """
        return self._read.read_edges()

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the columns that are not read."""
        return self._read.list_unread()


@final
class _ParquetRows(GraphSource):
    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self._path = path
        self._columns = columns

    @property
    def name(self) -> str:
        return self._path.stem

    def read_tables(self) -> NodeTableSource:
        return NodeTableSource()

    def read_edges(self) -> Iterator[EdgeChunk]:
        from pyarrow import parquet
        from pyarrow.lib import ArrowException

        try:
            with parquet.ParquetFile(self._path) as file:
                names = self._column_names(file.schema_arrow)
                row = 0
                for batch in file.iter_batches(_BATCH_ROWS, columns=list(names.values())):
                    yield self._make_chunk(batch, names, row)
                    row += len(batch)
        except (OSError, ValueError, ArrowException) as error:
            raise InputError(
                f"{self._path} cannot be read",
                needed="a parquet file",
                got=f"{type(error).__name__}: {str(error)[:200]}",
                repair="check that the file is there and complete",
            ) from error

    def list_unread(self) -> tuple[str, ...]:
        from pyarrow import parquet

        names = self._columns or parquet.read_schema(self._path).names
        return unread_columns(names, assign_column_roles(names, str(self._path)))

    def _column_names(self, schema: Any) -> dict[str, str]:
        """Return the name of each role's column, and check its type."""
        from pyarrow import types

        own = schema.names
        roles = assign_column_roles(self._columns or own, str(self._path))
        names = {role: own[at] for role, at in roles.items() if at < len(own)}
        if (
            len(names) < len(roles)
            or len({*names.values()}) < len(names)
            or any(own.count(n) > 1 for n in names.values())
        ):
            raise InputError(
                f"the columns of {self._path} are unclear",
                needed="as many columns as names that are given, each of another name",
                got=f"{len(own)} columns, {', '.join(shorten_name(name) for name in own[:8])}",
                repair="write the file again with a name for each column",
            )
        # Before any value is read: values of other types can be of any size.
        for role, name in names.items():
            kind = schema.field(name).type
            held = kind.value_type if types.is_dictionary(kind) else kind
            if not (types.is_integer(held) or (role == "weight" and types.is_floating(held))):
                raise self._column_error(name, role, f"values of type {str(kind)[:80]}")
        return names

    def _make_chunk(self, batch: Any, names: dict[str, str], row: int) -> EdgeChunk:
        columns = [self._column_values(batch.column(name), name, role, row) for role, name in names.items()]
        return make_edge_chunk(columns.__getitem__, {role: at for at, role in enumerate(names)})

    def _column_values(self, column: Any, name: str, role: str, row: int) -> NDArray[Any]:
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if column.null_count:
            # `to_numpy` turns integers with missing values into floats, which cannot hold all large ids.
            missing = row + int(np.argmin(np.asarray(column.is_valid())))
            raise self._column_error(name, role, f"no value in {column.null_count} rows, the first is row {missing}")
        if role != "weight" and values.dtype == np.uint64 and values.max(initial=0) > np.iinfo(np.int64).max:
            raise self._column_error(name, role, f"{values.max()}, which does not fit 64 bits with a sign")
        return values if role == "weight" else values.astype(np.int64, copy=False)

    def _column_error(self, name: str, role: str, got: str) -> InputError:
        return InputError(
            f"{self._path}: the column {shorten_name(name)} cannot be used",
            needed="numbers in every row" if role == "weight" else "integers in every row",
            got=got,
            repair="write the file again with numbers",
        )
