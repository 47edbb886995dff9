"""Product of a sparse matrix in compressed rows with a dense one, and the gradient of the dense one.

Letters: ``V`` rows, ``D`` columns of the sparse matrix, ``N`` stored values, ``O`` outputs.
"""

from __future__ import annotations

from torch import Tensor

from outgrow.ops.gpu.csc import transpose_csc
from outgrow.ops.gpu.spmm import spmm


def sparse_product(indptr: Tensor, indices: Tensor, values_N: Tensor, dense_DO: Tensor, out_VO: Tensor) -> None:
    """Compute ``out[v] = sum over stored values n of row v of values[n] * dense[indices[n]]``.

    Args:
        indptr: ``[V + 1]`` int64.
        indices: ``[N]`` int32 or int64, column of each stored value.
        values_N: ``[N]`` floating.
        dense_DO: ``[D, O]``.
        out_VO: ``[V, O]``, written.
    """
    spmm(indptr, indices, None, values_N[:, None], dense_DO[:, None], out_VO[:, None])


def sparse_gradient(indptr: Tensor, indices: Tensor, values_N: Tensor, dense_VO: Tensor, out_DO: Tensor) -> None:
    """Compute ``out[d] = sum over stored values n of column d of values[n] * dense[row of n]``.

    Args:
        indptr: ``[V + 1]`` int64.
        indices: ``[N]`` int32 or int64, column of each stored value.
        values_N: ``[N]`` floating.
        dense_VO: ``[V, O]``.
        out_DO: ``[D, O]``, written.
    """
    # Transposing gives each column of the result one program per segment: no atomic additions.
    by_column, row, position = transpose_csc(indptr, indices, len(out_DO), len(dense_VO))
    spmm(by_column, row, position, values_N[:, None], dense_VO[:, None], out_DO[:, None])
