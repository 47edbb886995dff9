"""Mean, symmetric, per-relation and plain edge weights.

For rows in half precision weights are float32. Where in-edges were sampled, each is weighted by how many it stands for:
so the sum over a sample is, in the mean over samples, that over all in-edges (Horvitz & Thompson, JASA 47, 1952).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.backend import array, kernel, prange, sequential, twinned
from outgrow.ops.kernels.numerics import computed
from outgrow.ops.kernels.work_split import END_ROW, ROW, begins, even_parts, is_continued, is_whole, piece


def mean_weight(block: Block, dtype: torch.dtype) -> Tensor:
    """``[E, 1]``: weight of each edge over the degree of its destination."""
    return _kept(block, "mean", dtype, lambda: (1.0 / block.dst_degree, None))


def symmetric_weight(block: Block, dtype: torch.dtype) -> Tensor:
    """``[E, 1]``: weight of each edge over the root of the product of both degrees (Kipf & Welling, ICLR 2017)."""
    return _kept(block, "symmetric", dtype, lambda: (block.dst_degree.rsqrt(), block.src_degree.rsqrt()))


def _kept(block: Block, name: str, dtype: torch.dtype, factors: Callable[[], tuple[Tensor, Tensor | None]]) -> Tensor:
    dtype = computed(dtype)
    edges, slot = block.edges, f"{name} {dtype}"
    if slot not in edges.derived:
        dst_factor, src_factor = factors()
        out = dst_factor.new_empty(edges.num_edges, 1, dtype=dtype)
        scale_edges(edges.indptr, edges.indices, edges.weight, dst_factor, src_factor, out.view(-1))
        edges.derived[slot] = as_sampled(block, out)
    return cast(Tensor, edges.derived[slot])


def as_sampled(block: Block, weight_E1: Tensor) -> Tensor:
    """The weights times the number of in-edges that each edge stands for; themselves where each stands for itself."""
    return weight_E1 if block.stands_for is None else weight_E1 * block.stands_for[:, None]


@twinned
def scale_edges(
    indptr: Tensor,
    indices: Tensor,
    weight_E: Tensor | None,
    dst_factor_V: Tensor,
    src_factor_V: Tensor | None,
    out_E: Tensor,
) -> None:
    """Weight of each edge times the float64 factors of its ends, written to ``out_E``; 0 where that is not finite."""
    _scale(
        even_parts(array(indptr)),
        array(indptr),
        array(indices),
        None if weight_E is None else array(weight_E),
        array(dst_factor_V),
        None if src_factor_V is None else array(src_factor_V),
        array(out_E),
    )


@kernel
def _scale(
    parts: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    weight: NDArray[Any] | None,
    dst_factor: NDArray[np.float64],
    src_factor: NDArray[np.float64] | None,
    out: NDArray[Any],
) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for e in range(*piece(parts, part, indptr, v)):
                value = dst_factor[v]
                if src_factor is not None:
                    value *= src_factor[indices[e]]
                if weight is not None:
                    value *= weight[e]
                out[e] = value if np.isfinite(value) else 0.0


def graph_weight(block: Block, dtype: torch.dtype) -> Tensor | None:
    """``[E, 1]``: weight of each edge in the graph; None if all are 1. Converted once per block.

    For rows in half precision weights are float32. Edges that stand for others weigh as much as
    they (see `as_sampled`).
    """
    dtype = computed(dtype)
    edges, slot = block.edges, f"graph {dtype}"
    if edges.weight is None and block.stands_for is None:
        return None
    if slot not in edges.derived:
        weight_E = edges.indptr.new_ones(edges.num_edges) if edges.weight is None else edges.weight
        edges.derived[slot] = as_sampled(block, weight_E.to(dtype)[:, None])
    return cast(Tensor, edges.derived[slot])


Array = NDArray[Any]


@kernel
def divide_by_totals(
    parts: Array, indptr: Array, relation: Array, weight: Array | None, total: Array, out: Array
) -> None:
    """The weight of each edge over that of all edges of its row and its relation; 0 where that is not finite.

    Args:
        parts: ``[P, 4]``.
        indptr: ``[M + 1]`` int64.
        relation: ``[E]`` integer, below ``R``.
        weight: ``[E]``; None if all are 1.
        total: ``[P, 2, R]`` zeros, for what a part adds to the row that began before it, and to the one that goes on.
        out: ``[E]``, written.
    """
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            if not is_whole(parts, part, indptr, v):
                slot = 0 if is_continued(parts, part, indptr, v) else 1
                _count(piece(parts, part, indptr, v), relation, weight, total[part, slot])
    begin = begins(parts, indptr)
    for part in range(len(parts)):
        total[begin[part], 1] += total[part, 0]
    for part in prange(len(parts)):
        own = np.zeros(total.shape[2])
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            span = piece(parts, part, indptr, v)
            if is_whole(parts, part, indptr, v):
                _count(span, relation, weight, own)
                _divide(span, relation, weight, own, out)
                for e in range(*span):
                    own[relation[e]] = 0
            else:
                mine = total[begin[part]] if is_continued(parts, part, indptr, v) else total[part]
                _divide(span, relation, weight, mine[1], out)


@sequential
def _count(span: tuple[int, int], relation: Array, weight: Array | None, total: Array) -> None:
    """Add the weights of a span of edges to the totals of their relations."""
    for e in range(*span):
        total[relation[e]] += 1.0 if weight is None else weight[e]


@sequential
def _divide(span: tuple[int, int], relation: Array, weight: Array | None, total: Array, out: Array) -> None:
    """The share of each edge of a span in the total of its relation."""
    for e in range(*span):
        value = (1.0 if weight is None else weight[e]) / total[relation[e]]
        out[e] = value if np.isfinite(value) else 0.0
