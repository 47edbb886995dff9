"""Edge weights: mean, symmetric, per relation and plain.

For rows in half precision the weights are float32. If in-edges were sampled, each weight is multiplied by the
number of in-edges that the edge represents: the expectation of a sum over a sample is the sum over all
in-edges (Horvitz & Thompson, JASA 47, 1952).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.ops.backend import as_numpy, gpu_dispatch, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.kernels.work_split import END_ROW, ROW, balanced_work, continues_row, covers_row, first_owner, row_span


def mean_weight(block: Block, dtype: torch.dtype) -> Tensor:
    """Return ``[E, 1]``: weight of each edge over the degree of its destination."""
    return _cached_weight(block, "mean", dtype, lambda: (1.0 / block.dst_degree, None))


def symmetric_weight(block: Block, dtype: torch.dtype) -> Tensor:
    """Return ``[E, 1]``: weight of each edge over the root of the product of the degrees of its ends.

    The normalisation of GCN (Kipf & Welling, ICLR 2017).
    """
    return _cached_weight(block, "symmetric", dtype, lambda: (block.dst_degree.rsqrt(), block.src_degree.rsqrt()))


def _cached_weight(
    block: Block, name: str, dtype: torch.dtype, factors: Callable[[], tuple[Tensor, Tensor | None]]
) -> Tensor:
    dtype = accumulate_dtype(dtype)
    edges = block.edges
    slot = f"{name} {dtype}"
    if slot not in edges.cache:
        require_divisible_block(block)
        dst_factor, src_factor = factors()
        out = dst_factor.new_empty(edges.num_edges, 1, dtype=dtype)
        scale_edge_weight(edges.indptr, edges.indices, edges.weight, dst_factor, src_factor, out.view(-1))
        edges.cache[slot] = apply_sample_weight(block, out)
    return cast(Tensor, edges.cache[slot])


def require_divisible_block(block: Block, *, by_relation: bool = False) -> None:
    """Refuse a block of weights that a layer cannot divide: see `require_divisible_weights`.

    Args:
        block: The block.
        by_relation: Whether sums are over the edges of a relation, of which those of weight 0 count for nothing.
    """
    edges = block.edges
    # On a device the host would wait for the answer; graphs are checked before training, which covers these blocks.
    if edges.weight is not None and edges.weight.device.type == "cpu":
        require_divisible_weights(edges.indptr, edges.weight, None if by_relation else block.dst_degree)


def require_divisible_weights(indptr: Tensor, weight_E: Tensor, degree_V: Tensor | None) -> None:
    """Refuse weights that cannot be divided by their sums: a sum of 0 or less would lose the node's messages.

    Args:
        indptr: ``[V + 1]`` int64.
        weight_E: ``[E]``.
        degree_V: ``[V]``: the sum of the in-edge weights of each node in the graph; None if it may be 0.

    Raises:
        InputError: A weight below 0, or a node whose in-edges all have weight 0.
    """
    if weight_E.numel() and weight_E.min() < 0:
        got = f"{int((weight_E < 0).sum()):,} of {len(weight_E):,} weights below 0, the least is {weight_E.min():g}"
    elif degree_V is None:
        return
    else:
        empty = (degree_V <= 0) & (indptr[1:] > indptr[:-1])
        if not empty.any():
            return
        got = f"{int(empty.sum()):,} nodes whose in-edges have weights that add up to 0"
    raise InputError(
        "a layer divides the weights of edges by their sums, which these do not allow",
        needed="weights of at least 0, and a sum above 0 at every node with in-edges, in a layer that normalises",
        got=got,
        repair="choose a layer that sums, such as GIN; or give positive weights, and edges of either sign a relation "
        "of their own",
    )


def apply_sample_weight(block: Block, weight_E1: Tensor) -> Tensor:
    """Return the weights times the number of in-edges that each edge represents."""
    return weight_E1 if block.sample_weight is None else weight_E1 * block.sample_weight[:, None]


@gpu_dispatch
def scale_edge_weight(
    indptr: Tensor,
    indices: Tensor,
    weight_E: Tensor | None,
    dst_factor_V: Tensor,
    src_factor_V: Tensor | None,
    out_E: Tensor,
) -> None:
    """Compute the weight of each edge times the float64 factors of its ends; 0 if that is not finite."""
    _scale_kernel(
        balanced_work(as_numpy(indptr)),
        as_numpy(indptr),
        as_numpy(indices),
        None if weight_E is None else as_numpy(weight_E),
        as_numpy(dst_factor_V),
        None if src_factor_V is None else as_numpy(src_factor_V),
        as_numpy(out_E),
    )


@parallel_kernel
def _scale_kernel(
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
            for e in range(*row_span(parts, part, indptr, v)):
                value = dst_factor[v]
                if src_factor is not None:
                    value *= src_factor[indices[e]]
                if weight is not None:
                    value *= weight[e]
                # A node without edges in the graph has degree 0: its factor is infinite.
                out[e] = value if np.isfinite(value) else 0.0


def graph_edge_weight(block: Block, dtype: torch.dtype) -> Tensor | None:
    """Return ``[E, 1]``: weight of each edge in the graph; None if all are 1. Converted once per block.

    For rows in half precision the weights are float32. Sampled edges are scaled by `apply_sample_weight`.
    """
    dtype = accumulate_dtype(dtype)
    edges = block.edges
    slot = f"graph {dtype}"
    if edges.weight is None and block.sample_weight is None:
        return None
    if slot not in edges.cache:
        weight_E = edges.indptr.new_ones(edges.num_edges) if edges.weight is None else edges.weight
        edges.cache[slot] = apply_sample_weight(block, weight_E.to(dtype)[:, None])
    return cast(Tensor, edges.cache[slot])


Array = NDArray[Any]


@parallel_kernel
def divide_by_totals(
    parts: Array, indptr: Array, relation: Array, weight: Array | None, total: Array, out: Array
) -> None:
    """Divide each edge's weight by the total of its row and relation; 0 if the quotient is not finite.

    Args:
        parts: ``[P, 4]``.
        indptr: ``[M + 1]`` int64.
        relation: ``[E]`` integer, below ``R``.
        weight: ``[E]``; None if all are 1.
        total: ``[P, 2, R]`` zeros: the totals of each part in the row continued from before it, and in the
            row that continues after it.
        out: ``[E]``, written.
    """
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            if not covers_row(parts, part, indptr, v):
                slot = 0 if continues_row(parts, part, indptr, v) else 1
                _add_relation_totals(row_span(parts, part, indptr, v), relation, weight, total[part, slot])
    # Serial and in order, as in `add_split_rows`: the totals of cut rows do not depend on the threads.
    begin = first_owner(parts, indptr)
    for part in range(len(parts)):
        total[begin[part], 1] += total[part, 0]
    for part in prange(len(parts)):
        own = np.zeros(total.shape[2])
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            span = row_span(parts, part, indptr, v)
            if covers_row(parts, part, indptr, v):
                _add_relation_totals(span, relation, weight, own)
                _divide_span(span, relation, weight, own, out)
                # Clear only what this row has touched: there may be more relations than edges in a row.
                for e in range(*span):
                    own[relation[e]] = 0
            else:
                totals = total[begin[part]] if continues_row(parts, part, indptr, v) else total[part]
                _divide_span(span, relation, weight, totals[1], out)


@serial_kernel
def _add_relation_totals(span: tuple[int, int], relation: Array, weight: Array | None, total: Array) -> None:
    """Add the weights of a span of edges to the totals of their relations."""
    for e in range(*span):
        total[relation[e]] += 1.0 if weight is None else weight[e]


@serial_kernel
def _divide_span(span: tuple[int, int], relation: Array, weight: Array | None, total: Array, out: Array) -> None:
    """Write the share of each edge of a span in the total of its relation."""
    for e in range(*span):
        value = (1.0 if weight is None else weight[e]) / total[relation[e]]
        out[e] = value if np.isfinite(value) else 0.0
