"""Sets of pairs of nodes, and the edges between the two nodes of a pair, in either direction and of any relation.

Letters: ``P`` pairs, ``N`` nodes, ``E`` edges, ``R`` edges between pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, as_tensor, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.work_split import END_ROW, ROW, balanced_work, row_span
from outgrow.ops.rows.gather import concat_ranges

Array = NDArray[Any]


class PairSet(NamedTuple):
    """A set of pairs of nodes; two equal nodes are no pair.

    Attributes:
        codes: ``[P]`` int64, ascending and distinct: ``smaller node * num_nodes + larger node``.
        ends: ``[N]`` int64, ascending and distinct: the nodes of all pairs.
        num_nodes: ``V``, of the graph.
    """

    codes: Tensor
    ends: Tensor
    num_nodes: int

    @staticmethod
    def from_pairs(one_P: Tensor, other_P: Tensor, num_nodes: int) -> PairSet:
        """Return the set of these pairs, ``[P]`` int64 each, which may be repeated and in either order."""
        low, high = torch.minimum(one_P, other_P), torch.maximum(one_P, other_P)
        codes = torch.unique((low * num_nodes + high)[low != high])
        ends = torch.unique(torch.cat([codes // num_nodes, codes % num_nodes])) if len(codes) else codes
        return PairSet(codes, ends, num_nodes)


def mark_edges_of_pair_set(
    indptr: Tensor, indices: Tensor, src_nodes: Tensor, dst_nodes: Tensor, pairs: PairSet
) -> Tensor:
    """Return ``[E]`` bool: which edges of a block are between the nodes of a pair. On the CPU.

    Args:
        indptr: ``[Vd + 1]`` int64, ends of the in-edges of each destination row.
        indices: ``[E]`` int32 or int64, source row of each edge.
        src_nodes: ``[Vs]`` int64, the node of each source row.
        dst_nodes: ``[Vd]`` int64, the node of each destination row.
        pairs: The pairs.
    """
    out = np.zeros(len(indices), dtype=np.bool_)
    ends = as_numpy(indptr)
    given = ends, as_numpy(indices), as_numpy(src_nodes), as_numpy(dst_nodes)
    _mark_edges(balanced_work(ends), *given, as_numpy(pairs.codes), as_numpy(pairs.ends), pairs.num_nodes, out)
    return as_tensor(out)


def sum_rows_without_pairs(
    indptr: Tensor, indices: Tensor, weight: Tensor | None, nodes_N: Tensor, pairs: PairSet, *, self_loops: bool
) -> Tensor:
    """Return ``[N]`` float64: degrees of nodes in a graph without the edges between pairs.

    Added in the order in which degrees of the whole graph are.

    Args:
        indptr: ``[V + 1]`` int64 of the graph.
        indices: ``[E]`` sources.
        weight: ``[E]`` weights; None if all are 1.
        nodes_N: ``[N]`` int64.
        pairs: The pairs.
        self_loops: Whether each node has exactly one self-loop: see `outgrow.graph.topology.Topology.with_self_loops`.
    """
    out = np.empty(len(nodes_N), dtype=np.float64)
    weights = np.empty(0, dtype=np.float32) if weight is None else as_numpy(weight)
    graph = as_numpy(indptr), as_numpy(indices), weights, weight is not None
    _sum_rows(*graph, as_numpy(nodes_N), as_numpy(pairs.codes), pairs.num_nodes, self_loops, out)
    return as_tensor(out)


def find_edges_of_pairs(indptr: Tensor, indices: Tensor, pairs: PairSet) -> tuple[Tensor, Tensor]:
    """Return the destination and the number of each edge between the nodes of a pair, ``[R]`` and ``[R]`` int64.

    Args:
        indptr: ``[V + 1]`` int64 of the graph, whose rows are sorted by source.
        indices: ``[E]`` sources.
        pairs: The pairs.
    """
    graph = as_numpy(indptr), as_numpy(indices)
    low, high = (as_numpy(each) for each in (pairs.codes // pairs.num_nodes, pairs.codes % pairs.num_nodes))
    found = np.empty((2, 2, len(low)), dtype=np.int64)
    _find_spans(*graph, low, high, found)
    first, count = (as_tensor(found[place].reshape(-1)) for place in (0, 1))
    destination = torch.cat([as_tensor(high), as_tensor(low)])
    return torch.repeat_interleave(destination, count), concat_ranges(first, count)


@serial_kernel
def _is_pair(one: int, other: int, codes: Array, num_nodes: int) -> bool:
    if one == other:
        return False
    code = min(one, other) * num_nodes + max(one, other)
    at = np.searchsorted(codes, code)
    return bool(at < len(codes) and codes[at] == code)


@parallel_kernel
def _mark_edges(
    parts: Array,
    indptr: Array,
    indices: Array,
    src: Array,
    dst: Array,
    codes: Array,
    ends: Array,
    num_nodes: int,
    out: Array,
) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            node = dst[v]
            # Few rows of a block are of nodes that are in a pair.
            at = np.searchsorted(ends, node)
            if at < len(ends) and ends[at] == node:
                for e in range(*row_span(parts, part, indptr, v)):
                    out[e] = _is_pair(src[indices[e]], node, codes, num_nodes)


@parallel_kernel
def _sum_rows(
    indptr: Array,
    indices: Array,
    weight: Array,
    has_weight: bool,
    nodes: Array,
    codes: Array,
    num_nodes: int,
    self_loops: bool,
    out: Array,
) -> None:
    for i in prange(len(nodes)):
        node = nodes[i]
        total = 0.0
        # An added loop has weight 1; of several the last one counts.
        loop = 1.0
        for e in range(indptr[node], indptr[node + 1]):
            value = float(weight[e]) if has_weight else 1.0
            if self_loops and indices[e] == node:
                loop = value
            elif not _is_pair(indices[e], node, codes, num_nodes):
                total += value
        out[i] = total + loop if self_loops else total


@parallel_kernel
def _find_spans(indptr: Array, indices: Array, low: Array, high: Array, out: Array) -> None:
    for p in prange(len(low)):
        for way in range(2):
            source, node = (low[p], high[p]) if way == 0 else (high[p], low[p])
            row = indices[indptr[node] : indptr[node + 1]]
            first = np.searchsorted(row, source)
            out[0, way, p] = indptr[node] + first
            out[1, way, p] = np.searchsorted(row, source, side="right") - first
