"""Which column of a node table is what: id, label, split, type or a feature."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.splits import SplitRequest
from outgrow.graph.readers.tables.column_names import SKIPPED
from outgrow.graph.readers.tables.column_types import list_names, shorten_name
from outgrow.graph.readers.tables.id_columns import NUMBER
from outgrow.graph.readers.tables.options import NODE_ROLES, TableOptions
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table

ID = ("id", "node", "node_id", "nodeid", "nid", "txid", "tx_id", "name", "paper_id", "user_id", "entity")
LABEL = ("label", "labels", "class", "classes", "y", "target", "node_label")
SPLIT = ("split", "set", "subset", "partition", "fold")
TYPE = ("type", "node_type", "ntype")
MASKS = ("train_mask", "val_mask", "test_mask")
_MASK_SYNONYMS = {"valid_mask": "val_mask", "validation_mask": "val_mask"}
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, kw_only=True)
class NodeRoles:
    """Names of the columns of a node table by their roles.

    Attributes:
        id: Column of ids; None if nodes are numbered by their rows.
        labels: Columns of labels.
        split: Column whose words say to which part of the split a node belongs.
        masks: Column of each of `MASKS` that there is.
        time: Column by which nodes are split, the earliest to train.
        type: Column of node types.
        features: Columns of features, in their order.
        own_time: Column of the times of nodes.
        unread: Columns that are not read, and why.
        types: Arrow type of each column.
    """

    id: str | None
    labels: tuple[str, ...]
    split: str | None
    masks: Mapping[str, str]
    time: str | None
    type: str | None
    features: tuple[str, ...]
    own_time: str | None
    unread: tuple[str, ...]
    types: Mapping[str, DataType]

    def text_types(self, names: Sequence[str]) -> dict[str, DataType]:
        """Return the type that columns of texts among some columns are read as."""
        import pyarrow as pa
        from pyarrow import types

        texts = [name for name in names if has_texts(self.types[name]) and not types.is_dictionary(self.types[name])]
        return dict.fromkeys(texts, pa.large_string())

    def list_small(self) -> list[str]:
        """Return the columns that are read in the first pass: all but features."""
        given = (self.id, *self.labels, self.split, *self.masks.values(), self.time, self.type, self.own_time)
        return list(dict.fromkeys(name for name in given if name is not None))


def find_node_roles(table: Table, options: TableOptions, request: SplitRequest) -> NodeRoles:
    """Find the columns of a node table, by options where these name them, else by their names.

    Args:
        table: The node table; its first rows are read, which tell the types.
        options: Options that name columns.
        request: What is asked for as split.

    Raises:
        InputError: No such column, two that could be one, a column of a type that cannot be used, or no rows.
    """
    import pyarrow as pa

    if not table.has_names:
        raise InputError(
            f"the columns of {table.path} have no names",
            needed="a first line with names, such as id,label,split,x1,x2",
            got=f"{len(table.names)} columns without names",
            repair="add a first line with names",
        )
    columns = dict.fromkeys(table.names)
    if len(columns) < len(table.names):
        raise _unclear_error(table, "each column of another name", "two columns of one name")
    first = _read_first_batch(table)
    types = _column_types(first)
    ids = _find_given(table, options, "id", ID)
    labels = options.label or _one(_find_by_name(table, LABEL, "label"))
    for name in labels:
        validate_choice(f"column (--label) of {table.path}", name, columns)
    split_columns = _find_split(table, request)
    kind = _find_given(table, options, "type", TYPE)
    # Columns of a split that is not asked for are no features either.
    own_time = options.time_column if options.time_column in columns else None
    taken = {ids, *labels, kind, *split_columns.list_all(), own_time}
    named = expand_patterns(table, options.features, "--features")
    # A column of features by name is one of features, whatever else its name might say.
    ids, kind = (None if each in named else each for each in (ids, kind))
    free = [name for name in table.names if name not in taken]
    features = named or _order_numbered([name for name in free if _is_default(types[name], options)])
    if both := [name for name in named if name in labels or name in {split_columns.split, split_columns.time}]:
        raise _unclear_error(table, "a column for one purpose", f"{both[0]} as a feature and for another purpose")
    if options.categorical == "refuse":
        texts = [name for name in dict.fromkeys((*free, *named)) if has_texts(types[name])]
        # Other columns of texts may be long, and are not read once more.
        _refuse_mixed(table, [name for name in texts if 2 * mark_numbers(first.column(name))[0].sum() > len(first)])
    read = {ids, *labels, kind, split_columns.split, split_columns.time, *split_columns.masks.values(), *features}
    read.add(own_time)
    # Bytes may be texts of another encoding, which is said when they are read as texts.
    types |= {name: pa.large_string() for name in read if name is not None and _has_bytes(types[name])}
    unread = tuple(
        shorten_name(name) + ("" if name in taken else _why(types[name])) for name in table.names if name not in read
    )
    return NodeRoles(
        id=ids,
        labels=labels,
        split=split_columns.split,
        masks=split_columns.masks,
        time=split_columns.time,
        type=kind,
        features=tuple(features),
        own_time=own_time,
        unread=unread,
        types=types,
    )


def names_of_roles(options: TableOptions) -> set[str]:
    """Return the names that tell the first line of a text file from rows below it."""
    known = (*ID, *LABEL, *SPLIT, *TYPE, *MASKS, *_MASK_SYNONYMS)
    return {*known, *map(str.title, known), *map(str.upper, known), *options.label, *options.features} | {
        options.columns.get(role, role) for role in NODE_ROLES
    }


def has_texts(kind: DataType) -> bool:
    """Whether a column has texts, also as a dictionary."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return has_texts(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def has_integers(kind: DataType) -> bool:
    """Whether a column has integers or booleans; one without any value may have."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind))


def has_numbers(kind: DataType) -> bool:
    """Whether a column has numbers or booleans; one without any value may have."""
    from pyarrow import types

    return has_integers(kind) or bool(types.is_floating(kind) or types.is_decimal(kind))


def has_number_lists(kind: DataType) -> bool:
    """Whether a column has lists of numbers."""
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(check(kind) for check in lists) and has_numbers(kind.value_type)


def _read_first_batch(table: Table) -> RecordBatch:
    for batch in table.read_batches(table.names):
        if len(batch):
            return batch
    raise InputError(
        f"{table.path} has no rows",
        needed="a row for each node",
        got=f"no rows below the columns {list_names(table.names)}",
        repair="write the table again, or remove it: a type without nodes is left out",
    )


def _has_bytes(kind: DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def mark_numbers(texts: ArrowArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which texts are numbers, and which are empty or missing."""
    import pyarrow as pa
    from pyarrow import compute

    known = compute.fill_null(texts.cast(pa.large_string()), "")
    trimmed = compute.utf8_trim_whitespace(known)
    marks = (np.asarray(compute.match_substring_regex(trimmed, form)) for form in (NUMBER, "^$"))
    numbers, empty = marks
    return numbers, empty


def _refuse_mixed(table: Table, names: Sequence[str]) -> None:
    """Refuse columns of texts most of which are numbers: those of one mistake would be dropped as a whole.

    Raises:
        InputError: There is one, with the first row that has no number.
    """
    import pyarrow as pa

    kinds = dict.fromkeys(names, pa.large_string())
    counts = dict.fromkeys(names, (0, 0, -1))
    row = 0
    for batch in table.read_batches(names, kinds) if names else ():
        for name in names:
            numbers, empty = mark_numbers(batch.column(name))
            others = np.flatnonzero(~numbers & ~empty)
            count, total, first = counts[name]
            first = row + int(others[0]) if first < 0 and len(others) else first
            counts[name] = count + int(numbers.sum()), total + int((~empty).sum()), first
        row += len(batch)
    for name, (count, total, first) in counts.items():
        if first >= 0 and 2 * count > total:
            raise InputError(
                f"{table.locate_row(first)}: the column {shorten_name(name)} has a text among numbers",
                needed="numbers in every row, or texts of which most are no numbers",
                got=f"numbers in {count:,} of {total:,} rows",
                repair="correct the row; or leave the column out: --features COLUMN,...; "
                "or take its values as texts: --categorical onehot",
            )


def _column_types(batch: RecordBatch) -> dict[str, DataType]:
    return {field.name: field.type for field in batch.schema}


def _find_given(table: Table, options: TableOptions, role: str, names: Sequence[str]) -> str | None:
    """Return the column that the options name for a role, or that is called so; ``_`` is none."""
    given = options.columns.get(role)
    if given is not None and given != SKIPPED:
        validate_choice(f"column (--columns {role}) of {table.path}", given, dict.fromkeys(table.names))
    return _find_by_name(table, names, role) if given is None else None if given == SKIPPED else given


def _find_by_name(table: Table, names: Sequence[str], role: str) -> str | None:
    """Return the column whose name is the first of ``names`` that occurs.

    Raises:
        InputError: Two columns could be the label.
    """
    found = {name.strip().lower(): name for name in table.names if name.strip().lower() in names}
    if role == "label" and len(found) > 1:
        raise _unclear_error(
            table,
            "one column of labels",
            f"{len(found)} that could be: {', '.join(map(shorten_name, found.values()))}",
            f"name it: --label {next(iter(found.values()))}, or several, separated by commas",
        )
    return next((found[name] for name in names if name in found), None)


class _SplitColumns(NamedTuple):
    """Columns that say how nodes are split, and those that might but are not asked for."""

    split: str | None
    time: str | None
    masks: Mapping[str, str]
    others: tuple[str, ...]

    def list_all(self) -> set[str]:
        return {name for name in (self.split, self.time, *self.masks.values(), *self.others) if name is not None}


def _find_split(table: Table, request: SplitRequest) -> _SplitColumns:
    masks = _find_masks(table)
    named = _find_by_name(table, SPLIT, "split")
    others = (*masks.values(), *([] if named is None else [named]))
    if request.kind in ("column", "time"):
        option = "--split" if request.kind == "column" else "--split time"
        validate_choice(f"column ({option}) of {table.path}", request.column, dict.fromkeys(table.names))
        is_time = request.kind == "time"
        return _SplitColumns(None if is_time else request.column, request.column if is_time else None, {}, others)
    if request.kind != "given":
        return _SplitColumns(None, None, {}, others)
    return _SplitColumns(None if masks else named, None, masks, others)


def _find_masks(table: Table) -> dict[str, str]:
    known = {mask: mask for mask in MASKS} | _MASK_SYNONYMS
    return {known[name.lower()]: name for name in table.names if name.lower() in known}


def expand_patterns(table: Table, wanted: Sequence[str], option: str) -> list[str]:
    """Return the columns that are named, in their order; ``emb_*`` is all that begin with ``emb_``.

    Raises:
        InputError: No column has such a name.
    """
    found: list[str] = []
    for name in wanted:
        if name not in table.names and any(sign in name for sign in "*?"):
            matches = _order_numbered([each for each in table.names if fnmatchcase(each, name)])
            if not matches:
                validate_choice(f"column ({option}) of {table.path}", name, dict.fromkeys(table.names))
            found += matches
        else:
            validate_choice(f"column ({option}) of {table.path}", name, dict.fromkeys(table.names))
            found.append(name)
    return list(dict.fromkeys(found))


def _order_numbered(names: Sequence[str]) -> list[str]:
    """Return names with those that differ in a number at their end in its order, where the first of them stands."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        groups.setdefault(f"{match[1]}#" if match else f"={name}", []).append((int(match[2]) if match else 0, name))
    return [name for group in groups.values() for _, name in sorted(group)]


def _is_default(kind: DataType, options: TableOptions) -> bool:
    return has_numbers(kind) or has_number_lists(kind) or (has_texts(kind) and options.categorical != "refuse")


def _why(kind: DataType) -> str:
    return " (texts: --categorical onehot or hash reads them)" if has_texts(kind) else ""


def _one(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def _unclear_error(table: Table, needed: str, got: str, repair: str = "rename the columns") -> InputError:
    return InputError(f"the columns of {table.path} are unclear", needed=needed, got=got, repair=repair)
