"""Results derived from in-edges once: degrees, self-loops, the transpose."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import as_numpy, as_tensor, gpu_dispatch, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.work_split import EDGE, END_ROW, ROW, balanced_work, continues_row, row_span

Array = NDArray[Any]


class TransposedEdges(NamedTuple):
    """Out-edges of the sources of a block.

    Attributes:
        indptr: ``[Vs + 1]`` int64; the out-edges of source ``u`` are ``indptr[u]`` to ``indptr[u + 1]``.
        indices: ``[E]`` int32 or int64; destination row of each out-edge, in edge order within a source.
        edge: ``[E]`` int32 or int64; position of each out-edge among the in-edges.
    """

    indptr: Tensor
    indices: Tensor
    edge: Tensor


def in_degree(indptr: Tensor, weight: Tensor | None) -> Tensor:
    """Return ``[V]`` float64: the sum of in-edge weights of each node, or their number without weights."""
    if weight is None:
        return (indptr[1:] - indptr[:-1]).double()
    out = torch.empty(len(indptr) - 1, dtype=torch.float64, device=indptr.device)
    weighted_in_degree(indptr, weight, out)
    return out


@gpu_dispatch
def weighted_in_degree(indptr: Tensor, weight: Tensor, out_V: Tensor) -> None:
    """Compute the sum of edge weights of each row into ``out_V``, which is float64."""
    parts = balanced_work(as_numpy(indptr))
    _sum_row_weights(parts, as_numpy(indptr), as_numpy(weight), as_numpy(out_V), np.empty(len(parts)))


@gpu_dispatch
def replace_self_loops(indptr: Tensor, indices: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the in-edges with exactly one self-loop of every node, at the end of its row.

    A node that has a self-loop keeps its weight, the last one that of several; an added loop has weight 1.

    Returns:
        ``indptr [V + 1]``, ``indices [E']`` and ``weight [E']`` (None if it was).
    """
    old_ptr, old, given = as_numpy(indptr), as_numpy(indices), None if weight is None else as_numpy(weight)
    parts = balanced_work(old_ptr)
    # The first pass counts loops, so that each part of the second knows where its edges go.
    loops = np.empty(len(parts), dtype=np.int64)
    _count_loops(parts, old_ptr, old, loops)
    num_nodes = len(old_ptr) - 1
    new_ptr = np.full(len(old_ptr), len(old) - loops.sum() + num_nodes)
    new = np.empty(new_ptr[-1], dtype=old.dtype)
    weights = None if given is None else np.ones(len(new), dtype=given.dtype)
    _copy_others(parts, old_ptr, old, given, np.cumsum(loops) - loops, new_ptr, new, weights)
    nodes = np.arange(num_nodes)
    new[new_ptr[1:] - 1] = nodes
    if weights is None or given is None:
        return as_tensor(new_ptr), as_tensor(new), None
    weights[new_ptr[1:] - 1] = self_loop_weights(old_ptr, old, given, nodes)
    return as_tensor(new_ptr), as_tensor(new), as_tensor(weights)


def find_self_loops(indptr: Tensor, indices: Tensor) -> Tensor:
    """Return ``[L]`` int64: positions of the self-loops among the edges, ascending; by one pass over these."""
    given, src = as_numpy(indptr), as_numpy(indices)
    parts = balanced_work(given)
    counts = np.empty(len(parts), dtype=np.int64)
    _count_loops(parts, given, src, counts)
    out = np.empty(counts.sum(), dtype=np.int64)
    if len(out):
        _list_loops(parts, given, src, np.cumsum(counts) - counts, out)
    return as_tensor(out)


def looped_in_degree(indptr: Tensor, indices: Tensor, weight: Tensor) -> Tensor:
    """Return `in_degree` of a weighted graph to which `replace_self_loops` has been applied."""
    out = np.empty(len(indptr) - 1)
    _sum_looped_rows(as_numpy(indptr), as_numpy(indices), as_numpy(weight), out)
    return as_tensor(out)


def self_loop_weights(indptr: Array, indices: Array, weight: Array, nodes: Array) -> Array:
    """Return ``[n]``: the weight of the last self-loop of each of some nodes; 1 where a node has none.

    Args:
        indptr: ``[V + 1]`` int64.
        indices: ``[E]`` integer.
        weight: ``[E]``.
        nodes: ``[n]`` int64.
    """
    edges = self_loop_edges(indptr, indices, nodes)
    out = np.ones(len(nodes), dtype=weight.dtype)
    found = edges >= 0
    out[found] = weight[edges[found]]
    return out


def self_loop_edges(indptr: Array, indices: Array, nodes: Array) -> Array:
    """Return ``[n]`` int64: the position of the last self-loop of each of some nodes; -1 where a node has none."""
    out = np.full(len(nodes), -1)
    _find_loop_edges(indptr, indices, nodes, out)
    return out


def transpose(edges: Edges) -> TransposedEdges:
    """Return the out-edges of the sources of a block: those kept with the edges, or else new ones."""
    if "transpose" in edges.cache:
        return cast(TransposedEdges, edges.cache["transpose"])
    return TransposedEdges(*transpose_csc(edges.indptr, edges.indices, edges.num_src, edges.num_dst))


def cached_transpose(edges: Edges) -> TransposedEdges:
    """Return the out-edges of the sources of a block; built on first use and kept with the edges."""
    edges.cache["transpose"] = transpose(edges)
    return cast(TransposedEdges, edges.cache["transpose"])


def destination(edges: Edges) -> Tensor:
    """Return ``[E]`` int64: destination row of each edge."""
    return torch.repeat_interleave(edges.indptr[1:] - edges.indptr[:-1], output_size=edges.num_edges)


def make_edge_index(edges: Edges) -> Tensor:
    """Return ``[2, E]`` int64: sources above destinations, as PyG's ``edge_index``, in the order of the edges."""
    return torch.stack([edges.indices.long(), destination(edges)])


@gpu_dispatch
def transpose_csc(indptr: Tensor, indices: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the fields of `TransposedEdges`; int32 if that is wide enough."""
    src = as_numpy(indices)
    ptr = torch.zeros(num_src + 1, dtype=torch.int64)
    narrow = torch.int32 if max(len(src), num_dst) < 2**31 else torch.int64
    dst = torch.empty(len(src), dtype=narrow)
    edge = torch.empty(len(src), dtype=narrow)
    write_transpose(indptr, indices, ptr, dst, edge)
    return ptr, dst, edge


def write_transpose(indptr: Tensor, indices: Tensor, ptr: Tensor, dst: Tensor, edge: Tensor) -> None:
    """Compute the fields of `TransposedEdges`, on a CPU.

    Writes ``ptr [Vs + 1]``, which must be zeros, ``dst [E]`` and ``edge [E]``.
    """
    _count_edges(as_numpy(indices), as_numpy(ptr))
    _scatter_edges(as_numpy(indptr), as_numpy(indices), as_numpy(ptr)[:-1].copy(), as_numpy(dst), as_numpy(edge))


@parallel_kernel
def _sum_row_weights(parts: Array, indptr: Array, weight: Array, out: Array, cut: Array) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            total = 0.0
            for e in range(*row_span(parts, part, indptr, v)):
                total += weight[e]
            # Pieces of cut rows are added below, in order: the sum does not depend on the threads.
            if continues_row(parts, part, indptr, v):
                cut[part] = total
            else:
                out[v] = total
    for part in range(1, len(parts)):
        if continues_row(parts, part, indptr, parts[part, ROW]):
            out[parts[part, ROW]] += cut[part]


@parallel_kernel
def _find_loop_edges(indptr: Array, indices: Array, nodes: Array, out: Array) -> None:
    for i in prange(len(nodes)):
        v = nodes[i]
        # From the end, for the last one.
        for e in range(indptr[v + 1] - 1, indptr[v] - 1, -1):
            if indices[e] == v:
                out[i] = e
                break


@parallel_kernel
def _count_loops(parts: Array, indptr: Array, indices: Array, out: Array) -> None:
    for part in prange(len(parts)):
        count = 0
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for e in range(*row_span(parts, part, indptr, v)):
                if indices[e] == v:
                    count += 1
        out[part] = count


@parallel_kernel
def _list_loops(parts: Array, indptr: Array, indices: Array, before: Array, out: Array) -> None:
    for part in prange(len(parts)):
        at = before[part]
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for e in range(*row_span(parts, part, indptr, v)):
                if indices[e] == v:
                    out[at] = e
                    at += 1


@parallel_kernel
def _sum_looped_rows(indptr: Array, indices: Array, weight: Array, out: Array) -> None:
    for v in prange(len(out)):
        total, loop = 0.0, 1.0
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] == v:
                loop = weight[e]
            else:
                total += weight[e]
        out[v] = total + loop


@parallel_kernel
def _copy_others(
    parts: Array,
    indptr: Array,
    indices: Array,
    weight: Array | None,
    before: Array,
    new_ptr: Array,
    new: Array,
    new_weight: Array | None,
) -> None:
    """Copy the edges that are not loops, leaving an entry open after each row.

    ``before`` counts the loops before each part.
    """
    for part in prange(len(parts)):
        # Where the part's first edge goes: edges before it, less their loops, plus one added loop per row
        # before it.
        at = parts[part, EDGE] - before[part] + parts[part, ROW]
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            if not continues_row(parts, part, indptr, v):
                new_ptr[v] = at
            for e in range(*row_span(parts, part, indptr, v)):
                if indices[e] != v:
                    new[at] = indices[e]
                    if weight is not None and new_weight is not None:
                        new_weight[at] = weight[e]
                    at += 1
            at += 1


@serial_kernel
def _count_edges(indices: NDArray[Any], ptr: NDArray[np.int64]) -> None:
    # Counting sort by source: two passes, and the edges of a source keep their order.
    for e in range(len(indices)):
        ptr[indices[e] + 1] += 1
    for v in range(1, len(ptr)):
        ptr[v] += ptr[v - 1]


@serial_kernel
def _scatter_edges(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    cursor: NDArray[np.int64],
    dst: NDArray[Any],
    edge: NDArray[Any],
) -> None:
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            at = cursor[indices[e]]
            dst[at] = v
            edge[at] = e
            cursor[indices[e]] = at + 1
