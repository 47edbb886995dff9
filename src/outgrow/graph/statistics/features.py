"""What features are like, and which look wrong: constant, zero, numbering the nodes or telling their label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from outgrow.ops.backend import as_numpy
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.rng import fold_in, permute_range
from outgrow.ops.sparse import PartialRows, SparseRows, index_rows

_COUNTED_VALUES = 1 << 26
_SAMPLED_VALUES = 1 << 23
_SAMPLED_ROWS = 1 << 14
_BLOCK_VALUES = 1 << 20
_BLOCK_STORED = 1 << 22
_KEY = fold_in(0, 98)
_PERCENTS = (0, 25, 50, 75, 90, 99, 100)
_FEW_NODES = 5
"""A class of fewer nodes is not looked at: that all of them have one value may be chance."""


class FeatureFacts(NamedTuple):
    """What features are like, over all rows or over a sample.

    Attributes:
        num_rows: Number of rows that were looked at.
        smallest: Least value.
        largest: Greatest value.
        constant: Columns that have one value only, ascending.
        zero_rows: Rows that are zero in every column.
    """

    num_rows: int
    smallest: float
    largest: float
    constant: tuple[int, ...]
    zero_rows: int


def describe_form(features: Tensor | PartialRows) -> str:
    """Return ``dense``, ``sparse``, or ``dense by type`` for types with columns of their own."""
    if isinstance(features, Tensor):
        return "dense"
    return "sparse" if isinstance(features, SparseRows) else "dense by type"


def count_features(features: Tensor | PartialRows, *, full: bool = False) -> FeatureFacts:
    """Look at all rows if there are not too many values or ``full`` is set, else at a keyed sample of rows."""
    count = features.numel() if isinstance(features, Tensor) else features.num_values
    whole = full or count <= _COUNTED_VALUES
    if isinstance(features, SparseRows):
        return _count_sparse(_as_csr(features) if whole else read_rows(features, sample_rows(features)))
    nodes = np.arange(len(features)) if whole else sample_rows(features)
    return _count_dense(features, nodes)


def sample_rows(features: Tensor | PartialRows, nodes: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return ``[n]`` int64: some nodes in their order, drawn by a key; so few that dense rows of them fit into memory.

    Args:
        features: ``[V, D]``.
        nodes: Nodes to choose from, ascending; None for all.
    """
    count = features.shape[0] if nodes is None else len(nodes)
    most = min(_SAMPLED_ROWS, max(1, _SAMPLED_VALUES // max(1, features.shape[1])))
    at = np.arange(count) if count <= most else np.sort(permute_range(0, most, count, _KEY))
    return at if nodes is None else nodes[at]


def find_column_quantiles(features: Tensor) -> dict[str, list[float]]:
    """Return, by percentage, the value of each column of ``[n, D]`` that so many of the rows have at most; by a sample.

    The rows that `sample_rows` chooses are looked at: of few rows all of them.
    """
    rows = _read_dense(features, sample_rows(features)).astype(np.float64)
    quantiles = np.quantile(rows, [percent / 100 for percent in _PERCENTS], axis=0, method="inverted_cdf")
    return {str(percent): found.tolist() for percent, found in zip(_PERCENTS, quantiles, strict=True)}


def count_categories(codes: Tensor, sizes: Sequence[int]) -> dict[str, list[int]]:
    """Return, by the number of each column of ``[n, D]``, how often each category occurs; in the rows of a sample."""
    rows = _read_dense(codes, sample_rows(codes))
    return {str(at): np.bincount(rows[:, at], minlength=size).tolist() for at, size in enumerate(sizes)}


def find_numbering_columns(features: Tensor | PartialRows) -> list[int]:
    """Return the columns of whole numbers that grow from each node to the next, as ids do; by a sample of rows."""
    nodes = sample_rows(features)
    if len(nodes) < _FEW_NODES:
        return []
    rows = _read_dense(features, nodes)
    grows = (np.diff(rows, axis=0) > 0).all(0) & (rows == np.rint(rows)).all(0)
    return [int(column) for column in np.flatnonzero(grows)]


def find_label_columns(features: Tensor | PartialRows, labels: NDArray[Any]) -> list[int]:
    """Return the columns that have one value for all nodes of a class, and not the same for all classes.

    Only classes of at least five of the nodes that are looked at count, and nodes of known label.

    Args:
        features: ``[V, D]``.
        labels: ``[V]`` integer, -1 where unknown.
    """
    nodes = sample_rows(features, np.flatnonzero(labels >= 0))
    sizes = np.bincount(labels[nodes], minlength=1)
    nodes = nodes[sizes[labels[nodes]] >= _FEW_NODES]
    if not len(nodes):
        return []
    nodes = nodes[np.argsort(labels[nodes], kind="stable")]
    first = np.flatnonzero(np.diff(labels[nodes], prepend=-1))
    if len(first) < 2:
        return []
    rows = _read_dense(features, nodes)
    low, high = (reduce.reduceat(rows, first, axis=0) for reduce in (np.minimum, np.maximum))
    return [int(column) for column in np.flatnonzero((low == high).all(0) & (low[0] != low).any(0))]


def find_target_columns(features: Tensor | PartialRows, targets: NDArray[Any]) -> list[int]:
    """Return the columns that have the target of a regression at every node that is looked at.

    Args:
        features: ``[V, D]``.
        targets: ``[V]`` floating, NaN where unknown.
    """
    nodes = sample_rows(features, np.flatnonzero(~np.isnan(targets)))
    if len(nodes) < _FEW_NODES or (targets[nodes] == targets[nodes[0]]).all():
        return []
    equal = (_read_dense(features, nodes) == targets[nodes, None].astype(np.float32)).all(0)
    return [int(column) for column in np.flatnonzero(equal)]


class RowRepetitions(NamedTuple):
    """Nodes whose features are those of another node of the same label; rows of zeros not counted.

    Attributes:
        looked_at: Nodes to test on that were looked at.
        in_train: Of these, nodes whose row and label a node to train on has too.
        train_looked_at: Nodes to train on that were looked at.
        within_train: Of these, nodes whose row and label another node to train on has too.
    """

    looked_at: int
    in_train: int
    train_looked_at: int
    within_train: int


def count_repeated_rows(
    features: Tensor | PartialRows, labels: NDArray[Any], train: NDArray[np.int64], test: NDArray[np.int64]
) -> RowRepetitions:
    """Count the nodes to test on that a model has seen in training under another number.

    Args:
        features: ``[V, D]``.
        labels: ``[V]`` or ``[V, C]``.
        train: ``[n]`` int64, nodes to train on.
        test: ``[n]`` int64, nodes to test on.
    """
    known, asked = (_hash_rows(features, labels, sample_rows(features, nodes)) for nodes in (train, test))
    _, times = np.unique(known, return_counts=True)
    return RowRepetitions(len(asked), int(np.isin(asked, known).sum()), len(known), int(times[times > 1].sum()))


def read_rows(features: SparseRows, nodes: NDArray[np.int64]) -> csr_array:
    """Return some rows of sparse features."""
    indptr = as_numpy(features.indptr)
    counts = indptr[nodes + 1] - indptr[nodes]
    ends = np.concatenate([[0], counts.cumsum()])
    at = np.repeat(indptr[nodes] - ends[:-1], counts) + np.arange(ends[-1])
    parts = as_numpy(features.values)[at], as_numpy(features.indices)[at], ends
    return csr_array(parts, shape=(len(nodes), features.num_columns))


def _hash_rows(features: Tensor | PartialRows, labels: NDArray[Any], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    rows = _read_dense(features, nodes)
    kept = rows.any(1)
    # Python's hash of bytes differs from process to process, but equality is all that is asked for.
    made = [
        hash((row.tobytes(), label.tobytes()))
        for row, label in zip(np.ascontiguousarray(rows[kept]), labels[nodes][kept], strict=True)
    ]
    return np.array(made, dtype=np.int64)


def _read_dense(features: Tensor | PartialRows, nodes: NDArray[np.int64]) -> NDArray[Any]:
    if isinstance(features, SparseRows):
        dense: NDArray[Any] = read_rows(features, nodes).toarray()
        return dense
    found = index_rows(features, torch.from_numpy(nodes))
    rows = found if isinstance(found, Tensor) else found.to_dense()
    # NumPy has no bfloat16; float32 holds it exactly.
    return as_numpy(rows.float() if rows.dtype == torch.bfloat16 else rows)


def _as_csr(features: SparseRows) -> csr_array:
    parts = as_numpy(features.values), as_numpy(features.indices), as_numpy(features.indptr)
    return csr_array(parts, shape=features.shape)


def _count_dense(features: Tensor | BlockRows, nodes: NDArray[np.int64]) -> FeatureFacts:
    width = features.shape[1]
    step = max(1, _BLOCK_VALUES // max(1, width))
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    zero_rows = 0
    for first in range(0, len(nodes), step):
        rows = _read_dense(features, nodes[first : first + step])
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        zero_rows += int((~rows.any(1)).sum())
    return _make_facts(len(nodes), low, high, zero_rows)


def _count_sparse(rows: csr_array) -> FeatureFacts:
    num_rows, width = rows.shape
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    first = zero_rows = 0
    # In blocks: SciPy copies a matrix to look at its columns.
    while first < num_rows:
        last = max(first + 1, int(np.searchsorted(rows.indptr, rows.indptr[first] + _BLOCK_STORED)) - 1)
        block = rows[first : min(last, num_rows)]
        # Sparse themselves; zeros that are not stored count.
        low = np.minimum(low, block.min(axis=0).toarray().reshape(-1))
        high = np.maximum(high, block.max(axis=0).toarray().reshape(-1))
        stored = np.diff(np.concatenate([[0], (block.data != 0).cumsum()])[block.indptr])
        zero_rows += int((stored == 0).sum())
        first = last
    return _make_facts(num_rows, low, high, zero_rows)


def _make_facts(num_rows: int, low: NDArray[Any], high: NDArray[Any], zero_rows: int) -> FeatureFacts:
    # One row alone says nothing of its columns.
    constant = np.flatnonzero(low == high) if num_rows > 1 else np.empty(0, np.int64)
    return FeatureFacts(
        num_rows,
        float(low.min(initial=np.inf)),
        float(high.max(initial=-np.inf)),
        tuple(constant.tolist()),
        zero_rows,
    )
