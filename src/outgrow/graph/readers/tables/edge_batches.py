"""Rows of edge tables in batches, with ids as integers or texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.node_ids import ArrowArray, TextArrays
from outgrow.graph.readers.conversions import to_weights
from outgrow.graph.readers.tables.edge_features import EdgeFeatureReader
from outgrow.graph.readers.tables.edge_roles import EdgeRoles
from outgrow.graph.readers.tables.id_columns import (
    choose_id_types,
    id_error,
    long_id_error,
    missing_value_error,
    require_number_type,
    to_integer_ids,
    unmatched_quote_error,
)
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table
from outgrow.graph.readers.tables.time_columns import TimeColumn

_LONGEST_ID = (1 << 16) - 1


class EdgeBatch(NamedTuple):
    """Some edges of a table, in its order.

    Attributes:
        src: ``[n]`` Arrow array of int64 or large strings, without nulls.
        dst: ``[n]`` likewise.
        relation: ``[n]`` Arrow array of int64 or large strings; None if edges have no type.
        weight: ``[n]`` float32; None if edges have no weight.
        features: ``[n, C]`` as `EdgeFeatureReader.encode_rows` returns them; None if edges have no features.
        time: ``[n]`` int64; None if edges have no times.
        first_row: Number of the first of these rows in the table, from 0.
    """

    src: ArrowArray
    dst: ArrowArray
    relation: ArrowArray | None
    weight: NDArray[np.float32] | None
    features: NDArray[Any] | None
    time: NDArray[np.int64] | None
    first_row: int


def read_edge_batches(
    table: Table,
    roles: EdgeRoles,
    id_types: Mapping[str, DataType] | None = None,
    features: EdgeFeatureReader | None = None,
    times: TimeColumn | None = None,
) -> Iterator[EdgeBatch]:
    """Yield the edges of a table, in batches of bounded size.

    Args:
        table: The table.
        roles: Which column is what.
        id_types: Type of ``src``, ``dst`` and ``relation``, ``pa.int64()`` or ``pa.large_string()``; None for what the
            first rows look like, see `choose_id_types`.
        features: Reader of the columns of features; None to pass over these.
        times: The column of times; None to pass over it.

    Raises:
        InputError: A value of another type or none, with its line or row; or a broken file.
    """
    import pyarrow as pa

    columns = roles.list_columns()
    if roles.weight is not None:
        require_number_type(table, roles.weight)
    chosen = {**choose_id_types(table, columns), **dict(id_types or {})}
    row = 0
    others = {} if features is None else dict(features.all_types)
    others |= {} if times is None else {times.name: times.read_type}
    for batch in _read_rows(table, columns, chosen, others):
        ids = {}
        for role, values in zip(columns, batch.columns, strict=False):
            where = _Place(table, columns[role], row)
            if role == "weight":
                weight = _to_numbers(values, where)
            elif chosen[role] == pa.int64():
                ids[role] = _to_integers(values, where, is_relation=role == "relation")
            else:
                ids[role] = _to_texts(values, where)
        found = weight if "weight" in columns else None
        rows = None if features is None else features.encode_rows(batch, row)
        time = None if times is None else times.convert_rows(batch.column(times.name), row)
        yield EdgeBatch(ids["src"], ids["dst"], ids.get("relation"), found, rows, time, row)
        row += len(batch)


def join_batches(batches: Iterator[EdgeBatch], least: int = 1 << 18) -> Iterator[EdgeBatch]:
    """Yield the same edges in batches of at least so many, but for the last one.

    Ids are looked up in tables that may lie in files, which each batch visits from their start to their end.
    """
    held = list[EdgeBatch]()
    for batch in batches:
        held.append(batch)
        if sum(len(each.src) for each in held) >= least:
            yield _join(held)
            held = []
    if held:
        yield _join(held)


def _join(batches: list[EdgeBatch]) -> EdgeBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    src, dst, relation = (
        None if parts[0] is None else pa.concat_arrays(parts)
        for parts in zip(*((each.src, each.dst, each.relation) for each in batches), strict=True)
    )
    weight, features, time = (
        None if parts[0] is None else np.concatenate(parts)
        for parts in zip(*((each.weight, each.features, each.time) for each in batches), strict=True)
    )
    return EdgeBatch(src, dst, relation, weight, features, time, batches[0].first_row)


class _Place(NamedTuple):
    """Where values come from: a column, from a row on."""

    table: Table
    name: str
    row: int

    def locate(self, at: int) -> str:
        return self.table.locate_row(self.row + at)


def _read_rows(
    table: Table, columns: Mapping[str, str], chosen: Mapping[str, DataType], others: Mapping[str, DataType | None]
) -> Iterator[RecordBatch]:
    """Yield rows; integers that the parser does not take for such, as ``1.0``, come as texts or floats."""
    import pyarrow as pa

    names = [*columns.values(), *others]
    integers = [columns[role] for role, kind in chosen.items() if kind == pa.int64()]
    own = {name: kind for name in names if (kind := table.find_type(name)) and pa.types.is_floating(kind)}
    types = {name: pa.float64() if role == "weight" else chosen[role] for role, name in columns.items()}
    types |= {name: kind for name, kind in own.items() if name in integers}
    types |= {name: kind for name, kind in others.items() if kind is not None}
    table.refuse_leading_zeros(integers)
    rows = 0
    try:
        for batch in table.read_batches(names, types):
            yield batch
            rows += len(batch)
    except InputError:
        if not integers or integers == [*own]:
            raise
    else:
        return
    # All rows again, as texts: these are converted one by one, and the first that is no integer is found.
    types |= dict.fromkeys(integers, pa.large_string())
    passed = 0
    for batch in table.read_batches(names, types):
        fresh = batch.slice(max(0, rows - passed))
        passed += len(batch)
        if len(fresh):
            yield fresh


def _to_numbers(values: ArrowArray, where: _Place) -> NDArray[np.float32]:
    _require_values(values, where)
    return to_weights(values.to_numpy(zero_copy_only=False), "weight of the edges")


def _to_integers(values: ArrowArray, where: _Place, *, is_relation: bool) -> ArrowArray:
    import pyarrow as pa

    if values.type != pa.int64():
        made, bad = to_integer_ids(values)
        if bad >= 0:
            raise id_error(where.locate(bad), where.name, values[bad].as_py(), relabel=not is_relation)
        return made
    _require_values(values, where)
    return values


def _to_texts(values: ArrowArray, where: _Place) -> ArrowArray:
    import pyarrow.compute as pc

    _require_values(values, where)
    texts = TextArrays.from_arrow(values)
    if bool((texts.offsets[1:] == texts.offsets[:-1]).any()):
        raise id_error(
            where.locate(int((texts.offsets[1:] == texts.offsets[:-1]).argmax())), where.name, "", relabel=False
        )
    if len(texts) and int(np.diff(texts.offsets).max()) > _LONGEST_ID:
        raise long_id_error(where.locate(int(np.diff(texts.offsets).argmax())), where.name, _LONGEST_ID)
    # No id has a line end: where one seems to have, quotes around it do not match.
    if b"\n" in texts.data[texts.offsets[0] : texts.offsets[-1]].tobytes():
        at = int(np.asarray(pc.match_substring(values, "\n")).argmax())
        raise unmatched_quote_error(where.locate(at), where.name, values[at].as_py())
    return values


def _require_values(values: ArrowArray, where: _Place) -> None:
    if values.null_count:
        at = int(np.argmin(np.asarray(values.is_valid())))
        raise missing_value_error(where.locate(at), where.name)
