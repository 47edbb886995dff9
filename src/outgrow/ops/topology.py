"""What is derived from in-edges once: degrees, self-loops, the transpose."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import array, kernel, prange, sequential, tensor


class Transpose(NamedTuple):
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
    """``[V]`` float64: the sum of the in-edge weights of each node, or their number if ``weight`` is None."""
    if weight is None:
        return (indptr[1:] - indptr[:-1]).double()
    out = np.zeros(len(indptr) - 1)
    _row_sums(array(indptr), array(weight), out)
    return tensor(out)


def self_looped(indptr: Tensor, indices: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """In-edges with the self-loops taken out and one of weight 1 put at the end of every row.

    Returns:
        ``indptr [V + 1]``, ``indices [E']`` and ``weight [E']`` (None if it was).
    """
    old_ptr, old = array(indptr), array(indices)
    count = np.empty(len(indptr) - 1, dtype=np.int64)
    _count_others(old_ptr, old, count)
    new_ptr = np.zeros(len(indptr), dtype=np.int64)
    np.cumsum(count + 1, out=new_ptr[1:])
    new = np.empty(int(new_ptr[-1]), dtype=old.dtype)
    weights = np.ones(0 if weight is None else len(new), dtype=np.float32)
    given = np.ones(0, dtype=np.float32) if weight is None else array(weight)
    _fill_looped(old_ptr, old, given, new_ptr, new, weights)
    return tensor(new_ptr), tensor(new), None if weight is None else tensor(weights)


def transpose(edges: Edges) -> Transpose:
    """Out-edges of the sources of a block; built on first use and kept with the edges."""
    if "transpose" not in edges.derived:
        edges.derived["transpose"] = _build_transpose(edges)
    return cast(Transpose, edges.derived["transpose"])


def destination(edges: Edges) -> Tensor:
    """``[E]`` int64: destination row of each edge."""
    return torch.repeat_interleave(edges.indptr[1:] - edges.indptr[:-1])


def _build_transpose(edges: Edges) -> Transpose:
    indices = array(edges.indices)
    counts = np.bincount(indices, minlength=edges.num_src)
    ptr = np.zeros(edges.num_src + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    narrow = np.int32 if max(edges.num_edges, edges.num_dst) < 2**31 else np.int64
    dst, edge = np.empty(edges.num_edges, dtype=narrow), np.empty(edges.num_edges, dtype=narrow)
    _scatter_edges(array(edges.indptr), indices, ptr[:-1].copy(), dst, edge)
    return Transpose(tensor(ptr), tensor(dst), tensor(edge))


@kernel
def _row_sums(indptr: NDArray[np.int64], weight: NDArray[Any], out: NDArray[np.float64]) -> None:
    for v in prange(len(out)):
        total = 0.0
        for e in range(indptr[v], indptr[v + 1]):
            total += weight[e]
        out[v] = total


@kernel
def _count_others(indptr: NDArray[np.int64], indices: NDArray[Any], out: NDArray[np.int64]) -> None:
    for v in prange(len(out)):
        count = 0
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] != v:
                count += 1
        out[v] = count


@kernel
def _fill_looped(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    weight: NDArray[np.float32],
    new_ptr: NDArray[np.int64],
    new: NDArray[Any],
    new_weight: NDArray[np.float32],
) -> None:
    for v in prange(len(indptr) - 1):
        at = new_ptr[v]
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] != v:
                new[at] = indices[e]
                if len(weight) > 0:
                    new_weight[at] = weight[e]
                at += 1
        new[at] = v


@sequential
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
