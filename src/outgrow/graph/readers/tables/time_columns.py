"""Columns of times in tables of nodes and edges: numbers, dates, times of day, or texts of these."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.source import Ids
from outgrow.graph.readers.tables.column_types import list_names, shorten_name
from outgrow.graph.readers.tables.node_roles import has_integers, has_numbers, has_texts
from outgrow.graph.readers.tables.table import DataType, Table
from outgrow.graph.readers.times import CALENDAR_UNIT, NO_TIME

NUMBERS, DATES = "numbers", "dates"
_LARGEST = float(1 << 63)


class Clock:
    """What the times of a graph are: numbers of the user's own unit, or dates. The first column with values says.

    Attributes:
        kind: `NUMBERS` or `DATES`; None before.
        where: The column, or the graph, that said so.
    """

    def __init__(self, kind: str | None = None, where: str = "") -> None:
        self.kind = kind
        self.where = where

    @property
    def has_dates(self) -> bool:
        """Whether times are dates."""
        return self.kind == DATES

    def require_kind(self, kind: str, where: str) -> None:
        """Check that a column has times of the same kind as those before.

        Raises:
            InputError: It has others, which cannot be compared.
        """
        if self.kind is None:
            self.kind, self.where = kind, where
        if kind != self.kind:
            raise InputError(
                f"the times of {where} cannot be compared with those of {self.where}",
                needed=f"{self.kind} in both",
                got=f"{kind} in {where}",
                repair="convert one of the columns",
            )


@final
class TimeColumn:
    """A column of times.

    Args:
        table: The table.
        name: The column.
        clock: What the times of the graph are; tables of one graph share it.
    """

    def __init__(self, table: Table, name: str, clock: Clock) -> None:
        self._table = table
        self.name = name
        self.clock = clock

    @property
    def read_type(self) -> DataType | None:
        """Type to read the column as: texts where the table does not say; None for its own."""
        import pyarrow as pa

        kind = self._table.find_type(self.name)
        return pa.large_string() if kind is None or has_texts(kind) else None

    def convert_rows(self, column: ArrowArray, first_row: int) -> Ids:
        """Return ``[n]`` int64 times; `NO_TIME` for missing values and empty texts.

        Args:
            column: The values of some rows.
            first_row: Number of the first of these rows in the table.

        Raises:
            InputError: A value that is no time, with its line or row; or times of another kind than others.
        """
        import pyarrow as pa
        from pyarrow import compute, types

        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if has_texts(column.type):
            trimmed = compute.utf8_trim_whitespace(column.cast(pa.large_string()))
            column = compute.if_else(compute.equal(trimmed, pa.scalar("")), None, trimmed)
            return self._convert_texts(column, first_row)
        if types.is_date(column.type) or types.is_timestamp(column.type):
            self._require_kind(DATES, column)
            return _to_numbers(column.cast(_timestamp(column.type.tz if types.is_timestamp(column.type) else None)))
        if not has_numbers(column.type):
            raise self._value_error(first_row, f"values of type {str(column.type)[:80]}")
        self._require_kind(NUMBERS, column)
        if has_integers(column.type):
            return _to_numbers(self._cast_integers(column, first_row))
        return self._convert_floats(column.cast(pa.float64()), first_row)

    def _convert_texts(self, texts: ArrowArray, first_row: int) -> Ids:
        import pyarrow as pa

        if self.clock.kind != DATES:
            try:
                whole = texts.cast(pa.int64())
            except pa.ArrowInvalid:
                whole = None
            if whole is not None:
                self._require_kind(NUMBERS, texts)
                return _to_numbers(whole)
        # With a zone or without; of both in one column, the first that is in the other form is found below.
        for zone in (None, "UTC"):
            try:
                found = texts.cast(_timestamp(zone))
            except pa.ArrowInvalid:
                continue
            self._require_kind(DATES, texts)
            return _to_numbers(found)
        try:
            numbers = texts.cast(pa.float64())
        except pa.ArrowInvalid:
            at = _find_bad_text(texts)
            raise self._value_error(first_row + at, repr(texts[at].as_py()[:80])) from None
        self._require_kind(NUMBERS, texts)
        return self._convert_floats(numbers, first_row)

    def _convert_floats(self, column: ArrowArray, first_row: int) -> Ids:
        values: NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
        known = ~np.isnan(values)
        bad = known & ((values != np.floor(values)) | (np.abs(values) >= _LARGEST))
        if bad.any():
            raise self._value_error(first_row + int(bad.argmax()), f"{values[bad.argmax()]}")
        return np.where(known, np.where(known, values, 0).astype(np.int64), NO_TIME)

    def _cast_integers(self, column: ArrowArray, first_row: int) -> ArrowArray:
        import pyarrow as pa

        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise self._value_error(first_row, str(error).splitlines()[0][:80]) from error

    def _require_kind(self, kind: str, column: ArrowArray) -> None:
        # Without any value a column says nothing.
        if column.null_count < len(column):
            self.clock.require_kind(kind, f"{self._table.path.name}, column {shorten_name(self.name)}")

    def _value_error(self, row: int, got: str) -> InputError:
        return InputError(
            f"{self._table.locate_row(row)}: the column {shorten_name(self.name)} has no time",
            needed="whole numbers, dates such as 2024-05-01, or times of day such as 2024-05-01 12:30:00, all of one "
            "form; or nothing",
            got=got,
            repair="correct the row, or convert the column to numbers that grow with time",
        )


def missing_column_error(tables: str, name: str, columns: list[str]) -> InputError:
    """Return the error of a column of times that no table has."""
    return InputError(
        f"{tables} has no column {shorten_name(name)} of times",
        needed=f"one of {list_names(columns)}",
        got=f"--time-column {name}",
        repair="correct the name",
    )


def _timestamp(zone: str | None) -> DataType:
    import pyarrow as pa

    return pa.timestamp(CALENDAR_UNIT, tz=zone)


def _to_numbers(column: ArrowArray) -> Ids:
    import pyarrow as pa
    from pyarrow import compute

    made: Ids = compute.fill_null(column.cast(pa.int64()), NO_TIME).to_numpy(zero_copy_only=False)
    return made


def _find_bad_text(texts: ArrowArray) -> int:
    """Return the first text that is not of the form of the first one, or no time at all."""
    import pyarrow as pa

    def casts(text: ArrowArray, kind: DataType) -> bool:
        try:
            text.cast(kind)
        except pa.ArrowInvalid:
            return False
        return True

    kinds = [pa.float64(), _timestamp(None), _timestamp("UTC")]
    for at in range(len(texts)):
        one = texts.slice(at, 1)
        fitting = [kind for kind in kinds if casts(one, kind)]
        if not fitting:
            return at
        kinds = fitting
    return 0
