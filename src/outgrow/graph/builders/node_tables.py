"""What is known of the nodes, checked and in the types of a graph; features in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_checks import MAX_NODES
from outgrow.graph.builders.feature_form import choose_feature_form
from outgrow.graph.builders.validate import (
    FiniteCheck,
    check_node_types,
    check_split_labels,
    check_split_type_labels,
    validate_labels,
    validate_split,
)
from outgrow.graph.graph import NodeType
from outgrow.graph.readers.matrices import validate_csr
from outgrow.graph.readers.source import FeatureTable, Ids, LazyMatrix, LazySparse, NodeTableSource, TypeLabelTable
from outgrow.graph.readers.times import validate_times

_BLOCK_BYTES = 1 << 22
_MOST_COLUMNS = 2**31 - 1


class CheckedTypeLabels(NamedTuple):
    """Labels of the ``n`` nodes of a type.

    Attributes:
        name: Name of the type.
        labels: ``[n]`` or ``[n, C]``, in the form of `NodeTables.labels`.
        num_classes: ``C``.
        class_names: Name of each class, or empty.
    """

    name: str
    labels: NDArray[Any]
    num_classes: int
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeTables:
    """Checked tables of ``V`` nodes, features excepted: those are checked as they are read.

    Attributes:
        num_nodes: ``V``.
        features: ``[V, D]`` real numbers, CSR or blocks of that shape; None if nodes have no features.
        labels: ``[V]`` int16 or int32 with -1 for unknown, or ``[V, C]`` uint8, or floating
            targets ``[V]`` or ``[V, K]``; None if there are none.
        num_classes: ``C``, of all types together; 0 without labels.
        split: ``[n]`` int64 each, sorted: training, validation, test.
        class_names: Name of each class, or empty.
        node_types: Ranges of ids, or empty.
        splits: All splits, in the form of ``split``; empty if there is but one.
        type_labels: Labels of types that have labels of their own, in the form of ``labels``; or empty.
        time: ``[V]`` int64; None if nodes have no times.
    """

    num_nodes: int
    features: FeatureTable | None
    labels: NDArray[Any] | None
    num_classes: int
    split: tuple[Ids, Ids, Ids]
    class_names: tuple[str, ...]
    node_types: tuple[NodeType, ...]
    splits: tuple[tuple[Ids, Ids, Ids], ...] = ()
    type_labels: tuple[CheckedTypeLabels, ...] = ()
    time: Ids | None = None


class SparseBlock(NamedTuple):
    """Some rows of sparse features.

    Attributes:
        ends: ``[n]`` int64, ends of the rows.
        indices: ``[N]`` int32, ascending within a row.
        values: ``[N]`` floating.
    """

    ends: Ids
    indices: NDArray[np.int32]
    values: NDArray[Any]


def infer_num_nodes(tables: NodeTableSource) -> int | None:
    """``V`` as the tables tell it; None if only the edges do."""
    if tables.num_nodes is not None:
        return tables.num_nodes
    if tables.features is not None and tables.features.shape:
        return int(tables.features.shape[0])
    if tables.labels is not None and tables.labels.shape:
        return len(tables.labels)
    return tables.node_types[-1].last if tables.node_types else None


def validate_node_tables(tables: NodeTableSource, num_nodes: int) -> NodeTables:
    """Check tables against the number of nodes.

    Raises:
        InputError: Shapes that do not fit, labels out of range, wrong splits, node types with gaps.
    """
    if not 1 <= num_nodes <= MAX_NODES:
        raise InputError(
            "the graph has no nodes" if num_nodes < 1 else "the graph has too many nodes",
            needed=f"1 to {MAX_NODES} nodes",
            got=f"{num_nodes} nodes",
            repair="check the source",
        )
    features = tables.features
    if features is not None and len(features.shape) != 2:
        raise _node_tables_error("features", f"{num_nodes} rows of numbers", f"shape {list(features.shape)}")
    if features is not None and features.shape[1] > _MOST_COLUMNS:
        raise _node_tables_error("features", f"at most {_MOST_COLUMNS} columns", f"{features.shape[1]} columns")
    if features is not None and features.shape[0] != num_nodes:
        raise _node_tables_error("features", f"{num_nodes} rows, one for each node", f"{features.shape[0]} rows")
    if features is not None and features.dtype.kind not in "fiub":
        raise _node_tables_error("features", "real numbers", f"type {features.dtype}")
    labels = None
    num_classes = 0
    if tables.labels is not None:
        labels, num_classes = validate_labels(np.asarray(tables.labels), tables.class_names, num_nodes)
    split = validate_split((tables.train, tables.val, tables.test), num_nodes)
    splits = tuple(validate_split(parts, num_nodes) for parts in tables.splits)
    type_labels = tuple(_validate_type_labels(each, tables.node_types) for each in tables.type_labels)
    num_classes += sum(each.num_classes for each in type_labels)
    for parts in (split, *splits):
        check_split_labels(labels, parts)
        check_split_type_labels({each.name: each.labels for each in type_labels}, tables.node_types, parts)
    check_node_types(tables.node_types, num_nodes, 0 if features is None else int(features.shape[1]))
    return NodeTables(
        num_nodes=num_nodes,
        features=_check_and_choose_form(features, tables.node_types),
        labels=labels,
        num_classes=num_classes,
        split=split,
        class_names=tables.class_names,
        node_types=tables.node_types,
        splits=splits,
        type_labels=type_labels,
        time=None if tables.node_time is None else validate_times(tables.node_time, num_nodes, "node"),
    )


def _validate_type_labels(given: TypeLabelTable, types: tuple[NodeType, ...]) -> CheckedTypeLabels:
    [kind] = [each for each in types if each.name == given.name]
    try:
        labels = np.asarray(given.labels)
        if given.are_numbers:
            # The form of targets of a regression, which whole numbers keep here.
            columns = labels.shape[1] if labels.ndim == 2 else 1
            return CheckedTypeLabels(given.name, labels, columns, ())
        labels, classes = validate_labels(labels, given.class_names, kind.last - kind.first)
    except InputError as error:
        raise InputError(
            f"{error.what} (type {given.name})", needed=error.needed, got=error.got, repair=error.repair
        ) from error
    return CheckedTypeLabels(given.name, labels, classes, given.class_names)


def stored_feature_dtype(given: np.dtype[Any]) -> np.dtype[Any]:
    """The type that features are kept in: their own if it is floating, else float32."""
    return given if given in (np.float16, np.float32, np.float64) else np.dtype(np.float32)


def iter_dense_blocks(
    features: NDArray[Any] | LazyMatrix, first_node: int = 0, dtype: np.dtype[Any] | None = None
) -> Iterator[NDArray[Any]]:
    """Dense features in blocks of rows, checked.

    Args:
        features: ``[n, D]``.
        first_node: Node of the first row, for the error.
        dtype: Type of the result; None for `stored_feature_dtype`.

    Raises:
        InputError: At the end, if any value is not finite.
    """
    dtype = dtype or stored_feature_dtype(features.dtype)
    check = FiniteCheck()
    rows = max(1, _BLOCK_BYTES // max(1, features.shape[1] * dtype.itemsize))
    for first in range(0, features.shape[0], rows):
        block = np.ascontiguousarray(features[first : first + rows], dtype=dtype)
        check.check_dense(block, first_node + first)
        yield block
    check.raise_if_any()


def iter_sparse_blocks(features: csr_array | LazySparse) -> Iterator[SparseBlock]:
    """Sparse features in blocks of rows, checked, with ascending columns and no duplicates.

    Raises:
        InputError: At the end, if any value is not finite.
    """
    dtype = stored_feature_dtype(features.dtype)
    check = FiniteCheck()
    total = 0
    num_rows = features.shape[0]
    indptr = features.indptr
    first = 0
    while first < num_rows:
        room = int(indptr[first]) + _BLOCK_BYTES // 16
        last = min(num_rows, first + _BLOCK_BYTES // 16, max(first + 1, int(np.searchsorted(indptr, room))))
        part = features[first:last].astype(dtype, copy=True)
        part.sum_duplicates()
        check.check_sparse(part.indptr, part.indices, part.data, first)
        yield SparseBlock(part.indptr[1:].astype(np.int64) + total, part.indices.astype(np.int32), part.data)
        total = total + part.nnz
        first = last
    check.raise_if_any()


def _check_and_choose_form(features: FeatureTable | None, node_types: tuple[NodeType, ...]) -> FeatureTable | None:
    checked = _validate_sparse(features) if isinstance(features, csr_array) else features
    # Columns of their own of several types were given the form that suits them by the reader.
    own_columns = any(kind.num_columns for kind in node_types)
    return checked if checked is None or own_columns else choose_feature_form(checked)


def _validate_sparse(features: csr_array) -> csr_array:
    try:
        return validate_csr(features)
    except ValueError as error:
        raise _node_tables_error("sparse features", "a well-formed CSR matrix", str(error)) from error


def _node_tables_error(what: str, needed: str, got: str) -> InputError:
    return InputError(f"{what} do not fit the nodes", needed=needed, got=got, repair="correct the file, then try again")
