"""Keyed random numbers of pairs of nodes, which say what is asked about and hidden in a step of training.

The number of a pair is a function of (key, smaller node, larger node), so all edges between two nodes share it,
whatever their direction and relation. Letters: ``P`` pairs, ``E`` edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, as_tensor, gpu_dispatch, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.work_split import END_ROW, ROW, balanced_work, row_span
from outgrow.ops.rng import hash64, uniform01

Array = NDArray[Any]


class PairRange(NamedTuple):
    """The pairs whose number is in a range; two equal nodes are no pair.

    Attributes:
        key: 64-bit key of the numbers.
        first: Smallest number, in [0, 1).
        last: End of the range, at most ``first + 1``; above 1 it goes on from 0.
    """

    key: int
    first: float
    last: float


def mark_pairs(one_P: Tensor, other_P: Tensor, pairs: PairRange) -> Tensor:
    """Return ``[P]`` bool: which pairs of nodes, ``[P]`` int64 each, are in a range."""
    out = np.empty(len(one_P), dtype=np.bool_)
    _mark_pairs(as_numpy(one_P), as_numpy(other_P), np.uint64(pairs.key), pairs.first, pairs.last, out)
    return as_tensor(out)


@gpu_dispatch
def mark_edges_of_pairs(
    indptr: Tensor, indices: Tensor, src_nodes: Tensor, dst_nodes: Tensor, pairs: PairRange
) -> Tensor:
    """Return ``[E]`` bool: which edges of a block are between pairs of nodes in a range; self-loops never are.

    Args:
        indptr: ``[Vd + 1]`` int64, ends of the in-edges of each destination row.
        indices: ``[E]`` int32 or int64, source row of each edge.
        src_nodes: ``[Vs]`` int64, the node of each source row.
        dst_nodes: ``[Vd]`` int64, the node of each destination row.
        pairs: The range.
    """
    out = np.empty(len(indices), dtype=np.bool_)
    ends = as_numpy(indptr)
    given = ends, as_numpy(indices), as_numpy(src_nodes), as_numpy(dst_nodes)
    _mark_edges(balanced_work(ends), *given, np.uint64(pairs.key), pairs.first, pairs.last, out)
    return as_tensor(out)


@serial_kernel
def is_in_range(one: int, other: int, key: np.uint64, first: float, last: float) -> bool:
    """Whether a pair of nodes is in a `PairRange`. For kernels."""
    if one == other:
        return False
    low, high = min(one, other), max(one, other)
    number = uniform01(hash64(hash64(key, np.uint64(low)), np.uint64(high)))
    return (number >= first and number < last) or number < last - 1.0


@parallel_kernel
def _mark_pairs(one: Array, other: Array, key: np.uint64, first: float, last: float, out: Array) -> None:
    for p in prange(len(one)):
        out[p] = is_in_range(one[p], other[p], key, first, last)


@parallel_kernel
def _mark_edges(
    parts: Array,
    indptr: Array,
    indices: Array,
    src: Array,
    dst: Array,
    key: np.uint64,
    first: float,
    last: float,
    out: Array,
) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for e in range(*row_span(parts, part, indptr, v)):
                out[e] = is_in_range(src[indices[e]], dst[v], key, first, last)


def mark_linked_pairs(
    indptr: Tensor, indices: Tensor, relation: Tensor, chosen_R: Tensor, one_P: Tensor, other_P: Tensor
) -> Tensor:
    """Return ``[P]`` bool: which pairs of nodes have an edge of some relations, in either direction.

    Args:
        indptr: ``[V + 1]`` int64 of a graph on the CPU, whose rows are sorted by source.
        indices: ``[E]`` sources.
        relation: ``[E]`` integer, relation of each edge.
        chosen_R: ``[R]`` bool, which relations count.
        one_P: ``[P]`` int64.
        other_P: ``[P]`` int64.
    """
    out = np.empty(len(one_P), dtype=np.bool_)
    graph = as_numpy(indptr), as_numpy(indices), as_numpy(relation)
    _mark_linked_pairs(*graph, as_numpy(chosen_R), as_numpy(one_P), as_numpy(other_P), out)
    return as_tensor(out)


@parallel_kernel
def _mark_linked_pairs(
    indptr: Array, indices: Array, relation: Array, chosen: Array, one: Array, other: Array, out: Array
) -> None:
    for p in prange(len(one)):
        out[p] = _has_edge(indptr, indices, relation, chosen, one[p], other[p]) or _has_edge(
            indptr, indices, relation, chosen, other[p], one[p]
        )


@serial_kernel
def _has_edge(indptr: Array, indices: Array, relation: Array, chosen: Array, src: int, dst: int) -> bool:
    low, end = indptr[dst], indptr[dst + 1]
    high = end
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < src:
            low = middle + 1
        else:
            high = middle
    while low < end and indices[low] == src:
        if chosen[relation[low]]:
            return True
        low += 1
    return False
