"""Load balancing of kernels: parts of about equal numbers of rows and edges, and how kernels run over them.

A kernel over parts visits the rows of each part, and of each row the edges that are in the part:

    for part in prange(len(parts)):
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*row_span(parts, part, indptr, m)): ...

Only a row with more edges than a part is cut. The part in which it begins writes the row of ``out``; every
later part (`continues_row`) writes its piece to ``cut[part]``. After the parallel loop `add_split_rows` adds
these pieces in order, so the number of threads changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, serial_kernel
from outgrow.ops.kernels.numerics import is_half
from outgrow.ops.memory_pool import as_input_rows, as_output_rows

Array = NDArray[Any]

ROW, END_ROW, EDGE, END_EDGE = 0, 1, 2, 3
PARTS = 64
"""Most parts that run in parallel. Fixed, so that results do not depend on the number of threads."""
_LEAST = 256
"""Fewest rows and edges of a part: smaller ones cost more to schedule than to compute."""


def balanced_work(indptr: Array, most: int = PARTS) -> NDArray[np.int64]:
    """Return ``[P, 4]``: first row, last row + 1, first edge and last edge + 1 of each part, in order.

    Parts have about the same number of rows plus edges. Every row begins in one part; a row that is larger
    than a part continues in the next.

    Args:
        indptr: ``[M + 1]`` int64; the edges of row ``m`` are ``indptr[m]`` to ``indptr[m + 1]``.
        most: Most parts.
    """
    # Rows count as well as edges: a row without edges still costs the write of its result.
    size = int(indptr[-1] - indptr[0]) + len(indptr) - 1
    parts = np.empty((max(1, min(most, size // _LEAST)), 4), dtype=np.int64)
    _assign_work(indptr, parts)
    return parts


def split_rows(parts: Array, indptr: Array) -> NDArray[np.int64]:
    """Return the rows that are cut, in order; fewer than parts."""
    first = parts[1:, ROW]
    inside = first < len(indptr) - 1
    return np.unique(first[inside][parts[1:, EDGE][inside] > indptr[first[inside]]])


@serial_kernel
def row_span(parts: Array, part: int, indptr: Array, row: int) -> tuple[int, int]:
    """Return the first edge and last edge + 1 of a row within a part."""
    return max(indptr[row], parts[part, EDGE]), min(indptr[row + 1], parts[part, END_EDGE])


@serial_kernel
def continues_row(parts: Array, part: int, indptr: Array, row: int) -> bool:
    """Whether a row of this part began in an earlier part; it is then the first row of this part."""
    return bool(parts[part, EDGE] > indptr[row])


@serial_kernel
def covers_row(parts: Array, part: int, indptr: Array, row: int) -> bool:
    """Whether all edges of a row are in this part."""
    return bool(parts[part, EDGE] <= indptr[row] and indptr[row + 1] <= parts[part, END_EDGE])


@serial_kernel
def first_owner(parts: Array, indptr: Array) -> Array:
    """Return ``[P]``: the part in which the first row of each part begins."""
    out = np.arange(len(parts))
    for part in range(1, len(parts)):
        if continues_row(parts, part, indptr, parts[part, ROW]):
            # A row may span several parts: then the part before has the same first row, and the same owner.
            out[part] = out[part - 1] if parts[part - 1, ROW] == parts[part, ROW] else part - 1
    return out


@serial_kernel
def _assign_work(indptr: NDArray[np.int64], parts: NDArray[np.int64]) -> None:
    num_rows, count, origin = len(indptr) - 1, len(parts), indptr[0]
    total = indptr[num_rows] - origin + num_rows
    row, edge = 0, origin
    for part in range(count):
        parts[part, ROW], parts[part, EDGE] = row, edge
        row, edge = _find_split(indptr, total * (part + 1) // count, max(1, total // count))
        # A row that is cut here belongs to both parts: to this one up to the cut, to the next from there.
        begun = row < num_rows and edge > indptr[row]
        parts[part, END_ROW], parts[part, END_EDGE] = row + 1 if begun else row, edge


@serial_kernel
def _find_split(indptr: NDArray[np.int64], target: int, heavy: int) -> tuple[int, int]:
    """Return the row and edge after ``target`` rows and edges; within a row only if that is heavy."""
    # Bisect for the last row with at most ``target`` rows and edges before it.
    low, high = 0, len(indptr) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if indptr[middle] - indptr[0] + middle <= target:
            low = middle
        else:
            high = middle - 1
    before = indptr[low] - indptr[0] + low
    if low == len(indptr) - 1 or before == target:
        return low, indptr[low]
    inside = indptr[low] + target - before
    # Cut only what is larger than a part. Moving the boundary to the end of a smaller row costs little
    # balance, and spares the scratch row and the serial addition.
    if indptr[low + 1] - indptr[low] <= heavy or inside == indptr[low + 1]:
        return low + 1, indptr[low + 1]
    return low, inside


_LARGE = 1 << 24
LEAST_NUMBERS = 1 << 20
"""Numbers of all edges' rows below which a kernel with sums in registers is not compiled: it would not pay."""


def specialised_width(num_edges: int, columns: int) -> int | None:
    """Return the width to compile a kernel for: that of large work; None for the general kernel."""
    return columns if num_edges * columns >= _LARGE else None


def launch_balanced(
    make: Callable[[int | None], Callable[..., None]],
    indptr: Tensor,
    indices: Tensor,
    *operands: object,
    out: Tensor,
) -> None:
    """Run a kernel over the parts of the rows of ``out``, on CPU tensors.

    Args:
        make: Makes the kernel for a `specialised_width`. The kernel takes ``parts, indptr, indices``, the
            operands and ``columns, out, cut``.
        indptr: ``[M + 1]`` int64.
        indices: ``[E]``.
        operands: Tensors, which are passed through `as_kernel_array`, and other values, which are passed
            unchanged.
        out: ``[M, ..., F]``, written.
    """
    ends = as_numpy(indptr)
    columns = out.shape[-1]
    parts = balanced_work(ends)
    sums = as_output_rows(out)
    given = (as_kernel_array(value) if isinstance(value, Tensor) else value for value in operands)
    cut = np.empty((len(parts), math.prod(out.shape[1:])), sums.dtype)
    make(specialised_width(len(indices), columns))(parts, ends, as_numpy(indices), *given, columns, sums, cut)


def as_kernel_array(value: Tensor) -> Array:
    """Return a tensor as kernels over parts take it: rows ``[N, C, F]`` as ``[N, S]`` with ``S >= C * F``.

    Raises:
        TypeError: The tensor has half precision, which only weighted sums support.
    """
    if is_half(value.dtype):
        raise TypeError(f"this aggregation computes in float32 or float64, got {value.dtype}")
    return as_input_rows(value) if value.ndim > 1 else as_numpy(value)


@serial_kernel
def store_row(parts: Array, part: int, indptr: Array, row: int, total: Array, out: Array, cut: Array) -> None:
    """Write a part's sum of a row: to the row if it begins here, else to the part's scratch row."""
    target = cut[part] if continues_row(parts, part, indptr, row) else out[row]
    for f in range(len(total)):
        target[f] = total[f]


@serial_kernel
def add_split_rows(parts: Array, indptr: Array, out: Array, cut: Array) -> None:
    """Add the pieces of cut rows to these rows, in order."""
    # Serial and in the order of the parts: the sum of a row is the same whichever thread ran which part.
    for part in range(1, len(parts)):
        row = parts[part, ROW]
        if continues_row(parts, part, indptr, row):
            for f in range(cut.shape[1]):
                out[row, f] += cut[part, f]
