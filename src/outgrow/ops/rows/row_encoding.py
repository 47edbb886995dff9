"""Rows stored with fewer bytes than they are computed with: in bfloat16, or in int8 with a scale for each row.

Reading and writing round once: sums of rows that were read are in the type of the computation. A row of int8 is its
numbers divided by ``max |x| / 127`` and rounded, padded to whole words, and that scale as a float32. A row with a
number that is not finite is read as NaN, so that a loss that diverges is noticed.

Letters: ``N`` rows, ``W`` numbers of a row, ``S`` stored numbers of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import types
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import overload, serial_kernel
from outgrow.ops.kernels.numerics import as_float
from outgrow.ops.memory_pool import pooled_empty

Array = NDArray[Any]

FULL, BFLOAT16, INT8 = "full", "bfloat16", "int8"
STORAGE_PRECISIONS = (FULL, BFLOAT16, INT8)
_SCALE_BYTES = 4
_MOST, _NOTHING = np.float32(127), np.float32(0)


def stored_row_bytes(width: int, number_bytes: int, precision: str = FULL) -> int:
    """Return the bytes of a stored row of ``width`` numbers, of which each takes ``number_bytes`` in full."""
    if precision == INT8 and width:
        return -(-width // _SCALE_BYTES) * _SCALE_BYTES + _SCALE_BYTES
    return width * (2 if precision == BFLOAT16 else number_bytes)


@dataclass(frozen=True)
class RowEncoding:
    """How rows of a type lie in a table.

    Attributes:
        dtype: Type of the numbers that are computed with.
        precision: One of `STORAGE_PRECISIONS`; ``full`` for the same bits.
    """

    dtype: torch.dtype
    precision: str = FULL

    @property
    def is_full(self) -> bool:
        """Whether rows are stored as they are computed with."""
        return self.precision == FULL

    @property
    def stored_dtype(self) -> torch.dtype:
        """Type of what is stored."""
        return {FULL: self.dtype, BFLOAT16: torch.bfloat16, INT8: torch.int8}[self.precision]

    @property
    def stored_array_dtype(self) -> np.dtype[Any]:
        """Type in which kernels take what is stored: the bits of bfloat16 as uint16."""
        return np.dtype({BFLOAT16: np.uint16, INT8: np.int8}[self.precision])

    def stored_width(self, width: int) -> int:
        """Return ``S`` for rows of ``W`` numbers."""
        return self.row_bytes(width) // self.stored_dtype.itemsize

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a stored row of ``W`` numbers."""
        return stored_row_bytes(width, self.dtype.itemsize, self.precision)

    def encode_rows(self, rows_NW: Tensor) -> Tensor:
        """Return ``[N, S]``: what is stored of rows in host memory; in full the rows themselves."""
        if self.is_full:
            return rows_NW
        stored_NS = pooled_empty((len(rows_NW), self.stored_width(rows_NW.shape[1])), rows_NW, self.stored_dtype)
        if self.precision == BFLOAT16:
            return stored_NS.copy_(rows_NW.detach())
        rows = rows_NW.detach().float().contiguous().numpy()
        _scale_to_int8(rows, stored_NS.numpy(), stored_NS[:, -_SCALE_BYTES:].view(torch.float32).numpy())
        return stored_NS


@overload
def decode_row(stored: Any, first: Any, stride: Any, out: Any, target: Any) -> Any:
    """Write the row of ``stride`` stored numbers that begins at ``stored[first]`` to ``out[target]``. For kernels."""
    if stored.dtype == out.dtype:
        return _copy_row
    return _decode_int8 if stored.dtype == types.int8 else _decode_bfloat16


def _copy_row(stored: Any, first: Any, stride: Any, out: Any, target: Any) -> Any:
    for column in range(out.shape[1]):
        out[target, column] = stored[first + column]


def _decode_bfloat16(stored: Any, first: Any, stride: Any, out: Any, target: Any) -> Any:
    for column in range(out.shape[1]):
        out[target, column] = as_float(stored[first + column])


def _decode_int8(stored: Any, first: Any, stride: Any, out: Any, target: Any) -> Any:
    scale = stored[first + stride - _SCALE_BYTES : first + stride].view(np.float32)[0]
    for column in range(out.shape[1]):
        out[target, column] = np.float32(stored[first + column]) * scale


@serial_kernel
def _scale_to_int8(rows: Array, out: Array, scales: Array) -> None:
    width = rows.shape[1]
    for i in range(len(rows)):
        largest = _NOTHING
        finite = True
        for column in range(width):
            value = abs(rows[i, column])
            finite &= value < np.inf
            largest = max(largest, value)
        scale = largest / _MOST
        usable = finite and scale > 0
        for column in range(width):
            # The scale of tiny numbers is itself rounded, so a quotient may be larger.
            scaled = min(max(rows[i, column] / scale, -_MOST), _MOST) if usable else _NOTHING
            out[i, column] = np.int8(np.rint(scaled))
        out[i, width : out.shape[1] - _SCALE_BYTES] = 0
        scales[i, 0] = scale if finite else np.float32(np.nan)
