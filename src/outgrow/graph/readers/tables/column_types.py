"""Types of columns of tables."""

from __future__ import annotations

from collections.abc import Sequence

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.table import DataType, Table

_SHOWN = 20


def unify_types(one: DataType, other: DataType) -> DataType:
    """Return a type that holds the values of two: of integers and fractions floats, of all that differs texts."""
    import pyarrow as pa

    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        schemas = [pa.schema([("", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return pa.large_string()


def is_number(kind: DataType | None) -> bool:
    """Whether a type is one of numbers; None is not."""
    import pyarrow as pa

    return kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def describe_type(kind: DataType) -> str:
    """Return what values of a type are called in messages."""
    import pyarrow as pa

    if pa.types.is_integer(kind):
        return f"integers of {kind.bit_width} bits"
    return "numbers" if pa.types.is_floating(kind) else f"values of type {kind}"


def shorten_name(name: str) -> str:
    """Return the beginning of a name, escaped for an error message."""
    return repr(name[:40])[1:-1]


def list_names(names: Sequence[str]) -> str:
    """Return the first names of columns, for a message."""
    shown = ", ".join(map(shorten_name, names[:_SHOWN]))
    return f"{shown}{', ...' if len(names) > _SHOWN else ''}"


def column_name_error(table: Table, name: str) -> InputError:
    """Return the error of a name that no column has, or several have."""
    return InputError(
        f"the columns of {table.path} are unclear",
        needed=f"one column {shorten_name(name)}",
        got=f"{table.names.count(name) or 'none'} among {list_names(table.names)}",
        repair="give the name of a column, or rename columns",
    )
