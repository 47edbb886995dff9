"""Comparison of products with thresholds: in float32, and in float64 where float32 cannot decide; draws of candidates.

Letters: ``Q`` queries, ``N`` candidates, ``F`` columns, ``P`` pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, as_tensor, device_function, parallel_kernel, prange
from outgrow.ops.rng import hash64, uniform01

Array = NDArray[Any]
_UNIT = 2.0**-24
"""Relative error of one rounding to float32."""
_SLACK = 16
"""Roundings beside those of a sum: of the query, of the threshold, of differences, of the bound itself."""
_TINY = 2.0**-60
"""What norms are at least: products of smaller ones may be too small for float32 to be exact about."""
_BLOCK = 256


def pair_products(queries_QF: Tensor, at_query_P: Tensor, rows_NF: Tensor, at_row_P: Tensor) -> Tensor:
    """Return ``[P]`` float32 on the CPU: dot products in float64, which depend on the two rows alone.

    Args:
        queries_QF: ``[Q, F]`` float64.
        at_query_P: ``[P]`` int64.
        rows_NF: ``[N, F]`` float32.
        at_row_P: ``[P]`` int64.
    """
    out = np.empty(len(at_query_P), np.float32)
    _pair_products(as_numpy(queries_QF), as_numpy(at_query_P), as_numpy(rows_NF), as_numpy(at_row_P), out)
    return as_tensor(out)


def row_norms(rows_NF: Tensor) -> Tensor:
    """Return ``[N]`` float32 on the CPU: Euclidean norms, for `count_products`."""
    norms: Tensor = torch.linalg.vector_norm(rows_NF, dim=1, dtype=torch.float64)
    return norms.clamp(min=_TINY).float()


def count_products(queries_QF: Tensor, rows_NF: Tensor, norms_N: Tensor, threshold_Q: Tensor) -> Tensor:
    """Return ``[2, Q]`` int64: how many products of each query are above and equal to its threshold.

    The products are those of `pair_products`. They are computed as one matrix product in float32, and once more in
    float64 where its error may change the result: by the bound of a sum of ``F`` products, whatever its order. NaN
    counts as above.

    Args:
        queries_QF: ``[Q, F]`` float64.
        rows_NF: ``[N, F]`` float32.
        norms_N: ``[N]`` float32, from `row_norms`.
        threshold_Q: ``[Q]`` float32, some of these products.
    """
    score_QN = queries_QF.float() @ rows_NF.T
    of_queries = row_norms(queries_QF) * (_UNIT * (queries_QF.shape[1] + _SLACK))
    out = np.empty((2, len(threshold_Q)), np.int64)
    operands = as_numpy(score_QN), as_numpy(queries_QF), as_numpy(rows_NF)
    _count_products(*operands, as_numpy(threshold_Q), as_numpy(of_queries), as_numpy(norms_N), out)
    return as_tensor(out)


def draw_nodes(first: int, last: int, number_P: Tensor, key: int) -> Tensor:
    """Return ``[P]`` int64: nodes from ``first`` to ``last - 1``, drawn uniformly by ``(key, number)``."""
    out = np.empty(len(number_P), np.int64)
    _draw_nodes(first, last, as_numpy(number_P), np.uint64(key), out)
    return as_tensor(out)


@device_function
def _dot(queries: Array, q: int, rows: Array, n: int) -> float:
    # Four sums, always the same ones: they need not wait for one another.
    columns = queries.shape[1]
    a = 0.0
    b = 0.0
    c = 0.0
    d = 0.0
    whole = columns - columns % 4
    for f in range(0, whole, 4):
        a += queries[q, f] * rows[n, f]
        b += queries[q, f + 1] * rows[n, f + 1]
        c += queries[q, f + 2] * rows[n, f + 2]
        d += queries[q, f + 3] * rows[n, f + 3]
    for f in range(whole, columns):
        a += queries[q, f] * rows[n, f]
    return (a + b) + (c + d)


@parallel_kernel
def _pair_products(queries: Array, at_query: Array, rows: Array, at_row: Array, out: Array) -> None:
    for p in prange(len(at_query)):
        out[p] = _dot(queries, at_query[p], rows, at_row[p])


@parallel_kernel
def _count_products(
    score: Array, queries: Array, rows: Array, threshold: Array, of_queries: Array, of_rows: Array, out: Array
) -> None:
    columns = score.shape[1]
    for q in prange(len(threshold)):
        above = 0
        same = 0
        limit = threshold[q]
        for first in range(0, columns, _BLOCK):
            last = min(columns, first + _BLOCK)
            # Without branches, so that many are compared at once; few blocks have one that is near.
            far = 0
            below = 0
            for n in range(first, last):
                bound = of_queries[q] * of_rows[n]
                far += score[q, n] - limit > bound
                below += score[q, n] - limit < -bound
            above += far
            if far + below == last - first:
                continue
            for n in range(first, last):
                bound = of_queries[q] * of_rows[n]
                # Not the opposite of the comparisons above, since every comparison with NaN is false.
                if not (score[q, n] - limit > bound or score[q, n] - limit < -bound):
                    exact = np.float32(_dot(queries, q, rows, n))
                    above += not exact <= limit
                    same += exact == limit
        out[0, q] = above
        out[1, q] = same


@parallel_kernel
def _draw_nodes(first: int, last: int, number: Array, key: np.uint64, out: Array) -> None:
    for p in prange(len(number)):
        out[p] = first + np.int64(uniform01(hash64(key, np.uint64(number[p]))) * (last - first))
