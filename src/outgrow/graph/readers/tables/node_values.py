"""Columns of node tables that are kept whole: texts as codes, numbers, lists; and labels made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.node_roles import has_integers, has_texts
from outgrow.graph.readers.tables.table import Table

_UNKNOWN = {"unknown", "nan", "none", "null", "na", "n/a", "?"}
"""Texts that stand for no label, in any case."""


class NodeLabels(NamedTuple):
    """Labels as a source gives them.

    Attributes:
        values: ``[V]`` integer with -1 for unknown, ``[V, C]`` uint8, or numbers with NaN for unknown.
        class_names: Name of each class, or empty.
    """

    values: NDArray[Any]
    class_names: tuple[str, ...]


@final
class TextCodes:
    """Codes of the texts of a column: distinct texts are numbered in ascending order once all are known.

    Attributes:
        most: Most distinct texts.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._numbers: dict[str, int] = {}
        self._parts: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def exceeds(self) -> bool:
        """Whether there are more distinct texts than `most`."""
        return self.most is not None and len(self._numbers) > self.most

    def add(self, texts: ArrowArray, *, keep: bool = True) -> None:
        """Add the next rows; those without a text, or with an empty one, get -1.

        Args:
            texts: ``[n]`` texts, also as a dictionary.
            keep: Whether the codes are kept, and not only the distinct texts.
        """
        import pyarrow as pa

        encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        words = encoded.dictionary.cast(pa.large_string()).to_pylist()
        numbers = self._numbers
        # Only what occurs: a dictionary may hold other texts, too.
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        used = np.unique(codes[codes >= 0])
        table = np.full(len(words) + 1, -1, np.int32)
        for at in used.tolist():
            if words[at]:
                table[at] = numbers.setdefault(words[at], len(numbers))
        if keep:
            self._parts.append(table[codes])

    def finish(self) -> tuple[NDArray[np.int32], list[str]]:
        """Return ``[V]`` codes and the texts, ascending."""
        texts = sorted(self._numbers)
        table = np.full(len(texts) + 1, -1, np.int32)
        table[[self._numbers[text] for text in texts]] = np.arange(len(texts))
        parts = self._parts or [np.empty(0, np.int32)]
        return table[np.concatenate(parts)], texts


@final
class ColumnValues:
    """The values of one column over all rows.

    Args:
        table: The table, for errors.
        name: The column.
        role: Its role in errors.

    Attributes:
        are_integers: Whether all values that are not missing are integers by their type.
    """

    def __init__(self, table: Table, name: str, role: str) -> None:
        self._table = table
        self.name = name
        self._role = role
        self._codes: TextCodes | None = None
        self._parts: list[NDArray[Any]] = []
        self._row = 0
        self.are_integers = True

    def add(self, column: ArrowArray) -> None:
        """Add the values of the next rows.

        Raises:
            InputError: Values that are neither texts, numbers, times nor lists of numbers of one length.
        """
        if has_texts(column.type):
            self._codes = self._codes or TextCodes()
            self._codes.add(column)
        else:
            self.are_integers &= has_integers(column.type)
            values = numbers_of_column(self._table, self.name, column, self._row, self._role)
            if self._parts and values.shape[1:] != self._parts[0].shape[1:]:
                width, before = values.shape[1:], self._parts[0].shape[1:]
                got = f"a list of {width} after one of {before}"
                raise list_error(self._table, self.name, self._row, got, self._role)
            self._parts.append(values)
        self._row += len(column)

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return self._codes is not None

    def words(self) -> tuple[NDArray[np.int32], list[str]]:
        """Return ``[V]`` codes, -1 for none, and the texts of the codes; of numbers their decimal forms."""
        if self._codes is not None:
            return self._codes.finish()
        values, codes = np.unique(self.numbers(), return_inverse=True)
        return codes.astype(np.int32), [f"{value:g}" if value == value else "" for value in values.tolist()]

    def numbers(self) -> NDArray[Any]:
        """Return ``[V]`` or ``[V, n]``: integers where all rows have one, else floats with NaN for missing."""
        kinds = {part.dtype.kind for part in self._parts}
        # A batch without values has the type of numbers that are missing.
        parts = [part.astype(np.float64) if "f" in kinds and part.dtype.kind != "f" else part for part in self._parts]
        return np.concatenate(parts)


def numbers_of_column(table: Table, name: str, column: ArrowArray, row: int, role: str) -> NDArray[Any]:
    """Return the numbers of a column: ``[n]``, or ``[n, width]`` of lists; floats with NaN where some are missing.

    Args:
        table: The table, for errors.
        name: The column.
        column: ``[n]`` booleans, numbers, times, or lists of numbers of one length.
        row: Number of its first row.
        role: Its role in errors.

    Raises:
        InputError: Other values, or lists of several lengths.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list_rows(table, name, column, row, role)
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_boolean(kind):
        return numbers_of_column(table, name, column.cast(pa.uint8()), row, role)
    if types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif types.is_temporal(kind):
        column = column.cast(pa.int32()).cast(pa.int64()) if types.is_date32(kind) else column.cast(pa.int64())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        raise InputError(
            f"{table.path}: the column {shorten_name(name)} cannot be used as {role}",
            needed="numbers, booleans, lists of numbers of one length, or texts",
            got=f"values of type {str(kind)[:80]}",
            repair="convert the column, or name others",
        )
    if column.null_count and not types.is_floating(column.type):
        # Beyond 2^53 a float would round it.
        column = column.cast(pa.float64(), safe=False)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def make_labels(columns: Sequence[ColumnValues], where: str) -> NodeLabels | None:
    """Return the labels in some columns; None for no columns.

    A column of texts has classes, named in ascending order; an empty text, or one such as ``unknown``, is no label. A
    column of numbers has what `to_labels` takes them for. Several columns, or one of lists, are the classes of a
    multi-label task if they are all 0 or 1, else targets.

    Raises:
        InputError: Texts among several columns, or a missing value among zeros and ones.
    """
    if not columns:
        return None
    if len(columns) == 1:
        return _labels_of_words(*columns[0].words(), where) if columns[0].is_text else _labels_of_numbers(columns[0])
    if texts := [column.name for column in columns if column.is_text]:
        raise InputError(
            f"several columns of labels of {where} cannot be texts",
            needed="columns of zeros and ones, or of numbers",
            got=f"texts in {', '.join(map(shorten_name, texts))}",
            repair="name one column of texts: --label COLUMN",
        )
    values = np.stack([column.numbers().astype(np.float64) for column in columns], 1)
    known = values[~np.isnan(values)]
    if np.isin(known, (0, 1)).all() and len(known):
        if len(known) < values.size:
            row, at = np.argwhere(np.isnan(values))[0]
            raise InputError(
                f"a label of {where} is missing",
                needed="0 or 1 in each column of labels",
                got=f"{values.size - len(known)} missing, the first in row {row}, column {columns[at].name}",
                repair="fill in the labels",
            )
        return NodeLabels(values.astype(np.uint8), tuple(column.name for column in columns))
    return NodeLabels(values, ())


def _labels_of_numbers(column: ColumnValues) -> NodeLabels:
    values = column.numbers()
    if column.are_integers and values.dtype.kind == "f":
        # Integers of which some are missing are no floats of the user, who need not be told of them.
        return NodeLabels(np.where(np.isnan(values), -1, values).astype(np.int64), ())
    return NodeLabels(values, ())


def _labels_of_words(codes: NDArray[np.int32], words: list[str], where: str) -> NodeLabels:
    unknown = [at for at, word in enumerate(words) if word.strip().lower() in _UNKNOWN]
    if not unknown:
        return NodeLabels(codes, tuple(words))
    count = int(np.isin(codes, unknown).sum())
    warn_about_data(f"the label {words[unknown[0]]!r} of {count:,} nodes of {where} is read as no label")
    table = np.full(len(words) + 1, -1, np.int32)
    kept = [at for at in range(len(words)) if at not in unknown]
    table[kept] = np.arange(len(kept))
    return NodeLabels(table[codes], tuple(words[at] for at in kept))


def _list_rows(table: Table, name: str, column: ArrowArray, row: int, role: str) -> NDArray[Any]:
    from pyarrow import compute, types

    if column.null_count:
        at = int(np.argmin(np.asarray(column.is_valid())))
        raise list_error(table, name, row + at, "no list", role)
    if types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    if (lengths != lengths[0]).any():
        at = int(np.argmax(lengths != lengths[0]))
        raise list_error(table, name, row + at, f"a list of {lengths[at]} after one of {lengths[0]}", role)
    flat = numbers_of_column(table, name, column.flatten(), row, role)
    if flat.dtype.kind == "f" and (missing := np.isnan(flat)).any():
        raise list_error(table, name, row + int(np.argmax(missing)) // max(1, lengths[0]), "a missing value", role)
    return flat.reshape(len(column), -1) if len(flat) else np.empty((len(column), 0))


def list_error(table: Table, name: str, row: int, got: str, role: str) -> InputError:
    """Return the error of a list that is not like the others."""
    return InputError(
        f"{table.locate_row(row)}: the column {shorten_name(name)} cannot be used as {role}",
        needed="a list of numbers in every row, all of one length",
        got=got,
        repair="write lists of one length, without missing values",
    )
