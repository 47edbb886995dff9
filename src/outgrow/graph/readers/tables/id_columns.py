"""Columns of ids: whether they hold integers or texts."""

from __future__ import annotations

from collections.abc import Mapping

from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.table import DataType, Table

_INTEGER = r"^\s*-?(0|[1-9][0-9]*)\s*$"


def choose_id_types(table: Table, columns: Mapping[str, str]) -> dict[str, DataType]:
    """Return the type of each column of ids: int64 if its first values are integers, or most of them, else large string.

    Args:
        table: The table.
        columns: Column of each role; weights are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = {role: name for role, name in columns.items() if role != "weight"}
    text = pa.large_string()
    first = next(iter(table.read_batches([*names.values()], dict.fromkeys(names.values(), text))), None)
    chosen: dict[str, DataType] = {}
    for at, role in enumerate(names):
        whole = 0 if first is None else pc.sum(pc.match_substring_regex(first.column(at), _INTEGER)).as_py() or 0
        chosen[role] = pa.int64() if first is None or 2 * whole > len(first) or not len(first) else text
    return chosen


def to_id_array(values: ArrowArray, kind: DataType) -> ArrowArray:
    """Return ids as an array of a type."""
    return values if values.type == kind else values.cast(kind)
