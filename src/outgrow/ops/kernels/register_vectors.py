"""Arithmetic of short rows in vector registers, number by number: one instruction for all heads of an edge.

A loop over a handful of heads is too short for the compiler to vectorise. Each function does to the numbers of a
`RowAccumulator` what a kernel would do to them one by one, with the same roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from outgrow.ops.backend import intrinsic
from outgrow.ops.kernels.registers import RowAccumulator, broadcast_scalar, vector_pointer

CONTRACT = ("contract",)
"""Products may be contracted with sums to fused multiply-adds, as everywhere in kernels."""


@intrinsic
def load_vector(context: Any, rows: Any, row: Any, width: Any) -> Any:
    """Return the first ``width`` numbers of ``rows[row]``; ``width`` is a constant. For kernels."""
    if not isinstance(width, types.IntegerLiteral):
        return None
    kind = RowAccumulator(rows.dtype, width.literal_value)

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        out = context.get_constant_undef(kind)
        for number, (first, count) in enumerate(kind.vector_spans):
            pointer = vector_pointer(context, builder, signature.args[:2], given[:2], first, count)
            values = builder.load(pointer, align=kind.dtype.bitwidth // 8)
            out = builder.insert_value(out, values, number)
        return out

    return kind(rows, row, width), emit_llvm


@intrinsic
def fill_vector(context: Any, like: Any, value: Any) -> Any:
    """Return a vector of one value, as long as another one. For kernels."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        scalar = context.cast(builder, given[1], signature.args[1], like.dtype)
        out = given[0]
        for number, (_, count) in enumerate(like.vector_spans):
            out = builder.insert_value(out, broadcast_scalar(builder, scalar, count), number)
        return out

    return like(like, value), emit_llvm


@intrinsic
def add_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return ``a + b``. For kernels."""
    return a(a, b), _by_number(lambda builder, x, y: builder.fadd(x, y, flags=CONTRACT))


@intrinsic
def subtract_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return ``a - b``. For kernels."""
    return a(a, b), _by_number(lambda builder, x, y: builder.fsub(x, y, flags=CONTRACT))


@intrinsic
def multiply_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return ``a * b``. For kernels."""
    return a(a, b), _by_number(lambda builder, x, y: builder.fmul(x, y, flags=CONTRACT))


@intrinsic
def divide_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return ``a / b``. For kernels."""
    return a(a, b), _by_number(lambda builder, x, y: builder.fdiv(x, y, flags=CONTRACT))


@intrinsic
def larger_of_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return the larger of ``a`` and ``b``. For kernels."""
    return a(a, b), _by_number(lambda builder, x, y: builder.select(builder.fcmp_ordered(">", y, x), y, x))


@intrinsic
def smaller_of_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return the smaller of ``a`` and ``b``. For kernels."""
    return a(a, b), _by_number(lambda builder, x, y: builder.select(builder.fcmp_ordered("<", y, x), y, x))


@intrinsic
def select_positive(context: Any, sign: Any, a: Any, b: Any) -> Any:
    """Return ``a`` where ``sign > 0``, else ``b``. For kernels."""

    def choose(builder: Any, by: Any, x: Any, y: Any) -> Any:
        # Unordered: the condition of the other value is ``<= 0``, which is false for NaN.
        return builder.select(builder.fcmp_unordered(">", by, ir.Constant(by.type, [0.0] * by.type.count)), x, y)

    return a(sign, a, b), _by_number(choose)


def _by_number(apply: Callable[..., Any]) -> Callable[..., Any]:
    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        out = given[0]
        for number in range(len(signature.return_type.vector_spans)):
            operands = [builder.extract_value(value, number) for value in given]
            out = builder.insert_value(out, apply(builder, *operands), number)
        return out

    return emit_llvm
