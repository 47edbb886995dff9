"""Building blocks of CPU kernels: half precision, a vectorisable exponential, software prefetch.

Half precision: NumPy has no bfloat16 and Numba no float16 on a CPU, so kernels take the bits, those of
bfloat16 as uint16 and those of float16 as int16. `as_float` converts them to float32 and leaves other types
as they are.

Exponential: in float32 it consists of sums and products, which the compiler vectorises. ``exp(x) = 2^n
exp(r)`` with ``n`` the integer nearest to ``x / ln 2``; ``exp(r) - 1`` is a polynomial of the remainder,
``|r| <= ln 2 / 2`` (Cody & Waite, Software manual for the elementary functions, 1980). In float64 it is the
library function.

Prefetch: the rows that edges refer to are scattered, so the processor cannot predict them and waits for each.
A kernel that requests rows some edges ahead keeps several requests in flight: two to three times as fast on
narrow rows.
"""

from __future__ import annotations

import sys
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
    """Return the type to compute in: float32 for half precision, else the type itself."""
    return torch.float32 if is_half(dtype) else dtype


def kernel_view(x: Tensor) -> Tensor:
    """Return the same memory as kernels take it: half precision as 16-bit integers."""
    return x.view(_BITS[x.dtype]) if is_half(x.dtype) else x


@intrinsic
def as_float(context: Any, value: Any) -> Any:
    """Convert the bits of a half-precision number to float32; return other values unchanged. For kernels."""
    if value not in (types.int16, types.uint16):
        return value(value), lambda context, builder, signature, given: given[0]

    def widen_float16(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        if not _converts_float16(context):
            return _widen_float16_bits(builder, given[0])
        return builder.fpext(builder.bitcast(given[0], ir.HalfType()), ir.FloatType())

    def widen_bfloat16(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        # A bfloat16 is the upper half of a float32.
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(given[0], word), ir.Constant(word, 16)), ir.FloatType())

    return types.float32(value), widen_float16 if value == types.int16 else widen_bfloat16


def _converts_float16(context: Any) -> bool:
    """Whether the processor that kernels are compiled for has an instruction that widens float16."""
    triple, _, features = context.codegen().magic_tuple()
    return not triple.startswith(("x86_64", "i686")) or "+f16c" in features.split(",")


def _widen_float16_bits(builder: Any, bits: Any) -> Any:
    """Return the float32 of a float16 by integer and float32 instructions alone, exactly.

    Without an instruction for it, LLVM calls a function of the C compiler's run-time library, which Numba does not
    link: the process would abort.
    """
    word = ir.IntType(32)
    number = ir.FloatType()
    high = builder.shl(builder.zext(bits, word), ir.Constant(word, 16))
    sign = builder.and_(high, ir.Constant(word, 0x80000000))
    magnitude = builder.add(high, high)
    # Exponent and mantissa in the place of those of float32, with an exponent too large by 112.
    moved = builder.add(builder.lshr(magnitude, ir.Constant(word, 4)), ir.Constant(word, 0xE0 << 23))
    normal = builder.fmul(builder.bitcast(moved, number), ir.Constant(number, 2.0**-112))
    # A subnormal number is its mantissa times 2^-24: below the last digit of 0.5, which is taken off again.
    padded = builder.or_(builder.lshr(magnitude, ir.Constant(word, 17)), ir.Constant(word, 126 << 23))
    subnormal = builder.fsub(builder.bitcast(padded, number), ir.Constant(number, 0.5))
    is_subnormal = builder.icmp_unsigned("<", magnitude, ir.Constant(word, 1 << 27))
    chosen = builder.select(is_subnormal, builder.bitcast(subnormal, word), builder.bitcast(normal, word))
    return builder.bitcast(builder.or_(sign, chosen), number)


_LOWEST = np.float32(-87.33654)
"""Smallest argument whose exponential is a normal number of float32."""
_ONE_OVER_LN_2, _HALF = np.float32(1.44269504), np.float32(0.5)
# ln 2 in two parts. The high one has so few bits that its products with n are exact: no digit of r is lost.
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P2, _P3, _P4, _P5, _P6, _P7 = (
    np.float32(value)
    for value in (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
)
_ONE, _ZERO = np.float32(1), np.float32(0)


@overload
def exp_nonpositive(x: Any) -> Any:
    """Return ``exp(x)`` for ``x <= 0``, within 2 ulp; 0 where it would be subnormal. For kernels."""
    return _exp_single if x == types.float32 else _exp_double


@overload
def expm1_nonpositive(x: Any) -> Any:
    """Return ``exp(x) - 1`` for ``x <= 0``, within 2 ulp. For kernels."""
    return _expm1_single if x == types.float32 else _expm1_double


def _exp_single(x: Any) -> Any:
    scale, rest = _reduce_argument(x)
    # Not ``scale * (rest + 1)``: adding 1 first would round away digits of the small remainder.
    return _ZERO if x < _LOWEST else scale * rest + scale


def _exp_double(x: Any) -> Any:
    return np.exp(x)


def _expm1_single(x: Any) -> Any:
    scale, rest = _reduce_argument(x)
    # Near 0 the scale is 1 and the second term exactly 0, so nothing cancels.
    return scale * rest + (scale - _ONE)


def _expm1_double(x: Any) -> Any:
    return np.expm1(x)


@device_function
def _reduce_argument(x: Any) -> Any:
    """Return ``2^n`` and ``exp(r) - 1``."""
    # Clamped, so that 2^n has a valid exponent whatever x is: its bits are assembled below.
    inside = max(x, _LOWEST)
    n = np.floor(inside * _ONE_OVER_LN_2 + _HALF)
    r = inside - n * _LN_2_HIGH
    r = r - n * _LN_2_LOW
    series = ((((_P7 * r + _P6) * r + _P5) * r + _P4) * r + _P3) * r + _P2
    return _power_of_two(n), series * r * r + r


@intrinsic
def _power_of_two(context: Any, value: Any) -> Any:
    """Return ``2^n`` in float32 for an integer ``n`` in [-126, 127], passed as a float32."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(32)
        # A float32 with mantissa 0 and exponent field n + 127.
        exponent = builder.add(builder.fptosi(given[0], word), ir.Constant(word, 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(word, 23)), ir.FloatType())

    return types.float32(types.float32), emit_llvm


Array = NDArray[Any]

_BIG = sys.byteorder == "big"
LINE_BYTES = 64
NUMBERS_AHEAD = 32
"""Edges ahead to prefetch a number of, if edges are not visited in order."""
# Few requests leave the processor waiting; many evict rows before they are used.
_BYTES_AHEAD = 4096
_MOST_EDGES = 16


@serial_kernel
def prefetch_distance(row_bytes: int) -> int:
    """Return how many edges ahead to prefetch rows of this size."""
    return max(2, min(_MOST_EDGES, _BYTES_AHEAD // max(1, row_bytes)))


@intrinsic
def prefetch_line(context: Any, rows: Any, row: Any, column: Any) -> Any:
    """Prefetch the cache line of ``rows[row, column]`` of a two-dimensional array. For kernels."""
    return types.void(rows, row, column), _emit_prefetch


@intrinsic
def prefetch_entry(context: Any, values: Any, at: Any) -> Any:
    """Prefetch the cache line of ``values[at]`` of a one-dimensional array. For kernels."""
    return types.void(values, at), _emit_prefetch


@intrinsic
def load_word(context: Any, data: Any, at: Any) -> Any:
    """Return the 8 bytes of ``data``, ``[n]`` uint8, from ``at`` on as a uint64, the first one lowest. For kernels.

    Bytes need no alignment, and 8 of them must be there.
    """

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        code: Any = cgutils  # has no types
        array = context.make_array(signature.args[0])(context, builder, given[0])
        index = context.cast(builder, given[1], signature.args[1], types.intp)
        address = code.get_item_pointer(context, builder, signature.args[0], array, [index], wraparound=False)
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)
        # Numba knows no type of the loaded value but that of the pointer: an integer of 64 bits.
        return builder.call(builder.module.declare_intrinsic("llvm.bswap", [ir.IntType(64)]), [word]) if _BIG else word

    return types.uint64(data, at), emit_llvm


def _emit_prefetch(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    code: Any = cgutils  # has no types
    array_type, *index_types = signature.args
    array = context.make_array(array_type)(context, builder, given[0])
    at = [context.cast(builder, value, kind, types.intp) for value, kind in zip(given[1:], index_types, strict=True)]
    address = code.get_item_pointer(context, builder, array_type, array, at, wraparound=False)
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = code.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
    )
    # Arguments of LLVM's prefetch: for reading, keep in all cache levels, data cache.
    to_read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(address, byte), to_read, keep, data])
    return context.get_dummy_value()


@device_function
def prefetch_row(rows: Array, indices: Array, i: int, ahead: int, width: int) -> None:
    """Prefetch ``width`` numbers of the row of the edge ``ahead`` edges after edge ``i``. For kernels."""
    # Requesting the last row again is cheaper than a branch at the end of the array.
    row = indices[min(i + ahead, len(indices) - 1)]
    for column in range(0, width, LINE_BYTES // rows.itemsize):
        prefetch_line(rows, row, column)
