"""Sparse matrices of arrays that came from elsewhere, looked at whole before compiled loops follow them.

SciPy's own check passes over the ends of rows wherever the last of them is 0 or less, and takes differences that can
overflow. Its loops check nothing: they read and write where the ends of rows say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_MOST_COLUMNS = 2**31 - 1


def checked_csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: Sequence[object]) -> csr_array:
    """The matrix of these arrays.

    Args:
        data: ``[N]`` real numbers.
        indices: ``[N]`` integer, column of each value.
        indptr: ``[V + 1]`` integer, ends of the rows.
        shape: ``V`` and the number of columns.

    Raises:
        ValueError: They are not the arrays of one matrix.
    """
    for name, values, kinds in (("data", data, "biuf"), ("indices", indices, "iu"), ("indptr", indptr, "iu")):
        if values.ndim != 1 or values.dtype.kind not in kinds:
            raise ValueError(f"{name} of {values.dtype} and shape {list(values.shape)}")
    counts = [n for n in shape if type(n) is int and n >= 0]
    if len(shape) != 2 or len(counts) != 2 or counts[1] > _MOST_COLUMNS:
        raise ValueError(f"a shape of {str(list(shape))[:80]}")
    _check_ends(indptr, counts[0], len(indices))
    if len(data) != len(indices):
        raise ValueError(f"{len(data)} values in {len(indices)} columns")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < counts[1]:
        raise ValueError(f"columns from {indices.min()} to {indices.max()} of {counts[1]}")
    made = csr_array((data, indices, indptr), shape=(counts[0], counts[1]))
    made.check_format(full_check=True)
    return made


def checked(matrix: csr_array) -> csr_array:
    """The same matrix, once its arrays have been looked at.

    Raises:
        ValueError: They are not the arrays of one matrix.
    """
    return checked_csr(matrix.data, matrix.indices, matrix.indptr, [int(n) for n in matrix.shape])


def _check_ends(indptr: NDArray[Any], num_rows: int, num_values: int) -> None:
    if len(indptr) != num_rows + 1:
        raise ValueError(f"{len(indptr)} ends of rows for {num_rows} rows")
    if int(indptr[0]) != 0 or int(indptr[-1]) > num_values:
        raise ValueError(f"ends of rows from {indptr[0]} to {indptr[-1]} for {num_values} values")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        raise ValueError(f"ends of rows that fall at row {int(np.argmax(falls))}")
