"""Rows of several heads in vector registers: each head has a factor and a dot product of its own.

Letters: ``K`` heads, ``F`` columns of a head.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from outgrow.ops.backend import intrinsic
from outgrow.ops.kernels.registers import RowAccumulator, broadcast_scalar, number_pointer, vector_pointer


@intrinsic
def zero_heads(context: Any, rows: Any, heads: Any, width: Any) -> Any:
    """Return zeros of the type of an array of rows; ``heads`` and ``width`` are constants. For kernels."""
    if not isinstance(heads, types.IntegerLiteral) or not isinstance(width, types.IntegerLiteral):
        return None
    kind = RowAccumulator(rows.dtype, width.literal_value, heads.literal_value)

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(rows, heads, width), emit_llvm


@intrinsic
def add_weighted_heads(context: Any, total: Any, weight: Any, at: Any, rows: Any, row: Any) -> Any:
    """Return ``total[k] + weight[at, k] * rows[row, k]`` for all ``k``; ``rows`` is ``[N, K * F]``. For kernels."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind, weight_type, at_type, rows_type, row_type = signature.args
        factors = _load_heads(context, builder, kind, (weight_type, at_type), given[1:3])
        values = _load_row(context, builder, kind, (rows_type, row_type), given[3:])
        out = given[0]
        for number, (first, count) in enumerate(kind.vector_spans):
            factor = broadcast_scalar(builder, factors[first // kind.width], count)
            # May be contracted, as sums of single rows are.
            product = builder.fmul(factor, values[number], flags=("contract",))
            summed = builder.fadd(builder.extract_value(out, number), product, flags=("contract",))
            out = builder.insert_value(out, summed, number)
        return out

    return total(total, weight, at, rows, row), emit_llvm


@intrinsic
def store_head_products(
    context: Any, total: Any, rows: Any, row: Any, other: Any, other_row: Any, out: Any, at: Any
) -> Any:
    """Write ``out[at, k] = rows[row, k] . other[other_row, k]`` for all heads ``k``. For kernels.

    Heads and widths are those of ``total``. Products are added up pairwise, in the same order on every processor.
    """

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind, rows_type, row_type, other_type, other_row_type, out_type, at_type = signature.args
        left = _load_row(context, builder, kind, (rows_type, row_type), given[1:3])
        right = _load_row(context, builder, kind, (other_type, other_row_type), given[3:5])
        sums: list[Any] = [None] * kind.heads
        for number, (first, _) in enumerate(kind.vector_spans):
            head = first // kind.width
            product = _add_up(builder, builder.fmul(left[number], right[number]))
            sums[head] = product if sums[head] is None else builder.fadd(sums[head], product)
        # After all reads: the compiler cannot rule out that ``out`` overlaps the rows.
        for head, value in enumerate(sums):
            builder.store(value, _head_pointer(context, builder, (out_type, at_type), given[5:7], head))
        return context.get_dummy_value()

    return types.void(total, rows, row, other, other_row, out, at), emit_llvm


def _load_row(context: Any, builder: Any, kind: RowAccumulator, kinds: Any, given: Any) -> list[Any]:
    align = kind.dtype.bitwidth // 8
    pointers = [vector_pointer(context, builder, kinds, given, first, count) for first, count in kind.vector_spans]
    return [builder.load(pointer, align=align) for pointer in pointers]


def _load_heads(context: Any, builder: Any, kind: RowAccumulator, kinds: Any, given: Any) -> list[Any]:
    return [builder.load(_head_pointer(context, builder, kinds, given, head)) for head in range(kind.heads)]


def _head_pointer(context: Any, builder: Any, kinds: Any, given: Any, head: int) -> Any:
    column = ir.Constant(ir.IntType(64), head)
    return number_pointer(context, builder, (*kinds, types.intp), (*given, column), 0)


def _add_up(builder: Any, vector: Any) -> Any:
    """Return the sum of the numbers of a vector whose length is a power of two."""
    word = ir.IntType(32)
    while (count := vector.type.count) > 1:
        undefined = ir.Constant(vector.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(
                vector, undefined, ir.Constant(ir.VectorType(word, count // 2), list(range(begin, begin + count // 2)))
            )
            for begin in (0, count // 2)
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.Constant(word, 0))
