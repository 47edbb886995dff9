"""Columns of ids: whether they hold integers or texts, and their values as one of both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.column_types import is_number, shorten_name
from outgrow.graph.readers.tables.table import DataType, Table

_INTEGER = r"^[ \t]*-?(?:0|[1-9][0-9]*)[ \t]*$"
NUMBER = r"^[ \t]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*$"
"""Texts that are numbers, with blanks around them."""
_LEADING_ZERO = re.compile(r"[ \t]*[+-]?0[0-9]")
_SAMPLE_ROWS = 10_000
_MOST_DIGITS = 19
_MOST_EXACT_FLOAT = 2**53


def choose_id_types(table: Table, columns: Mapping[str, str]) -> dict[str, DataType]:
    """Return the type of each column of ids and relations: int64 or large string.

    Of a text file the first rows decide: a column is one of integers if most of their values are, or if all are
    numbers, such as ``1.0``, none of which begins with a 0 that means something.

    Args:
        table: The table.
        columns: Column of each role; weights are left out.

    Raises:
        InputError: Values of a type that ids cannot have.
    """
    import pyarrow as pa

    names = {role: name for role, name in columns.items() if role != "weight"}
    chosen = {
        role: _choose_by_type(table, role, name, kind)
        for role, name in names.items()
        if (kind := table.find_type(name))
    }
    open_names = {role: name for role, name in names.items() if role not in chosen}
    if not open_names:
        return chosen
    text = dict.fromkeys(open_names.values(), pa.large_string())
    first: list[Any] = []
    for batch in table.read_batches([*open_names.values()], text):
        first.append(batch)
        # A number of rows of its own: what is found must not depend on the size of blocks.
        if sum(map(len, first)) >= _SAMPLE_ROWS:
            break
    for at, role in enumerate(open_names):
        values = pa.chunked_array([batch.column(at) for batch in first], pa.large_string())[:_SAMPLE_ROWS]
        are_integers = not len(values) or _look_like_integers(values.combine_chunks())
        chosen[role] = pa.int64() if are_integers else pa.large_string()
    return chosen


def _choose_by_type(table: Table, role: str, name: str, kind: DataType) -> DataType:
    import pyarrow as pa

    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return pa.int64()
    # Older writers of parquet do not say that bytes are texts.
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    if kind in texts:
        return pa.large_string()
    raise _type_error(table, name, f"integers or texts as {role}", kind)


def require_number_type(table: Table, name: str) -> None:
    """Refuse a column of weights that holds no numbers, before it is read: other values can be of any size.

    Raises:
        InputError: The file says that the column is of another type.
    """
    import pyarrow as pa

    kind = table.find_type(name)
    if kind is not None and not (is_number(kind) or pa.types.is_decimal(kind)):
        raise _type_error(table, name, "numbers as weights", kind)


def _type_error(table: Table, name: str, needed: str, kind: DataType) -> InputError:
    return InputError(
        f"{table.path}: the column {shorten_name(name)} cannot be used",
        needed=needed,
        got=f"values of type {str(kind)[:80]}",
        repair="name another column, or write the file again",
    )


def _look_like_integers(values: ArrowArray) -> bool:
    import pyarrow.compute as pc

    number = np.asarray(pc.match_substring_regex(values, NUMBER))
    if np.asarray(pc.match_substring_regex(values, "^" + _LEADING_ZERO.pattern))[number].any():
        return False
    whole = np.asarray(pc.match_substring_regex(values, _INTEGER))
    return bool(number.all()) or 2 * int(whole.sum()) > len(whole)


def to_integer_ids(values: ArrowArray) -> tuple[ArrowArray, int]:
    """Return texts or floats as int64 where they are whole numbers, as ``7``, ``7.0`` and ``7e0`` are.

    Returns:
        ``[n]`` int64, and the place of the first that is none, or -1.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(values.type):
        numbers = values.fill_null(np.nan).to_numpy(zero_copy_only=False)
        bad = np.flatnonzero(~((numbers == np.rint(numbers)) & (np.abs(numbers) <= _MOST_EXACT_FLOAT)))
        clean = np.where(np.isin(np.arange(len(numbers)), bad), 0, numbers) if len(bad) else numbers
        return pa.array(clean.astype(np.int64)), int(bad[0]) if len(bad) else -1
    plain = pc.replace_substring_regex(
        pc.utf8_trim(values.cast(pa.large_string()), " \t"), r"^\+?(.*?)(?:\.0*)?$", r"\1"
    )
    is_plain = np.asarray(pc.match_substring_regex(plain, r"^-?(?:0|[1-9][0-9]{0,17})$").fill_null(False))
    if is_plain.all():
        return plain.cast(pa.int64()), -1
    made = np.zeros(len(values), np.int64)
    made[is_plain] = plain.filter(pa.array(is_plain)).cast(pa.int64()).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(~is_plain):
        number = _parse_integer(values[int(at)].as_py())
        if number is None:
            return pa.array(made), int(at)
        made[at] = number
    return pa.array(made), -1


def _parse_integer(text: str | None) -> int | None:
    # "007" is not 7: which texts are numbers is decided where a column begins.
    if _LEADING_ZERO.match(text or ""):
        return None
    try:
        number = Decimal(text or "")
    except InvalidOperation:
        return None
    # Of 1e999999999 not even the digits can be written down.
    if not number.is_finite() or number.adjusted() >= _MOST_DIGITS or number != number.to_integral_value():
        return None
    return int(number) if -(2**63) <= number < 2**63 else None


def id_error(where: str, name: str, value: Any, *, relabel: bool) -> InputError:
    """Return the error of a value that is no id in a column of integers, or of none.

    Args:
        where: Line or row.
        name: Name of the column.
        value: The value; None or empty if there is none.
        relabel: Whether ids of the column may be taken for texts.
    """
    if value is None or value == "":
        return missing_value_error(where, name)
    as_text = "; if ids are names, give --relabel (relabel=True), which keeps them as texts" if relabel else ""
    return InputError(
        f"{where}, column {shorten_name(name)}: not an integer as the values before",
        needed="integers that fit 64 bits in every row",
        got=repr(str(value)[:80]),
        repair=f"correct the value{as_text}",
    )


def missing_value_error(where: str, name: str) -> InputError:
    """Return the error of a row without a value."""
    return InputError(
        f"{where}, column {shorten_name(name)}: no value",
        needed="a value in every row",
        got="none",
        repair="complete or drop the row",
    )


def long_id_error(where: str, name: str, limit: int) -> InputError:
    """Return the error of an id that is longer than any name."""
    return InputError(
        f"{where}, column {shorten_name(name)}: longer than any id",
        needed=f"ids of at most {limit:,} bytes",
        got="more",
        repair="name another column as src or dst, or shorten the ids",
    )


def unmatched_quote_error(where: str, name: str, value: str) -> InputError:
    """Return the error of an id with line ends."""
    return InputError(
        f"{where}, column {shorten_name(name)}: an id of several lines",
        needed="ids without line ends",
        got=repr(value[:80]),
        repair='close the quote; one that belongs to a value is written as """" in a quoted value',
    )
