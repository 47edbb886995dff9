"""Rows of new nodes behind those of a graph: features, labels and splits that must fit what the graph has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.builders.edge_features import EdgeFeatureForm
from outgrow.graph.edge_columns import match_edge_columns, require_same_columns
from outgrow.graph.graph import Graph, Split
from outgrow.graph.readers.conversions import to_node_ids
from outgrow.graph.readers.source import Ids, LazyMatrix
from outgrow.graph.readers.splits import Parts
from outgrow.graph.readers.stored_edges import stored_rows
from outgrow.graph.readers.tables.node_table import NodeTable
from outgrow.graph.readers.times import NO_TIME
from outgrow.graph.topology import Topology
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.owned_rows import OwnedRows
from outgrow.ops.sparse import SparseRows

_SHOWN = 3


@final
class ConcatenatedRows(LazyMatrix):
    """Dense rows of a graph, which may be mapped, followed by others and by rows of zeros.

    Args:
        rows: ``[V, D]``.
        others: ``[n, D]`` each.
        num_rows: All rows, those of zeros included.
    """

    def __init__(self, rows: NDArray[Any], others: Sequence[NDArray[Any] | LazyMatrix], num_rows: int) -> None:
        self._parts: tuple[NDArray[Any] | LazyMatrix, ...] = (rows, *others)
        self._num_rows = num_rows

    @property
    def shape(self) -> tuple[int, int]:
        """``(V', D)``."""
        return self._num_rows, int(self._parts[0].shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the rows of the graph."""
        return np.dtype(self._parts[0].dtype)

    def read_rows(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last - 1``."""
        out = np.zeros((last - first, self.shape[1]), self.dtype)
        at = 0
        for part in self._parts:
            low, high = max(first, at), min(last, at + len(part))
            if low < high:
                out[low - first : high - first] = part[low - at : high - at]
            at += len(part)
        return out


def append_features(graph: Graph, tables: Sequence[NodeTable], num_nodes: int) -> csr_array | LazyMatrix | None:
    """Return the features of a graph with those of new nodes behind them, ``[num_nodes, D]``; else zeros.

    Raises:
        InputError: A table has features where the graph has none or the other way round, or of another width.
    """
    features = graph.features
    for table in tables:
        got = 0 if table.features is None else int(table.features.shape[1])
        if table.num_nodes and got != graph.num_features:
            raise _append_error(
                "the features of new nodes do not fit those of the graph",
                needed=f"{graph.num_features} columns of features, as the graph has, in the same order",
                got=f"{got} columns",
                repair="give the columns that the graph was made of: --features COLUMN,...",
            )
    if features is None:
        return None
    added = [table.features for table in tables if table.features is not None]
    # Node types are ranges of nodes, behind which none can be appended: rows of blocks do not get here.
    assert not isinstance(features, BlockRows | OwnedRows)
    if isinstance(features, SparseRows):
        return _append_sparse(features, added, num_nodes)
    if features.dtype == torch.bfloat16:
        raise _append_error(
            "features in bfloat16 cannot be appended to",
            needed="features in float16, float32 or float64",
            got="a store of bfloat16",
            repair="append to a store of other features; --set precision=bfloat16 computes in it all the same",
        )
    rows = [part.toarray() if isinstance(part, csr_array) else part for part in added]
    return ConcatenatedRows(features.numpy(), rows, num_nodes)


def append_labels(graph: Graph, tables: Sequence[NodeTable], num_nodes: int) -> NDArray[Any] | None:
    """Return the labels of a graph with those of new nodes behind them, ``[num_nodes]`` or ``[num_nodes, C]``.

    Classes that have names are found by them. Nodes without a label are unknown.

    Raises:
        InputError: Labels of another kind, or of a class that the graph does not have.
    """
    for table in tables:
        if graph.labels is None and table.labels is not None:
            raise _append_error(
                "new nodes have labels, and the graph has none",
                needed="no column of labels",
                got=", ".join(where for what, where in table.read if what == "labels"),
                repair="leave the column out, or convert all of the tables together",
            )
    if graph.labels is None:
        return None
    labels = graph.labels.numpy()
    unknown = np.nan if graph.has_targets else 0 if graph.multi_label else -1
    out = np.full((num_nodes, *labels.shape[1:]), unknown, labels.dtype)
    out[: len(labels)] = labels
    at = len(labels)
    for table in tables:
        if table.labels is not None:
            out[at : at + table.num_nodes] = _fit_labels(graph, table.labels, table.class_names)
        at += table.num_nodes
    return out


def append_times(graph: Graph, tables: Sequence[NodeTable], num_nodes: int) -> NDArray[np.int64] | None:
    """Return the times of a graph with those of new nodes behind them, ``[num_nodes]``; None if it has none.

    Nodes that only edges name have none.

    Raises:
        InputError: New nodes have times and the graph has none, or the other way round.
    """
    for table in tables:
        if (graph.node_time is None) != (table.time is None):
            have, lack = ("new nodes", "the graph") if graph.node_time is None else ("the graph", "new nodes")
            raise _append_error(
                f"nodes have times in {have}, and none in {lack}",
                needed="times of all nodes, or of none",
                got=f"{table.num_nodes:,} new nodes",
                repair="name the column: --time-column COLUMN" if table.time is None else "leave --time-column out",
            )
    if graph.node_time is None:
        return None
    out = np.full(num_nodes, NO_TIME)
    known = np.concatenate([graph.node_time.numpy(), *(table.time for table in tables if table.time is not None)])
    out[: len(known)] = known
    return out


def refuse_times(graph: Graph, column: str) -> None:
    """Refuse a column of times for a graph without.

    Raises:
        InputError: There is one.
    """
    if column and graph.edge_time is None and graph.node_time is None:
        raise _append_error(
            f"{graph.name} has no times, and those of new rows would have nothing to be compared with",
            needed="a store with times, or no column of times",
            got=f"--time-column {column}",
            repair="leave it out, or convert all of the tables together",
        )


def append_splits(graph: Graph, tables: Sequence[NodeTable]) -> tuple[Parts, tuple[Parts, ...]]:
    """Return the split of a graph with new nodes in the parts that their tables say, and all of its splits.

    Raises:
        InputError: A table has another number of splits than the graph.
    """
    chosen = _find_chosen(graph)
    splits = [_parts_of(split) for split in graph.splits or (graph.split,)]
    at = graph.num_nodes
    for table in tables:
        if len(table.splits) not in (0, len(splits)):
            raise _append_error(
                "new nodes do not have the splits of the graph",
                needed=f"{len(splits)} splits, or none",
                got=f"{len(table.splits)} splits",
                repair="give as many masks as the graph has splits, or none",
            )
        for number, parts in enumerate(table.splits):
            splits[number] = _join_parts(splits[number], parts, at, table.num_nodes)
        at += table.num_nodes
    return splits[chosen], tuple(splits) if graph.splits else ()


def _append_sparse(
    features: SparseRows, added: Sequence[NDArray[Any] | csr_array | LazyMatrix], num_nodes: int
) -> csr_array:
    parts = [csr_array(np.asarray(part) if isinstance(part, LazyMatrix) else part) for part in added]
    values, indices = [features.values.numpy()], [features.indices.numpy()]
    ends = [features.indptr.numpy()]
    for part in parts:
        values.append(part.data.astype(values[0].dtype))
        indices.append(part.indices.astype(np.int32))
        ends.append(part.indptr[1:].astype(np.int64) + ends[-1][-1])
    # Nodes without a row have nothing stored.
    ends.append(np.full(num_nodes + 1 - sum(map(len, ends)), ends[-1][-1], np.int64))
    arrays = np.concatenate(values), np.concatenate(indices), np.concatenate(ends)
    return csr_array(arrays, shape=(num_nodes, features.num_columns))


def _fit_labels(graph: Graph, labels: NDArray[Any], class_names: tuple[str, ...]) -> NDArray[Any]:
    assert graph.labels is not None
    if graph.has_targets or graph.multi_label:
        several = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
        if class_names or several.shape[1:] != graph.labels.shape[1:]:
            raise _label_error(f"{graph.num_classes} numbers for each node", f"{labels.dtype} {list(labels.shape[1:])}")
        return several
    if labels.ndim != 1 or (labels.dtype.kind == "f" and not (np.isnan(labels) | (labels == np.rint(labels))).all()):
        raise _label_error("one class for each node", f"{labels.dtype} of shape {list(labels.shape)}")
    numbers = np.where(np.isnan(labels), -1, labels).astype(np.int64) if labels.dtype.kind == "f" else labels
    # Classes without names are called by their numbers.
    known = graph.class_names or tuple(str(number) for number in range(graph.num_classes))
    place = {name: number for number, name in enumerate(known)}
    given, inverse = np.unique(numbers, return_inverse=True)
    names = [class_names[number] if class_names and number >= 0 else str(number) for number in given.tolist()]
    found = [-1 if number == -1 else place.get(name, -2) for number, name in zip(given.tolist(), names, strict=True)]
    made: Ids = np.array(found, np.int64)[inverse.reshape(-1)]
    if new := [name for name, number in zip(names, found, strict=True) if number == -2]:
        raise _append_error(
            f"{int((made == -2).sum()):,} new nodes are of classes that the graph does not have",
            needed=f"the classes {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}: a trained model has one "
            "output for each",
            got=", ".join(repr(name) for name in new[:_SHOWN]) + (", ..." if len(new) > _SHOWN else ""),
            repair="leave these labels empty, or convert all of the tables together and train anew",
        )
    return made


def _find_chosen(graph: Graph) -> int:
    for number, split in enumerate(graph.splits):
        pairs = zip(_parts_of(split), _parts_of(graph.split), strict=True)
        if all(np.array_equal(one, other) for one, other in pairs if one is not None and other is not None):
            return number
    return 0


def _parts_of(split: Split) -> Parts:
    return split.train.numpy(), split.val.numpy(), split.test.numpy()


def _join_parts(parts: Parts, added: Parts, first: int, num_nodes: int) -> Parts:
    train, val, test = (
        given if new is None else np.concatenate([_require(given), _number(new, num_nodes) + first])
        for given, new in zip(parts, added, strict=True)
    )
    return train, val, test


def _require(part: NDArray[Any] | None) -> Ids:
    assert part is not None
    return part


def _number(part: NDArray[Any], num_nodes: int) -> Ids:
    return to_node_ids(part, num_nodes, "the split of new nodes").astype(np.int64)


def _label_error(needed: str, got: str) -> InputError:
    return _append_error(
        "the labels of new nodes do not fit those of the graph", needed=needed, got=got, repair="correct the column"
    )


def _append_error(what: str, *, needed: str, got: str, repair: str) -> InputError:
    return InputError(what, needed=needed, got=got, repair=repair)


def fit_edge_features(
    topology: Topology, features: NDArray[Any] | None, columns: Sequence[EdgeFeatureColumn], path: Path
) -> NDArray[Any] | None:
    """Return the features of new edges in the columns, codes and type of those that a graph has; None without features.

    Args:
        topology: The graph.
        features: ``[n, C]`` features of new edges, as they are read.
        columns: Their columns; empty if they have no names.
        path: Their table, for the error.

    Raises:
        InputError: Other columns, or categories that the graph does not have or has no names of.
    """
    kept, wanted = topology.edge_features, topology.feature_columns
    if features is None or kept is None:
        return None
    coded = any(column.categories for column in columns) or bool(topology.feature_sizes)
    if coded and not (columns and wanted):
        raise InputError(
            f"the features of the edges in {path} cannot be categories",
            needed="numbers: the store does not keep which code is which category",
            got="categories, or a store whose edges have codes of such",
            repair="convert all of the tables together",
        )
    rows = features
    if columns and wanted:
        require_same_columns(columns, wanted, str(path))
        form = EdgeFeatureForm(tuple(len(column.categories) for column in wanted), features.dtype)
        rows = form.encode_rows(match_edge_columns(features, columns, wanted))
    if rows.shape[1] != kept.shape[1]:
        raise InputError(
            f"the features of the edges in {path} do not fit the graph",
            needed=f"{kept.shape[1]} columns, as the edges of the graph have",
            got=f"{rows.shape[1]} columns",
            repair="name the columns that the store was made of, in the same order: --edge-features",
        )
    with np.errstate(over="ignore"):
        # Numbers that the type of the graph does not hold become infinite, which is refused.
        return rows.astype(stored_rows(kept[:0]).dtype, copy=False)
