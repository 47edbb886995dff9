"""What kernels over parts share: how they are run, the sum of the pieces of cut rows, the width they are compiled for.

Every part writes its rows of ``out``; its share of a row that began in a part before it goes to ``cut[part]``, and
`add_cut` adds these shares up after the parallel loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, sequential
from outgrow.ops.buffers import flat_rows, written_rows
from outgrow.ops.half import is_half
from outgrow.ops.parts import ROW, even_parts, is_continued

Array = NDArray[Any]

_LARGE = 1 << 24


def fixed_width(num_edges: int, columns: int) -> int | None:
    """The width that a kernel is compiled for: that of the rows if the work is large; None for one kernel for all."""
    return columns if num_edges * columns >= _LARGE else None


def run_over_parts(
    make: Callable[[int | None], Callable[..., None]],
    indptr: Tensor,
    indices: Tensor,
    *operands: object,
    out: Tensor,
) -> None:
    """Run a kernel on the parts of the edges of ``out``'s rows, on CPU tensors.

    Args:
        make: Makes the kernel for a `fixed_width`. It takes ``parts, indptr, indices, *operands, columns, out, cut``.
        indptr: ``[M + 1]`` int64.
        indices: ``[E]``.
        operands: Tensors, which it takes as `as_array` gives them, and anything else, which it takes as it is.
        out: ``[M, ..., F]``, written.
    """
    ends, columns = array(indptr), out.shape[-1]
    parts, sums = even_parts(ends), written_rows(out)
    given = (as_array(value) if isinstance(value, Tensor) else value for value in operands)
    cut = np.empty((len(parts), math.prod(out.shape[1:])), sums.dtype)
    make(fixed_width(len(indices), columns))(parts, ends, array(indices), *given, columns, sums, cut)


def as_array(value: Tensor) -> Array:
    """A tensor as kernels over parts take it: rows ``[N, C, F]`` as ``[N, S]`` with ``S >= C * F``.

    Raises:
        TypeError: Half precision, which weighted sums alone take.
    """
    if is_half(value.dtype):
        raise TypeError(f"this aggregation computes in float32 or float64, got {value.dtype}")
    return flat_rows(value) if value.ndim > 1 else array(value)


@sequential
def place(parts: Array, part: int, indptr: Array, row: int, total: Array, out: Array, cut: Array) -> None:
    """Write what a part has of a row: to the row if it begins here, else to the part's row for pieces."""
    mine = cut[part] if is_continued(parts, part, indptr, row) else out[row]
    for f in range(len(total)):
        mine[f] = total[f]


@sequential
def add_cut(parts: Array, indptr: Array, out: Array, cut: Array) -> None:
    """Add the pieces of cut rows to these, in order."""
    for part in range(1, len(parts)):
        row = parts[part, ROW]
        if is_continued(parts, part, indptr, row):
            for f in range(cut.shape[1]):
                out[row, f] += cut[part, f]
