"""Edge tables in parquet: one row per edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.ingest.columns import Relabelled, edge_chunk, roles_of
from outgrow.graph.ingest.source import EdgeChunk, Source, Tables

_BATCH_ROWS = 1 << 17


@final
class ParquetSource(Source):
    """One file with columns ``src`` and ``dst``, optionally ``relation`` and ``weight``, or synonyms (``columns.py``).

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
        rows = _Rows(Path(path), columns)
        self._read: Source = Relabelled(rows) if relabel else rows

    @property
    def name(self) -> str:
        """Name of the file without its ending."""
        return self._read.name

    def tables(self) -> Tables:
        """The number of nodes, where it is known."""
        return self._read.tables() if self._num_nodes is None else Tables(num_nodes=self._num_nodes)

    def edges(self) -> Iterator[EdgeChunk]:
        """All edges, 131,072 at a time.

        Raises:
            InputError: Columns that are missing, empty or not numbers; or a broken file.
        """
        return self._read.edges()


@final
class _Rows(Source):
    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self._path, self._columns = path, columns

    @property
    def name(self) -> str:
        return self._path.stem

    def tables(self) -> Tables:
        return Tables()

    def edges(self) -> Iterator[EdgeChunk]:
        from pyarrow import parquet
        from pyarrow.lib import ArrowException

        try:
            with parquet.ParquetFile(self._path) as file:
                own = file.schema_arrow.names
                roles = roles_of(self._columns or own, str(self._path))
                row = 0
                for batch in file.iter_batches(_BATCH_ROWS, columns=[own[at] for at in roles.values()]):
                    yield self._chunk(batch, {role: own[at] for role, at in roles.items()}, row)
                    row += len(batch)
        except (OSError, ArrowException) as error:
            raise InputError(
                f"{self._path} cannot be read",
                needed="a parquet file",
                got=f"{type(error).__name__}: {error}",
                repair="check that the file is there and complete",
            ) from error

    def _chunk(self, batch: Any, names: dict[str, str], row: int) -> EdgeChunk:
        columns = [self._column(batch.column(name), name, role, row) for role, name in names.items()]
        return edge_chunk(columns.__getitem__, {role: at for at, role in enumerate(names)})

    def _column(self, column: Any, name: str, role: str, row: int) -> NDArray[Any]:
        kinds = "iuf" if role == "weight" else "iu"
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if column.null_count:
            missing = row + int(np.argmin(np.asarray(column.is_valid())))
            raise self._wrong(name, kinds, f"no value in {column.null_count} rows, the first is row {missing}")
        if values.dtype.kind not in kinds:
            raise self._wrong(name, kinds, f"values of type {column.type}")
        if role != "weight" and values.dtype == np.uint64 and values.max(initial=0) > np.iinfo(np.int64).max:
            raise self._wrong(name, kinds, f"{values.max()}, which does not fit 64 bits with a sign")
        return values if role == "weight" else values.astype(np.int64, copy=False)

    def _wrong(self, name: str, kinds: str, got: str) -> InputError:
        return InputError(
            f"{self._path}: the column {name} cannot be used",
            needed="numbers in every row" if "f" in kinds else "integers in every row",
            got=got,
            repair="write the file again with numbers",
        )
