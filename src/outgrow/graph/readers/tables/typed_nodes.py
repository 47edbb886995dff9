"""The table of one node type: which columns it has, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.node_parts import NodePart, part_error
from outgrow.graph.readers.source import LazyMatrix
from outgrow.graph.readers.splits import Parts, parse_split
from outgrow.graph.readers.tables.feature_scaling import FeatureScaling, scale_features
from outgrow.graph.readers.tables.node_roles import ID, TYPE, find_node_roles
from outgrow.graph.readers.tables.node_table import NodeTable, read_node_table
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.table_graph import append_rows, append_unknown_labels
from outgrow.graph.readers.tables.table_views import SelectedTable
from outgrow.graph.readers.tables.time_columns import Clock
from outgrow.graph.readers.tables.typed_ids import TypedIds
from outgrow.graph.readers.times import NO_TIME

ROW_COUNT = "row count"
"""Name of a column that is read for the number of its rows alone."""
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class NodeTypeTable:
    """The table of one node type, and what its columns are.

    Attributes:
        name: Name of the type.
        table: The table.
        options: ``label``, ``features``, ``time_column``, ``categorical``, ``split`` and ``split_seed`` apply.
        scaling: What becomes of columns of features.
        split_ids: Ids of the nodes of a part of the split, which comes from files; empty for what the table says.
        categories: Columns of features that are categories; None if ``options`` say so of all columns of texts.
        are_numbers: Whether labels are said to be numbers.
    """

    name: str
    table: Table
    options: TableOptions = field(default_factory=TableOptions)
    scaling: Mapping[str, FeatureScaling] = field(default_factory=dict)
    split_ids: Mapping[str, ArrowArray] = field(default_factory=dict)
    categories: frozenset[str] | None = None
    are_numbers: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class TypedNodeTable:
    """What the table of a node type has.

    Attributes:
        name: Name of the type.
        ids: The ids of its nodes.
        part: Its features, labels and split.
        read: What was read, from which column.
        unread: Columns that were not read.
    """

    name: str
    ids: TypedIds
    part: NodePart
    read: tuple[tuple[str, str], ...]
    unread: tuple[str, ...]

    def make_part(self, count: int) -> NodePart:
        """Return the nodes of the type, with others whose features are 0, without a label and in no part of the split.

        Args:
            count: Number of nodes with the others.
        """
        more = count - (self.part.count or 0)
        if not more:
            return self.part
        features, labels = self.part.features, self.part.labels
        rows = None if features is None else append_rows(features, more)
        labels = None if labels is None else append_unknown_labels(labels, more)
        train, val, test = (_pad_mask(mask, more) for mask in self.part.split)
        return replace(
            self.part,
            count=count,
            features=np.asarray(rows) if isinstance(rows, LazyMatrix) else rows,
            labels=labels,
            split=(train, val, test),
            time=None if self.part.time is None else np.append(self.part.time, np.full(more, NO_TIME)),
        )


def read_typed_nodes(
    given: NodeTypeTable, *, scratch: Path | None, memory_bytes: int | None, clock: Clock | None = None
) -> TypedNodeTable:
    """Read the table of a node type.

    Args:
        given: The table.
        scratch: Folder of files for what exceeds the memory; None to keep all in memory.
        memory_bytes: Bytes of memory that ids may take before they lie in files.
        clock: What the times of the graph are; None if this table says.

    Raises:
        InputError: As `read_node_table`; or texts among features that are said to be numbers.
    """
    table, left_out = _view_columns(given)
    options = _choose_options(given, table)
    made = read_node_table(table, options, scratch=scratch, memory_bytes=memory_bytes, clock=clock)
    _refuse_texts(given, made)
    if made.encoder is None:
        ids = TypedIds.number_rows(made.num_nodes, scratch, memory_bytes)
    else:
        ids = TypedIds(made.encoder)
    # Features of several types are joined in memory.
    features = np.asarray(made.features) if isinstance(made.features, LazyMatrix) else made.features
    return TypedNodeTable(
        name=given.name,
        ids=ids,
        part=NodePart(
            name=given.name,
            count=made.num_nodes,
            features=scale_features(features, made.columns, given.scaling),
            labels=made.labels,
            class_names=made.class_names,
            split=_find_parts(given, ids) if given.split_ids else _stack_splits(made),
            are_numbers=given.are_numbers,
            time=made.time,
        ),
        read=made.read,
        unread=(*(name for name in made.unread if not name.startswith(ROW_COUNT)), *left_out),
    )


def _view_columns(given: NodeTypeTable) -> tuple[Table, tuple[str, ...]]:
    """Return the table with its ids in a column that is found by name, and without a column of types."""
    table = given.table
    if not table.has_names:
        return table, ()
    lower = {name.lower(): name for name in table.names}
    own = find_id_column(table, given.name)
    used = {*given.options.label, *given.options.features}
    renamed = {}
    if own is not None and own not in used and not any(name in lower for name in ID):
        renamed = {own: "id"}
    # The type is that of the table, so that a column of types says nothing new or something else.
    left_out = tuple(lower[name] for name in TYPE if name in lower and lower[name] not in used)
    if not renamed and not left_out:
        return table, ()
    columns = {renamed.get(name, name): name for name in table.names if name not in left_out}
    return SelectedTable(table, columns), left_out


def _choose_options(given: NodeTypeTable, table: Table) -> TableOptions:
    """Return the options without what only tables of other types have: columns, and a split where labels are none."""
    options = given.options
    label = tuple(name for name in options.label if name in table.names)
    features = tuple(name for name in options.features if any(fnmatchcase(each, name) for each in table.names))
    options = replace(options, label=label, features=features, columns={}, split_index=0)
    if options.split:
        request = parse_split(options.split, options.split_seed)
        roles = find_node_roles(table, replace(options, split=""), parse_split(""))
        fits = roles.labels if request.kind == "shares" else request.column in table.names
        options = replace(options, split=options.split if fits else "")
    return options


def find_id_column(table: Table, kind: str) -> str | None:
    """Return the column of a table that names nodes of a type: ``user_id``, ``userid`` or ``user``, in any case."""
    lower = {name.lower(): name for name in table.names}
    kind = kind.lower()
    return next((lower[name] for name in (f"{kind}_id", f"{kind}id", kind) if name in lower), None)


def check_columns(tables: Sequence[NodeTypeTable], options: TableOptions) -> None:
    """Refuse columns that options name and no table has.

    Raises:
        InputError: There is such a column.
    """
    names = {name for each in tables for name in each.table.names}
    for option, wanted in (("label", options.label), ("features", options.features)):
        for name in wanted:
            if not any(fnmatchcase(each, name) for each in names):
                raise InputError(
                    f"no table of nodes has the column {name}",
                    needed=f"columns of the tables: {', '.join(sorted(names)[:20])}",
                    got=f"--{option} {name}",
                    repair="correct the name",
                )


def _refuse_texts(given: NodeTypeTable, made: NodeTable) -> None:
    if given.categories is None:
        return
    texts = [each.name for each in made.columns if each.texts is not None and each.name not in given.categories]
    if texts:
        raise part_error(
            f"features of {given.name}",
            "columns of numbers, or the transform to_categorical",
            f"texts in {', '.join(texts[:_SHOWN])}",
            'give "transform": {"name": "to_categorical"} for them',
        )


def _stack_splits(made: NodeTable) -> Parts:
    """Return the splits as masks of several columns, or the only one as it is."""
    if len(made.splits) < 2:
        return made.splits[0] if made.splits else (None, None, None)
    train, val, test = (_stack_masks([parts[at] for parts in made.splits], made.num_nodes) for at in range(3))
    return train, val, test


def _stack_masks(parts: Sequence[NDArray[Any] | None], count: int) -> NDArray[np.bool_]:
    masks = np.zeros((count, len(parts)), bool)
    for column, part in enumerate(parts):
        if part is not None:
            masks[part, column] = True
    return masks


def _pad_mask(mask: NDArray[Any] | None, more: int) -> NDArray[Any] | None:
    if mask is None or mask.dtype != bool:
        return mask
    return np.concatenate([mask, np.zeros((more, *mask.shape[1:]), bool)])


def _find_parts(given: NodeTypeTable, ids: TypedIds) -> Parts:
    found: list[NDArray[Any] | None] = []
    for part in ("train", "val", "test"):
        wanted = given.split_ids.get(part)
        nodes = None if wanted is None else ids.encoder.find(wanted)
        if nodes is not None and wanted is not None and (nodes < 0).any():
            unknown = [str(wanted[int(at)])[:80] for at in np.flatnonzero(nodes < 0)[:_SHOWN]]
            raise part_error(
                f"the split {part} of {given.name}",
                f"ids of {given.table.path}",
                f"{int((nodes < 0).sum()):,} others, such as {', '.join(map(repr, unknown))}",
                "correct the file of the split",
            )
        found.append(nodes)
    train, val, test = found
    return train, val, test
