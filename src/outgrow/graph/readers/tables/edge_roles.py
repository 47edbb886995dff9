"""Which columns of an edge table are source, destination, relation, weight and features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.readers.tables.column_names import ROLES, SKIPPED, assign_column_roles, is_weight_like
from outgrow.graph.readers.tables.column_types import list_names, shorten_name
from outgrow.graph.readers.tables.edge_features import find_edge_features
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class EdgeRoles:
    """Which column of an edge table is what.

    Attributes:
        src: Column of sources.
        dst: Column of destinations.
        relation: Column of relations; None if edges have no type.
        weight: Column of weights; None if edges have none.
        unread: Columns that are not read.
        undirected: Column of Gephi, one of those, which says of edges that they go both ways; None if there is none.
        features: Columns of features, and whether each is told to be one of categories.
        time: Column of times; None if edges have none.
    """

    src: str
    dst: str
    relation: str | None = None
    weight: str | None = None
    unread: tuple[str, ...] = ()
    undirected: str | None = None
    features: Mapping[str, bool] = field(default_factory=dict)
    time: str | None = None

    def list_columns(self) -> dict[str, str]:
        """Return the column of each role that there is, in the order of `ROLES`."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


def columns_by_role(options: TableOptions) -> dict[str, str]:
    """Return the columns that options give, by role; numbers of columns as texts.

    Raises:
        InputError: The columns are no mapping, or there is no such role.
    """
    columns: object = options.columns
    if not isinstance(columns, Mapping):
        raise InputError(
            "the columns cannot be read",
            needed='a column for each role, such as {"src": "payer", "dst": "payee"}, or {"src": 0, "dst": 2}',
            got=type(columns).__name__,
            repair="give a dictionary",
        )
    for role in columns:
        validate_choice("role of a column", role, dict.fromkeys(ROLES))
    return {role: str(name) for role, name in columns.items()}


def find_edge_roles(table: Table, options: TableOptions | None = None) -> EdgeRoles:
    """Return what the columns of an edge table are: as the options say, or by their names.

    Raises:
        InputError: Two columns may have one role, none may be source or destination, an option names no column; or
            three columns or more have no names.
    """
    given = {} if options is None else columns_by_role(options)
    taken = {role: _find_column(table, role, name) for role, name in given.items() if name != SKIPPED}
    twice = [name for name in taken.values() if [*taken.values()].count(name) > 1]
    if twice:
        raise _unclear_error(table, f"two roles for {twice[0]}")
    features = {} if options is None else find_edge_features(table, options.edge_features)
    time = None if options is None else find_time_column(table, options.time_column)
    if both := [name for name in (*taken.values(), time) if name in features]:
        raise _unclear_error(table, f"{both[0]} as a feature and for another purpose")
    if time in taken.values():
        raise _unclear_error(table, f"{time} as times and for another purpose")
    # A column of features or times by name is one of these, whatever else its name might say.
    free = [name for name in table.names if name not in {*taken.values(), *features, time}]
    if table.has_names:
        named = assign_column_roles(free)
    elif {"src", "dst"} <= given.keys():
        named = {}
    elif len(table.names) == 2 and not given:
        named = {"src": ["0"], "dst": ["1"]}
    else:
        raise _unnamed_error(table)
    for role in ROLES:
        names = [] if role in given else named.get(role, [])
        if len(names) > 1:
            raise _unclear_error(table, f"two columns for {role}: {', '.join(map(shorten_name, names))}")
        if names:
            taken[role] = names[0]
    directions = _read_directions(table, taken["relation"]) if "relation" in {*taken} - {*given} else set()
    undirected = taken["relation"] if directions - {"directed"} else None
    if directions:
        del taken["relation"]
    if missing := [role for role in ("src", "dst") if role not in taken]:
        raise _unclear_error(table, f"no column for {' or '.join(missing)}")
    unread = [name for name in table.names if name not in {*taken.values(), *features, time}]
    return EdgeRoles(**taken, unread=tuple(unread), undirected=undirected, features=features, time=time)


def _read_directions(table: Table, name: str) -> set[str]:
    """Return what Gephi's column ``Type`` says of the first edges; nothing if a column is not this one."""
    import pyarrow as pa

    if name.lower() != "type" or table.find_type(name) not in (None, pa.string(), pa.large_string()):
        return set()
    first = next(iter(table.read_batches([name], {name: pa.large_string()})), None)
    found = set() if first is None else {str(value).lower() for value in first.column(0).unique().to_pylist()}
    return found if found <= {"directed", "undirected", "mixed"} else set()


def find_time_column(table: Table, name: str) -> str | None:
    """Return the column of times, by its name or number; None if the table has none, or none is wanted."""
    if not name or name in table.names:
        return name or None
    numbered = not table.has_names and name.isdecimal() and int(name) < len(table.names)
    return table.names[int(name)] if numbered else None


def _find_column(table: Table, role: str, name: str) -> str:
    if name in table.names:
        return name
    if name.isdecimal() and int(name) < len(table.names):
        return table.names[int(name)]
    raise _unclear_error(table, f"no column {shorten_name(name)}, which was to be {role}")


def _unclear_error(table: Table, got: str) -> InputError:
    maybe = next((name for name in table.names if is_weight_like(name)), None)
    more = f",weight={shorten_name(maybe)}" if maybe else ""
    return InputError(
        f"the columns of {table.path} are unclear",
        needed="one column of sources and one of destinations; optionally one of relations and one of weights",
        got=f"{got} among {list_names(table.names)}",
        repair=f"name them: --columns src=COLUMN,dst=COLUMN{more} (columns={{...}} in Python)",
    )


def _unnamed_error(table: Table) -> InputError:
    width = len(table.names)
    ways = {
        1: "give a file with two columns",
        3: "give --columns src=0,dst=1,weight=2; of triples src=0,dst=2,relation=1; or src=0,dst=1 to leave one out",
    }
    return InputError(
        f"the meaning of the columns of {table.path} is unclear",
        needed="two columns, or names in a first line, or --columns",
        got=f"{width} columns without names",
        repair=ways.get(width, "give --columns src=0,dst=1, with the numbers of the columns from 0"),
    )
