"""Features of node tables: numbers, lists of numbers and categories, dense or sparse, in memory or in scratch files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.node_ids import ArrowArray, TextArrays
from outgrow.graph.readers.source import Ids, LazyMatrix
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.node_roles import NodeRoles, has_number_lists, has_texts
from outgrow.graph.readers.tables.node_values import TextCodes, list_error, numbers_of_column
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table
from outgrow.ops.text_hash import hash_texts

HASH_COLUMNS = 256
"""Columns that all hashed texts share."""
MOST_CATEGORIES = 1 << 16
"""So many distinct texts are names, not categories."""
_DENSE_COLUMNS = 512
Matrix = NDArray[Any] | csr_array


@dataclass(frozen=True, kw_only=True)
class FeatureColumn:
    """Where the values of a column of a table are among the features.

    Attributes:
        name: The column.
        first: Its first column among the features.
        width: How many there are.
        texts: The number of each category, of one-hot columns; empty for hashed ones; None for numbers.
    """

    name: str
    first: int
    width: int
    texts: Mapping[str, int] | None = None

    @property
    def is_hashed(self) -> bool:
        """Whether texts are hashed."""
        return self.texts is not None and not self.texts


def refuse_categories(table: Table, names: Sequence[str], types: Mapping[str, DataType], categorical: str) -> None:
    """Refuse columns of texts among the features, unless it is said what becomes of them.

    Raises:
        InputError: There are columns of texts, and ``categorical`` is ``"refuse"``.
    """
    texts = [name for name in names if has_texts(types[name])]
    if texts and categorical == "refuse":
        raise InputError(
            f"{table.path}: features cannot be texts as they are",
            needed="columns of numbers, or to be told what becomes of texts",
            got=f"texts in {', '.join(map(shorten_name, texts[:8]))}",
            repair="--categorical onehot makes a column of each category, --categorical hash as many as are fixed",
        )


def plan_columns(
    table: Table, names: Sequence[str], types: Mapping[str, DataType], categories: Mapping[str, TextCodes]
) -> list[FeatureColumn]:
    """Return where each column is among the features; those of hashed texts share the last ones.

    Args:
        table: The table; a row of it is read where lists are of no fixed length.
        names: The columns.
        types: Arrow type of each.
        categories: The texts of those that become one-hot.
    """
    widths = list_widths(table, [name for name in names if has_number_lists(types[name])])
    plan, at, hashed = list[FeatureColumn](), 0, list[str]()
    for name in names:
        if not has_texts(types[name]):
            width, texts = widths.get(name, 1), None
        elif name in categories:
            words = categories[name].finish()[1]
            width, texts = len(words), {word: number for number, word in enumerate(words)}
        else:
            hashed.append(name)
            continue
        if texts is not None and not texts:
            # Without any text there is no category, and so no column.
            continue
        plan.append(FeatureColumn(name=name, first=at, width=width, texts=texts))
        at += width
    return plan + [FeatureColumn(name=name, first=at, width=HASH_COLUMNS, texts={}) for name in hashed]


def read_features(
    table: Table, plan: Sequence[FeatureColumn], roles: NodeRoles, num_nodes: int, scratch: Path | None
) -> Matrix | None:
    """Read the features of all rows.

    They are float16 if all columns are, else float32; sparse where there are more than 512 columns, more than three
    quarters of them of categories. Sparse ones are collected in memory before they are written to files.

    Args:
        table: The table, read once.
        plan: Where each column is among the features.
        roles: The columns and their types.
        num_nodes: ``V``.
        scratch: Folder of a file that then holds the rows; None for memory.

    Returns:
        ``[V, D]``; None without columns.

    Raises:
        InputError: A value that is missing or not finite in float32, with its row and column.
    """
    import pyarrow as pa
    from pyarrow import types as kinds

    if not plan:
        return None
    types = roles.types
    numbers = [types[column.name] for column in plan]
    dtype = np.dtype(np.float16 if all(kinds.is_float16(kind) for kind in numbers) else np.float32)
    # A column that begins with whole numbers may go on with others.
    wider = {
        column.name: pa.float64() for column in plan if types[column.name] in (pa.int64(), pa.float64(), pa.null())
    } | roles.text_types([column.name for column in plan])
    width = max(column.first + column.width for column in plan)
    dense = sum(column.width for column in plan if column.texts is None)
    rows = _SparseRows if width > _DENSE_COLUMNS and width > 4 * dense else _DenseRows
    made = rows((num_nodes, width), dtype, scratch)
    row = 0
    with made.open_file():
        for batch in table.read_batches([column.name for column in plan], wider):
            made.add(table, plan, batch, row)
            row += len(batch)
    return made.finish()


def take_rows(features: Matrix | None, order: Ids) -> Matrix | LazyMatrix | None:
    """Return rows of features in another order, ``[V, D]``; those in a file are read on demand."""
    if features is None or not isinstance(features, np.memmap):
        return None if features is None else features[order]
    return _OrderedRows(features, order)


@final
class _OrderedRows(LazyMatrix):
    def __init__(self, rows: NDArray[Any], order: Ids) -> None:
        self._rows = rows
        self._order = order

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._order), int(self._rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._rows.dtype

    def read_rows(self, first: int, last: int) -> NDArray[Any]:
        return np.asarray(self._rows[self._order[first:last]])


@final
class _DenseRows:
    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], scratch: Path | None) -> None:
        self._shape = shape
        self._dtype = dtype
        self._path = None if scratch is None else _unused_file(scratch, "features")
        self._file: BinaryIO | None = None
        self._held = np.empty(shape if scratch is None else (0, 0), dtype)

    @contextmanager
    def open_file(self) -> Iterator[None]:
        if self._path is None:
            yield
            return
        with self._path.open("wb") as self._file:
            yield

    def add(self, table: Table, plan: Sequence[FeatureColumn], batch: RecordBatch, row: int) -> None:
        out = np.zeros((len(batch), self._shape[1]), self._dtype)
        for column in plan:
            last = column.first + column.width
            if column.texts is None:
                out[:, column.first : last] = read_number_rows(
                    table, column, batch.column(column.name), row, self._dtype
                )
            else:
                at, values = _category_entries(column, batch.column(column.name))
                there = np.flatnonzero(values)
                out[there, at[there]] += values[there]
        if self._file is None:
            self._held[row : row + len(batch)] = out
        else:
            out.tofile(self._file)

    def finish(self) -> Matrix:
        if self._path is None:
            return self._held
        return np.memmap(self._path, self._dtype, "r", shape=self._shape)


@final
class _SparseRows:
    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], scratch: Path | None) -> None:
        self._shape = shape
        self._dtype = dtype
        self._scratch = scratch
        self._counts = [np.zeros(1, np.int64)]
        self._indices: list[NDArray[np.int32]] = []
        self._values: list[NDArray[Any]] = []

    def open_file(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, table: Table, plan: Sequence[FeatureColumn], batch: RecordBatch, row: int) -> None:
        at, values = list[NDArray[Any]](), list[NDArray[Any]]()
        for column in plan:
            if column.texts is None:
                given = read_number_rows(table, column, batch.column(column.name), row, self._dtype)
                at.append(np.broadcast_to(np.arange(column.first, column.first + column.width), given.shape))
                values.append(given)
            else:
                where, entries = _category_entries(column, batch.column(column.name))
                at.append(where[:, None])
                values.append(entries[:, None].astype(self._dtype))
        indices, entries = np.concatenate(at, 1), np.concatenate(values, 1)
        there = entries != 0
        self._counts.append(there.sum(1))
        self._indices.append(indices[there].astype(np.int32))
        self._values.append(entries[there])

    def finish(self) -> Matrix:
        indptr = np.cumsum(np.concatenate(self._counts))
        indices = _to_file(self._indices, np.dtype(np.int32), self._scratch, "columns")
        values = _to_file(self._values, self._dtype, self._scratch, "values")
        return csr_array((values, indices, indptr), shape=self._shape)


def read_number_rows(
    table: Table, column: FeatureColumn, given: ArrowArray, row: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return ``[n, width]``: the numbers of a column of features.

    Args:
        table: The table, for errors.
        column: The column, of numbers or of lists of its width.
        given: ``[n]`` values of it.
        row: Number of the first of these rows in the table.
        dtype: Floating type of the result.

    Raises:
        InputError: A value that is missing, not finite in this type or no number, with its row and column.
    """
    values = numbers_of_column(table, column.name, given, row, "a feature")
    values = values[:, None] if values.ndim == 1 else values
    if len(values) and values.shape[1] != column.width:
        got = f"a list of {values.shape[1]} after one of {column.width}"
        raise list_error(table, column.name, row, got, "a feature")
    with np.errstate(over="ignore"):
        made = values.astype(dtype, copy=False)
    good = np.isfinite(made)
    if not good.all():
        at = int(np.argmin(good.all(1)))
        missing = np.isnan(made[at]).any()
        raise InputError(
            f"{table.locate_row(row + at)}: the column {shorten_name(column.name)} cannot be used as a feature",
            needed=f"a finite number in every row that {dtype} holds",
            got="no value" if missing else f"{values[at][~good[at]][0]}",
            repair="fill in missing values, for example with the mean of the column, or leave the column out",
        )
    return made


def _category_entries(column: FeatureColumn, texts: ArrowArray) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the feature column of each row, ``[n]``, and what is added there: 0 if there is no text."""
    import pyarrow as pa

    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    words = encoded.dictionary.cast(pa.large_string())
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    at, signs = _hash_words(column, words) if column.is_hashed else _number_words(column, words.to_pylist())
    signs[[number for number, word in enumerate(words.to_pylist()) if not word]] = 0
    # The last entry is that of rows without a text.
    return np.append(at, 0)[codes] + column.first, np.append(signs, np.float32(0))[codes]


def _number_words(column: FeatureColumn, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    assert column.texts is not None
    at = np.array([column.texts.get(word, 0) for word in words], np.int64)
    return at, np.ones(len(at), np.float32)


def _hash_words(column: FeatureColumn, words: ArrowArray) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return a column and a sign for each text, of a hash of it and the column's name.

    Feature hashing of Weinberger et al. (ICML 2009): with signs, texts that share a column cancel on average.
    """
    import pyarrow as pa
    from pyarrow import compute

    name, between = (pa.scalar(text, pa.large_string()) for text in (column.name, "\x1f"))
    named = TextArrays.from_arrow(compute.binary_join_element_wise(name, words, between))
    hashes = np.empty(len(named), np.uint64)
    hash_texts(named.offsets, named.data, hashes)
    signs = np.where(hashes >> np.uint64(63), np.float32(-1), np.float32(1))
    return (hashes % np.uint64(column.width)).astype(np.int64), signs


def list_widths(table: Table, names: Sequence[str]) -> dict[str, int]:
    """Return the length of the lists in each of some columns, of which the first row has one."""
    from pyarrow import compute, types

    widths = dict[str, int]()
    for batch in table.read_batches(names) if names else ():
        if not len(batch):
            continue
        for name in names:
            column = batch.column(name)
            fixed = types.is_fixed_size_list(column.type)
            length = column.type.list_size if fixed else compute.list_value_length(column[0:1])[0].as_py()
            widths[name] = length or 0
        break
    return widths


def _unused_file(folder: Path, name: str) -> Path:
    at = 0
    while (folder / f"{name}-{at}").exists():
        at += 1
    return folder / f"{name}-{at}"


def _to_file(parts: list[NDArray[Any]], dtype: np.dtype[Any], scratch: Path | None, name: str) -> NDArray[Any]:
    total = sum(map(len, parts))
    if scratch is None or not total:
        return np.concatenate([np.empty(0, dtype), *parts])
    path = _unused_file(scratch, name)
    with path.open("wb") as file:
        while parts:
            parts.pop(0).tofile(file)
    return np.memmap(path, dtype, "r", shape=(total,))
