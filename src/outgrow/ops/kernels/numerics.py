"""Half precision, fast exp, software prefetch.

NumPy knows no bfloat16 and Numba no float16 on a CPU, so kernels get the bits: as uint16 those of a bfloat16, as int16
those of a float16. `as_float` widens them; other types it leaves as they are.

In float32 it is made of sums and products, so that the compiler computes several at once. ``exp(x) = 2^n exp(r)``
with ``n`` the integer nearest to ``x / ln 2``; ``exp(r) - 1`` is a polynomial on what remains, ``|r| <= ln 2 / 2``
(Cody & Waite, Software manual for the elementary functions, 1980). In float64 it is the library's.

Rows that a graph's edges name lie anywhere: the processor cannot guess them, and waits for each. A kernel that asks for
the row of an edge some edges ahead keeps several on their way: on narrow rows that is two to three times as fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import device_function, intrinsic, overload, serial_kernel

_BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}


def is_half(dtype: torch.dtype) -> bool:
    """Whether values of this type are stored in 16 bits."""
    return dtype in _BITS


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of a type are computed: float32 for half precision, else the type itself."""
    return torch.float32 if is_half(dtype) else dtype


def kernel_view(x: Tensor) -> Tensor:
    """The same memory as kernels take it: 16-bit integers for half precision, else the tensor itself."""
    return x.view(_BITS[x.dtype]) if is_half(x.dtype) else x


@intrinsic
def as_float(context: Any, value: Any) -> Any:
    """The float32 that 16 bits stand for; other values unchanged. For kernels."""
    if value not in (types.int16, types.uint16):
        return value(value), lambda context, builder, signature, given: given[0]

    def widen_float16(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fpext(builder.bitcast(given[0], ir.HalfType()), ir.FloatType())

    def widen_bfloat16(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(given[0], word), ir.Constant(word, 16)), ir.FloatType())

    return types.float32(value), widen_float16 if value == types.int16 else widen_bfloat16


_LOWEST = np.float32(-87.33654)
"""Below it the result is no normal number of float32."""
_ONE_OVER_LN_2, _HALF = np.float32(1.44269504), np.float32(0.5)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P2, _P3, _P4, _P5, _P6, _P7 = (
    np.float32(value)
    for value in (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
)
_ONE, _ZERO = np.float32(1), np.float32(0)


@overload
def exp_nonpositive(x: Any) -> Any:
    """``exp(x)`` for ``x <= 0``, within 2 units in the last place; 0 where that is no normal number. For kernels."""
    return _exp_single if x == types.float32 else _exp_double


@overload
def expm1_nonpositive(x: Any) -> Any:
    """``exp(x) - 1`` for ``x <= 0``, within 2 units in the last place. For kernels."""
    return _expm1_single if x == types.float32 else _expm1_double


def _exp_single(x: Any) -> Any:
    scale, rest = _reduce_argument(x)
    return _ZERO if x < _LOWEST else scale * rest + scale


def _exp_double(x: Any) -> Any:
    return np.exp(x)


def _expm1_single(x: Any) -> Any:
    scale, rest = _reduce_argument(x)
    return scale * rest + (scale - _ONE)


def _expm1_double(x: Any) -> Any:
    return np.expm1(x)


@device_function
def _reduce_argument(x: Any) -> Any:
    """``2^n`` and ``exp(r) - 1``."""
    inside = max(x, _LOWEST)
    n = np.floor(inside * _ONE_OVER_LN_2 + _HALF)
    r = inside - n * _LN_2_HIGH
    r = r - n * _LN_2_LOW
    series = ((((_P7 * r + _P6) * r + _P5) * r + _P4) * r + _P3) * r + _P2
    return _power_of_two(n), series * r * r + r


@intrinsic
def _power_of_two(context: Any, value: Any) -> Any:
    """``2^n`` in float32 for an integer ``n`` in [-126, 127], which is given as a float32."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(32)
        exponent = builder.add(builder.fptosi(given[0], word), ir.Constant(word, 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(word, 23)), ir.FloatType())

    return types.float32(types.float32), emit_llvm


Array = NDArray[Any]

LINE_BYTES = 64
NUMBERS_AHEAD = 32
"""How many edges ahead a kernel asks for the numbers of edges that are not in order."""
_BYTES_AHEAD = 4096
_MOST_EDGES = 16


@serial_kernel
def prefetch_distance(row_bytes: int) -> int:
    """How many edges ahead a kernel asks for rows of this size."""
    return max(2, min(_MOST_EDGES, _BYTES_AHEAD // max(1, row_bytes)))


@intrinsic
def prefetch_line(context: Any, rows: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of ``rows[row, column]``, a two-dimensional array. For kernels; changes no result."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        code: Any = cgutils  # has no types
        array_type, *index_types = signature.args
        array = context.make_array(array_type)(context, builder, given[0])
        at = [
            context.cast(builder, value, kind, types.intp) for value, kind in zip(given[1:], index_types, strict=True)
        ]
        address = code.get_item_pointer(context, builder, array_type, array, at, wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = code.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        to_read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [builder.bitcast(address, byte), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(rows, row, column), emit_llvm


@device_function
def prefetch_row(rows: Array, indices: Array, i: int, ahead: int, width: int) -> None:
    """Ask for ``width`` numbers of the row of the edge that is some edges ahead of edge ``i``. For kernels."""
    row = indices[min(i + ahead, len(indices) - 1)]
    for column in range(0, width, LINE_BYTES // rows.itemsize):
        prefetch_line(rows, row, column)
