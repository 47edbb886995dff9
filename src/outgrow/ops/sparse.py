"""Sparse rows: features that are mostly zero, and their product with a dense weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.aggregation.spmm import spmm
from outgrow.ops.backend import as_numpy, gpu_dispatch, once_differentiable, parallel_kernel, prange
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.csc import transpose_csc
from outgrow.ops.kernels.numerics import kernel_view
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.rows.gather import concat_ranges

T = TypeVar("T")

_SLICE = 32
"""Columns of the gradient that a thread sums at a time: few, so that a slice of all rows fits the cache."""
_WIDE = 128
"""Columns of a product from which it gains more without zeros than their removal takes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseRows:
    """Constant ``[V, D]`` matrix in compressed rows (CSR), never converted to a dense one.

    Attributes:
        indptr: ``[V + 1]`` int64.
        indices: ``[N]`` int32; column of each stored value, ascending within a row.
        values: ``[N]`` floating.
        num_columns: ``D``.
        is_kept: Whether the matrix takes part in many steps, so that what is derived of it is kept with it: parts of
            it, and for the gradient of a product the values in the order of columns, each with its row of 4 bytes.
        has_zeros: Whether many of the values are zeros, as after dropout.
        cache: What is kept, by name.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor
    num_columns: int
    is_kept: bool = False
    has_zeros: bool = False
    cache: dict[str, object] = field(init=False, repr=False, default_factory=dict)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""
        return len(self), self.num_columns

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.values.device

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.indptr.nbytes + self.indices.nbytes + self.values.nbytes

    @property
    def num_values(self) -> int:
        """Number of stored numbers."""
        return len(self.values)

    def keep(self) -> SparseRows:
        """Return the same matrix, with which what is derived of it is kept."""
        return replace(self, is_kept=True)

    def new_zeros(self, *shape: int) -> Tensor:
        """Return zeros of the type and on the device of the values."""
        return self.values.new_zeros(*shape)

    def to(self, where: torch.dtype | torch.device) -> SparseRows:
        """Return the same matrix with values of another type, or on another device."""
        moved = replace(self, values=self.values.to(where))
        if isinstance(where, torch.dtype):
            return moved
        return replace(moved, indptr=self.indptr.to(where), indices=self.indices.to(where))

    def with_values(self, values: Tensor) -> SparseRows:
        """Return another matrix with the same pattern."""
        return replace(self, values=values, is_kept=False)

    def without_zeros(self) -> SparseRows:
        """Return the same matrix, in host memory, without the zeros among its values; made once."""
        if "without zeros" not in self.cache:
            self.cache["without zeros"] = _remove_zeros(self)
        return cast(SparseRows, self.cache["without zeros"])

    def slice_rows(self, first: int, last: int) -> SparseRows:
        """Return rows ``first`` to ``last - 1``, without copying columns and values."""
        low, high = int(self.indptr[first]), int(self.indptr[last])
        return SparseRows(
            indptr=self.indptr[first : last + 1] - low,
            indices=self.indices[low:high],
            values=self.values[low:high],
            num_columns=self.num_columns,
            is_kept=self.is_kept,
        )

    def index_rows(self, rows: Tensor) -> SparseRows:
        """Return these rows, ``[n]`` int64, in the given order."""
        sizes = self.indptr[rows + 1] - self.indptr[rows]
        indptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        values = concat_ranges(self.indptr[rows], sizes)
        return SparseRows(
            indptr=indptr, indices=self.indices[values], values=self.values[values], num_columns=self.num_columns
        )

    def to_dense(self) -> Tensor:
        """Return ``[V, D]``."""
        # Not by torch's sparse tensors, of which it warns that they are in beta state.
        row = torch.repeat_interleave(torch.arange(len(self), device=self.indptr.device), self.indptr.diff())
        out = self.values.new_zeros(self.shape)
        return out.index_put_((row, self.indices.long()), self.values, accumulate=True)

    def derive(self, name: str, make: Callable[[], T]) -> T:
        """Return something that is derived of the matrix, under a name; kept if the matrix is."""
        if not self.is_kept:
            return make()
        if name not in self.cache:
            self.cache[name] = make()
        return cast(T, self.cache[name])

    def __matmul__(self, weight_DO: Tensor) -> Tensor:
        """Return ``[V, O]``: the product with a dense ``[D, O]``, differentiable in the weight."""
        removes = self.has_zeros and weight_DO.shape[1] >= _WIDE and self.device.type == "cpu"
        return _SparseProduct.apply(self.without_zeros() if removes else self, weight_DO)  # type: ignore[no-any-return, no-untyped-call]


PartialRows = SparseRows | BlockRows
"""Matrices of which not all numbers are stored: those that are not are zeros."""


def slice_rows(values: Tensor | PartialRows, first: int, last: int) -> Tensor | PartialRows:
    """Return rows ``first`` to ``last - 1`` of a matrix, without a copy."""
    return values[first:last] if isinstance(values, Tensor) else values.slice_rows(first, last)


class _IndexableRows(Protocol):
    def index_rows(self, rows: Tensor, /) -> Tensor | PartialRows: ...


def index_rows(values: Tensor | _IndexableRows, nodes: Tensor) -> Tensor | PartialRows:
    """Return these rows, ``[n]`` int64, of a matrix."""
    return values[nodes] if isinstance(values, Tensor) else values.index_rows(nodes)


class _SparseProduct(torch.autograd.Function):
    """Product of sparse rows and a dense weight; the gradient of the weight is summed in row order."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight_DO: Tensor) -> Tensor:
        ctx.rows = rows
        out = pooled_empty((len(rows), weight_DO.shape[1]), weight_DO)
        sparse_product(rows.indptr, rows.indices, rows.values.to(weight_DO.dtype), weight_DO, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VO: Tensor) -> tuple[None, Tensor]:
        rows: SparseRows = ctx.rows
        out = pooled_empty((rows.num_columns, grad_VO.shape[1]), grad_VO)
        if not rows.is_kept or rows.device.type != "cpu":
            sparse_gradient(rows.indptr, rows.indices, rows.values.to(grad_VO.dtype), grad_VO, out)
            return None, out
        # Column by column, each in row order too: threads share out columns, and each is summed in registers.
        ends, row, values = rows.derive("order by columns", lambda: _order_by_columns(rows))
        spmm(ends, row, None, values.to(grad_VO.dtype)[:, None], grad_VO[:, None], out[:, None])
        return None, out


def _order_by_columns(rows: SparseRows) -> tuple[Tensor, Tensor, Tensor]:
    """Return the transpose: ``indptr [D + 1]``, and row and value of each stored number, in row order in a column."""
    ends, row, position = transpose_csc(rows.indptr, rows.indices, rows.num_columns, len(rows))
    # Values rather than their positions: each step would read values at random, a cache line for each.
    return ends, row, rows.values[position]


def _remove_zeros(rows: SparseRows) -> SparseRows:
    """Return a matrix without zeros among its values. Products of a step share what is derived of it."""
    ends = torch.zeros_like(rows.indptr)
    # Not by their bits in half precision, where a zero may be negative.
    chosen = as_numpy(rows.indptr), as_numpy(rows.values != 0), as_numpy(ends)
    _count_chosen(*chosen)
    torch.cumsum(ends, 0, out=ends)
    indices, values = (pooled_empty((int(ends[-1]),), of) for of in (rows.indices, rows.values))
    given, made = (rows.indices, kernel_view(rows.values)), (indices, kernel_view(values))
    _copy_chosen(*chosen, *map(as_numpy, given), *map(as_numpy, made))
    return replace(rows, indptr=ends, indices=indices, values=values, is_kept=True, has_zeros=False)


@gpu_dispatch
def sparse_product(indptr: Tensor, indices: Tensor, values_N: Tensor, dense_DO: Tensor, out_VO: Tensor) -> None:
    """Compute the product of sparse rows with ``dense_DO`` into ``out_VO``."""
    spmm(indptr, indices, None, values_N[:, None], dense_DO[:, None], out_VO[:, None])


@gpu_dispatch
def sparse_gradient(indptr: Tensor, indices: Tensor, values_N: Tensor, dense_VO: Tensor, out_DO: Tensor) -> None:
    """Compute the product of the transpose of sparse rows with ``dense_VO`` into ``out_DO``, in row order."""
    out_DO.zero_()
    _scatter_sum(as_numpy(indptr), as_numpy(indices), as_numpy(values_N), as_numpy(dense_VO), as_numpy(out_DO))


@parallel_kernel
def _count_chosen(indptr: NDArray[np.int64], is_chosen: NDArray[np.bool_], ends: NDArray[np.int64]) -> None:
    for v in prange(len(indptr) - 1):
        count = 0
        for i in range(indptr[v], indptr[v + 1]):
            count += is_chosen[i]
        ends[v + 1] = count


@parallel_kernel
def _copy_chosen(
    indptr: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
    ends: NDArray[np.int64],
    indices: NDArray[Any],
    values: NDArray[Any],
    out_indices: NDArray[Any],
    out_values: NDArray[Any],
) -> None:
    for v in prange(len(indptr) - 1):
        at, end = ends[v], ends[v + 1]
        for i in range(indptr[v], indptr[v + 1]):
            # What is not chosen is overwritten by the next number: no processor guesses which are drawn. What follows
            # the row belongs to another one.
            if at < end:
                out_indices[at], out_values[at] = indices[i], values[i]
                at += is_chosen[i]


@parallel_kernel
def _scatter_sum(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    values: NDArray[Any],
    dense: NDArray[Any],
    out: NDArray[Any],
) -> None:
    # Rows of many inputs hit the same row of the gradient, so threads share out the columns, not the rows: no
    # two write one number, and each number is summed in row order.
    for part in prange((out.shape[1] + _SLICE - 1) // _SLICE):
        first = part * _SLICE
        last = min(first + _SLICE, out.shape[1])
        for v in range(len(dense)):
            other = dense[v, first:last]
            for e in range(indptr[v], indptr[v + 1]):
                scale = values[e]
                row = out[indices[e], first:last]
                for f in range(last - first):
                    row[f] += scale * other[f]


def sum_sparse_rows(
    indptr: Tensor, indices: Tensor, weight_E: Tensor | None, rows: SparseRows, out_VdD: Tensor
) -> None:
    """Compute the weighted sums of sparse rows over in-edges into a dense matrix, in host memory, in edge order.

    Args:
        indptr: ``[Vd + 1]`` int64, in-edges of each destination.
        indices: ``[E]`` integer, the source of each edge.
        weight_E: ``[E]`` floating; None if all are 1.
        rows: ``[Vs, D]`` rows of the sources.
        out_VdD: ``[Vd, D]`` floating.
    """
    out_VdD.zero_()
    weight_E = out_VdD.new_ones(len(indices)) if weight_E is None else weight_E
    values_N = rows.values.to(out_VdD.dtype)
    stored = as_numpy(rows.indptr), as_numpy(rows.indices), as_numpy(values_N)
    _sum_sparse(as_numpy(indptr), as_numpy(indices), as_numpy(weight_E), *stored, as_numpy(out_VdD))


@parallel_kernel
def _sum_sparse(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    weight: NDArray[Any],
    row_ends: NDArray[np.int64],
    columns: NDArray[Any],
    values: NDArray[Any],
    out: NDArray[Any],
) -> None:
    # A destination is summed by one thread.
    for v in prange(len(out)):
        for e in range(indptr[v], indptr[v + 1]):
            scale = weight[e]
            source = indices[e]
            for i in range(row_ends[source], row_ends[source + 1]):
                out[v, columns[i]] += scale * values[i]
