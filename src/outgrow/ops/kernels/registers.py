"""Accumulators in vector registers.

The compiler cannot rule out that the array of a sum overlaps the array of rows, so it loads and stores the
sum for each edge, number by number if it is narrow. An accumulator is a value, which stays in registers: on
rows of up to 64 numbers that is two to five times as fast. It adds in the same order, so results do not
change.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, intrinsic
from outgrow.ops.kernels.work_split import continues_row

Array = NDArray[Any]

MOST_BYTES = 512
"""Size of the largest accumulator that fits into the registers."""


class RowAccumulator(types.Type):
    """Numba type of a sum of rows: for each head, vectors whose lengths are powers of two, the longest first.

    Args:
        dtype: Numba type of the numbers.
        width: Count of the numbers of a head.
        heads: Heads, which lie one after the other.
    """

    def __init__(self, dtype: Any, width: int, heads: int = 1) -> None:
        self.dtype = dtype
        self.width = width
        self.heads = heads
        super().__init__(name=f"Accumulator({dtype}, {width}, {heads})")

    @property
    def vector_spans(self) -> list[tuple[int, int]]:
        """First number and count of each vector."""
        found = list[tuple[int, int]]()
        first = 0
        for _ in range(self.heads):
            # One vector per binary digit of the width: LLVM splits vectors of other lengths badly.
            for bit in reversed(range(self.width.bit_length())):
                if self.width >> bit & 1:
                    found.append((first, 1 << bit))
                    first += 1 << bit
        return found


@register_model(RowAccumulator)
class _AccumulatorModel(models.PrimitiveModel):
    """Data model of an accumulator: a structure of vectors."""

    def __init__(self, manager: Any, kind: RowAccumulator) -> None:
        super().__init__(manager, kind, ir.LiteralStructType(vector_types(kind)))  # type: ignore[no-untyped-call]


def vector_types(kind: RowAccumulator) -> list[ir.VectorType]:
    """Return the LLVM types of the vectors of an accumulator."""
    number = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
    return [ir.VectorType(number, count) for _, count in kind.vector_spans]


@intrinsic
def zero_accumulator(context: Any, rows: Any, width: Any) -> Any:
    """Return zeros of the type of an array of rows; ``width`` is a constant. For kernels."""
    # The width is part of the type, so it must be a literal: for None, Numba tries again with literal types.
    if not isinstance(width, types.IntegerLiteral):
        return None
    kind = RowAccumulator(rows.dtype, width.literal_value)

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(rows, width), emit_llvm


@intrinsic
def add_scaled_row(context: Any, total: Any, scale: Any, rows: Any, row: Any) -> Any:
    """Return ``total + scale * rows[row]``; ``rows`` is two-dimensional. For kernels."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind, scale_type, rows_type, row_type = signature.args
        factor = context.cast(builder, given[1], scale_type, kind.dtype)
        out = given[0]
        for number, (first, count) in enumerate(kind.vector_spans):
            pointer = vector_pointer(context, builder, (rows_type, row_type), given[2:], first, count)
            # Rows are aligned as single numbers only: LLVM would otherwise assume the alignment of the
            # vector.
            values = builder.load(pointer, align=kind.dtype.bitwidth // 8)
            # May be contracted to a fused multiply-add, as in kernels without accumulators: results must be
            # equal.
            product = builder.fmul(broadcast_scalar(builder, factor, count), values, flags=("contract",))
            summed = builder.fadd(builder.extract_value(out, number), product, flags=("contract",))
            out = builder.insert_value(out, summed, number)
        return out

    return total(total, scale, rows, row), emit_llvm


@intrinsic
def store_accumulator(context: Any, total: Any, out: Any, row: Any) -> Any:
    """Write ``total`` to the first numbers of ``out[row]``. For kernels."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind, *types_of_place = signature.args
        for number, (first, count) in enumerate(kind.vector_spans):
            pointer = vector_pointer(context, builder, types_of_place, given[1:], first, count)
            builder.store(builder.extract_value(given[0], number), pointer, align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(total, out, row), emit_llvm


@device_function
def store_row_accumulator(parts: Array, part: int, indptr: Array, row: int, total: Any, out: Array, cut: Array) -> None:
    """Write a part's sum of a row where `work_split.store_row` writes one that is an array. For kernels."""
    # A branch rather than a view of one row: the intrinsic takes an array and a row.
    if continues_row(parts, part, indptr, row):
        store_accumulator(total, cut, part)
    else:
        store_accumulator(total, out, row)


@device_function
def add_to_row(out: Array, at: int, scale: float, rows: Array, row: int, width: int) -> None:
    """Add ``scale * rows[row]`` to the first ``width`` numbers of ``out[at]``; ``width`` is a constant. For kernels."""
    total = add_scaled_row(zero_accumulator(out, width), out.dtype.type(1), out, at)
    store_accumulator(add_scaled_row(total, scale, rows, row), out, at)


@device_function
def copy_row(rows: Array, row: int, out: Array, at: int, width: int) -> None:
    """Copy the first ``width`` numbers of ``rows[row]`` to ``out[at]``; ``width`` is a constant. For kernels."""
    store_accumulator(add_scaled_row(zero_accumulator(rows, width), 1, rows, row), out, at)


def vector_pointer(context: Any, builder: Any, kinds: Any, given: Any, first: int, count: int) -> Any:
    """Return a pointer to numbers ``first`` to ``first + count - 1`` of a row, as one vector."""
    array_type, row_type = kinds
    column = ir.Constant(ir.IntType(64), first)
    address = number_pointer(context, builder, (array_type, row_type, types.intp), (*given, column), 0)
    vector = ir.VectorType(context.get_value_type(array_type.dtype), count)
    return builder.bitcast(address, vector.as_pointer())


def number_pointer(context: Any, builder: Any, kinds: Any, given: Any, further: int) -> Any:
    """Return a pointer to a number of an array, ``further`` places after given indices along the first axis."""
    code: Any = cgutils  # has no types
    array_type, *index_types = kinds
    array = context.make_array(array_type)(context, builder, given[0])
    at = [context.cast(builder, index, kind, types.intp) for index, kind in zip(given[1:], index_types, strict=True)]
    at[0] = builder.add(at[0], ir.Constant(ir.IntType(64), further))
    return code.get_item_pointer(context, builder, array_type, array, at, wraparound=False)


def broadcast_scalar(builder: Any, number: Any, count: int) -> Any:
    """Return a vector that repeats a number."""
    word = ir.IntType(32)
    vector = ir.VectorType(number.type, count)
    # Insert and shuffle is LLVM's idiom for a broadcast; it becomes one instruction.
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(word, 0))
    places = ir.Constant(ir.VectorType(word, count), [0] * count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), places)
