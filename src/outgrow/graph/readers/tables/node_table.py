"""Node tables: a row for each node, with an id, labels, a split, a type and features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.graph import NodeType
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.source import Ids, LazyMatrix
from outgrow.graph.readers.splits import (
    Parts,
    SplitRequest,
    draw_split,
    empty_split_error,
    find_labelled,
    parse_split,
    select_parts,
    split_by_time,
    split_by_words,
    splits_of_masks,
)
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.id_encoder import IdEncoder, node_keys
from outgrow.graph.readers.tables.node_features import (
    MOST_CATEGORIES,
    FeatureColumn,
    Matrix,
    plan_columns,
    read_features,
    refuse_categories,
    take_rows,
)
from outgrow.graph.readers.tables.node_roles import NodeRoles, find_node_roles, has_integers, has_texts, names_of_roles
from outgrow.graph.readers.tables.node_values import ColumnValues, NodeLabels, TextCodes, make_labels
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table import RecordBatch, Table
from outgrow.graph.readers.tables.time_columns import Clock, TimeColumn

CATEGORICAL = ("refuse", "onehot", "hash")
"""What may become of texts among the features."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeTable:
    """What a node table has of ``V`` nodes, numbered by its rows or, if they have types, type after type.

    Attributes:
        num_nodes: ``V``.
        encoder: The ids, numbered as the nodes; None if nodes have no ids but their numbers.
        features: ``[V, D]`` floating, or CSR of that shape, or rows read on demand; None without.
        labels: As in `NodeTableSource`; None without.
        class_names: Name of each class, or empty.
        splits: All splits that the table has or that was drawn of it; may be empty.
        split: The chosen one; of none, the caller looks whether there are others.
        node_types: Ranges of nodes; empty if there is no column of types.
        read: What was read, from which column.
        unread: Columns that were not read.
        columns: Where the values of each column are among the features.
        time: ``[V]`` int64; None without.
    """

    num_nodes: int
    encoder: IdEncoder | None
    features: Matrix | LazyMatrix | None
    labels: NDArray[Any] | None
    class_names: tuple[str, ...]
    splits: tuple[Parts, ...]
    split: Parts
    node_types: tuple[NodeType, ...]
    read: tuple[tuple[str, str], ...]
    unread: tuple[str, ...]
    columns: tuple[FeatureColumn, ...] = ()
    time: Ids | None = None


def read_node_table(
    path: Path | Table,
    options: TableOptions,
    *,
    scratch: Path | None = None,
    memory_bytes: int | None = None,
    clock: Clock | None = None,
) -> NodeTable:
    """Read a node table; two passes over its rows, the second one for features.

    Args:
        path: The file or folder, or the table.
        options: What its columns are; see `TableOptions`.
        scratch: Folder of files for ids and features that exceed the memory; None to keep all in memory.
        memory_bytes: Bytes of memory that ids may take before they lie in files.
        clock: What the times of the graph are; None if this table says.

    Raises:
        InputError: A broken file, columns that cannot be found or used, an id that occurs twice or is missing, a
            missing feature, or a split that names nobody; with file, row and column.
    """
    validate_choice("choice of categorical", options.categorical, dict.fromkeys(CATEGORICAL))
    table = path if isinstance(path, Table) else open_table(path, named=names_of_roles(options))
    request = parse_split(options.split, options.split_seed)
    roles = find_node_roles(table, options, request)
    refuse_categories(table, roles.features, roles.types, options.categorical)
    reading = _FirstPass(table, roles, options, IdEncoder(scratch, memory_bytes), clock or Clock())
    reading.read_rows()
    order = reading.order_by_type()
    encoder = reading.encoder if roles.id is not None else None
    labels = reading.make_labels(order)
    keys = node_keys(encoder, reading.num_rows)
    splits = reading.make_splits(order, labels, keys, request)
    plan = plan_columns(table, roles.features, roles.types, reading.categories)
    features = read_features(table, plan, roles, reading.num_rows, scratch)
    where = str(table.path)
    return NodeTable(
        num_nodes=reading.num_rows,
        encoder=encoder,
        features=features if order is None else take_rows(features, order),
        labels=None if labels is None else labels.values,
        class_names=() if labels is None else labels.class_names,
        splits=splits,
        split=select_parts(splits, options.split_index, where) if splits else (None, None, None),
        node_types=reading.node_types,
        read=_describe_roles(roles, table.path.name),
        unread=roles.unread,
        columns=tuple(plan),
        time=reading.make_times(order),
    )


class _FirstPass:
    """Everything but features: ids, labels, words and categories, which are small."""

    def __init__(self, table: Table, roles: NodeRoles, options: TableOptions, encoder: IdEncoder, clock: Clock) -> None:
        self.table = table
        self.roles = roles
        self.encoder = encoder
        self.num_rows = 0
        self.node_types: tuple[NodeType, ...] = ()
        onehot = [name for name in roles.features if has_texts(roles.types[name]) and options.categorical == "onehot"]
        self.categories = {name: TextCodes(MOST_CATEGORIES) for name in onehot}
        self._times = None if roles.own_time is None else TimeColumn(table, roles.own_time, clock)
        self._time_parts: list[Ids] = []
        others = (*roles.labels, roles.split, *roles.masks.values(), roles.time, roles.type)
        columns = [name for name in roles.list_small() if name in others and name != roles.id]
        self._columns = {name: ColumnValues(table, name, "a label or a split") for name in columns}
        self._held_ids: list[ArrowArray] = []

    def read_rows(self) -> None:
        """Read the columns of all rows."""
        import pyarrow as pa

        names = list(dict.fromkeys([*self.roles.list_small(), *self.categories]))
        if not names:
            # Any column tells how many rows there are.
            names = [*self.roles.features[:1], *self.table.names[:1]][:1]
        kind = self.roles.types.get(self.roles.id or "")
        # Ids as they are written: 007 is another one than 7.
        texts = self.roles.text_types(names)
        if self.roles.id is not None and kind == pa.int64():
            texts[self.roles.id] = pa.large_string()
        for batch in self.table.read_batches(names, texts):
            self._add(batch)
            self.num_rows += len(batch)

    def _add(self, batch: RecordBatch) -> None:
        if self.roles.id is not None:
            ids = self._clean_ids(batch.column(self.roles.id))
            if self.roles.type is None:
                self._encode(ids, self.num_rows)
            else:
                self._held_ids.append(ids)
        for name, values in self._columns.items():
            values.add(batch.column(name))
        if self._times is not None:
            self._time_parts.append(self._times.convert_rows(batch.column(self._times.name), self.num_rows))
        for name, codes in self.categories.items():
            codes.add(batch.column(name), keep=False)
            if codes.exceeds:
                raise InputError(
                    f"{self.table.path}: the column {shorten_name(name)} has too many categories",
                    needed=f"at most {MOST_CATEGORIES:,} distinct texts",
                    got=f"{len(codes):,} in the first {self.num_rows + len(batch):,} rows",
                    repair="--categorical hash, or leave the column out",
                )

    def _clean_ids(self, ids: ArrowArray) -> ArrowArray:
        """Return ids as int64, or as texts where one of them is no whole number in its own form."""
        import pyarrow as pa
        from pyarrow import compute

        name = shorten_name(self.roles.id or "")
        if pa.types.is_dictionary(ids.type):
            ids = ids.cast(pa.large_string())
        empty = ids.is_null()
        if has_texts(ids.type):
            ids = ids.cast(pa.large_string())
            empty = compute.or_(empty, compute.equal(compute.binary_length(compute.fill_null(ids, "")), pa.scalar(0)))
        if compute.any(empty).as_py():
            row = self.num_rows + int(np.argmax(np.asarray(empty)))
            raise InputError(
                f"{self.table.locate_row(row)}: the column {name} has no id",
                needed="an id in every row",
                got=f"{compute.sum(empty).as_py():,} empty ones from here on",
                repair="fill in the ids, or drop the rows",
            )
        try:
            whole = ids.cast(pa.int64())
        except pa.ArrowInvalid:
            whole = None
        if has_texts(ids.type):
            same = whole is not None and compute.all(compute.equal(whole.cast(pa.large_string()), ids)).as_py()
            return whole if same else ids
        if whole is not None:
            return whole
        raise InputError(
            f"{self.table.path}: the column {name} cannot be used as id",
            needed="texts, or integers that fit 64 bits with a sign",
            got=f"values of type {str(ids.type)[:80]}" + ("" if has_integers(ids.type) else " with fractions"),
            repair="write the column again as texts",
        )

    def _encode(self, ids: ArrowArray, first: int, rows: Ids | None = None) -> None:
        numbers = self.encoder.encode(ids)
        bad = np.flatnonzero(numbers != np.arange(first, first + len(ids)))
        if not len(bad):
            return
        at, before = int(bad[0]), int(numbers[bad[0]])
        row, earlier = (first + at, before) if rows is None else (int(rows[at]), int(rows[before]))
        raise InputError(
            f"{self.table.locate_row(row)}: the id {str(ids[at])[:80]!r} occurs twice among the nodes",
            needed="one row for each node",
            got=f"the same id as in {self.table.locate_row(earlier)}",
            repair="drop the repeated rows",
        )

    def order_by_type(self) -> Ids | None:
        """Return the row of each node, type after type, and number ids so; None if nodes have no types."""
        import pyarrow as pa

        if self.roles.type is None:
            return None
        codes, words = self._columns[self.roles.type].words()
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            raise InputError(
                f"{self.table.locate_row(row)}: the column {shorten_name(self.roles.type)} has no type",
                needed="a type of every node",
                got="an empty one",
                repair="fill in the types",
            )
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(words))).tolist()
        firsts = [0, *ends[:-1]]
        self.node_types = tuple(
            NodeType(name=word, first=first, last=last) for word, first, last in zip(words, firsts, ends, strict=True)
        )
        if self.roles.id is not None:
            kinds = {each.type for each in self._held_ids}
            held = [each.cast(pa.large_string()) for each in self._held_ids] if len(kinds) > 1 else self._held_ids
            self._encode(pa.concat_arrays(held).take(pa.array(order)), 0, order)
            self._held_ids.clear()
        return order

    def make_labels(self, order: Ids | None) -> NodeLabels | None:
        """Return the labels of all nodes."""
        made = make_labels([self._columns[name] for name in self.roles.labels], str(self.table.path))
        return made if made is None or order is None else made._replace(values=made.values[order])

    def make_times(self, order: Ids | None) -> Ids | None:
        """Return the times of all nodes."""
        if self._times is None:
            return None
        times = np.concatenate(self._time_parts)
        return times if order is None else times[order]

    def make_splits(
        self, order: Ids | None, labels: NodeLabels | None, keys: Ids, request: SplitRequest
    ) -> tuple[Parts, ...]:
        """Return the splits that columns say or that are drawn."""
        values = None if labels is None else labels.values
        splits: tuple[Parts, ...] = ()
        where = str(self.table.path)
        if request.kind == "shares":
            splits = (draw_split(values, keys, request),)
        elif self.roles.time is not None:
            splits = (self._split_by_time(order, values, keys, request),)
        elif self.roles.split is not None:
            codes, words = self._columns[self.roles.split].words()
            named = f"the column {shorten_name(self.roles.split)} of {where}"
            splits = (split_by_words(codes if order is None else codes[order], words, named),)
        elif self.roles.masks:
            masks = {name.removesuffix("_mask"): self._mask(column, order) for name, column in self.roles.masks.items()}
            splits = splits_of_masks(masks, self.num_rows, where)
        for parts in splits:
            if not _has_nodes(parts):
                raise empty_split_error(f"the split of {where}")
        return splits

    def _split_by_time(self, order: Ids | None, labels: NDArray[Any] | None, keys: Ids, request: SplitRequest) -> Parts:
        column = self._columns[self.roles.time or ""]
        if column.is_text:
            codes, _ = column.words()
            # Texts such as 2024-05-01 are in the order of their letters.
            times = np.where(codes < 0, np.nan, codes)
        else:
            times = column.numbers()
        times = times if order is None else times[order]
        known = find_labelled(labels, self.num_rows) & ~np.isnan(times.astype(np.float64))
        return split_by_time(times, keys, known, request)

    def _mask(self, name: str, order: Ids | None) -> NDArray[Any]:
        values = self._columns[name].numbers()
        if not np.isin(values, (0, 1)).all():
            raise InputError(
                f"{self.table.path}: the column {shorten_name(name)} is no mask",
                needed="true or false, or 1 or 0, in every row",
                got=f"{int((~np.isin(values, (0, 1))).sum())} other values",
                repair="correct the column",
            )
        mask = values.astype(bool)
        return mask if order is None else mask[order]


def _has_nodes(parts: Parts) -> bool:
    return any(part is not None and (part.any() if part.dtype == bool else len(part) > 0) for part in parts)


def _describe_roles(roles: NodeRoles, where: str) -> tuple[tuple[str, str], ...]:
    def iterate() -> Iterator[tuple[str, str]]:
        if roles.id is not None:
            yield "ids", f"{where}, column {roles.id}"
        for what, names in (("labels", roles.labels), ("features", roles.features)):
            if names:
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                yield what, f"{where}, column {', '.join(names[:4])}{more}"
        small = (("split", roles.split), ("split", roles.time), ("node types", roles.type), ("times", roles.own_time))
        for what, name in small:
            if name is not None:
                yield what, f"{where}, column {name}"
        if roles.masks:
            yield "split", f"{where}, column {', '.join(roles.masks.values())}"

    return tuple(iterate())
