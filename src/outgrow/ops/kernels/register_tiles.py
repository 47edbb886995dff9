"""Tiles of several rows in vector registers: dense products inside kernels, at the speed of a matrix library.

A row that is read once serves all rows of a tile. Each number is summed in one order, whatever the height of the tile,
so heights, which the registers of the processor decide, change no result.

Letters: ``T`` rows of a tile, ``F`` columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import models, register_model
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, intrinsic
from outgrow.ops.kernels.registers import (
    RowAccumulator,
    broadcast_scalar,
    number_pointer,
    vector_pointer,
    vector_types,
)

Array = NDArray[Any]

_HEIGHTS = (4, 2)
"""Heights that are tried, the largest first."""


class TileAccumulator(types.Type):
    """Numba type of sums of several rows: the vectors of a `RowAccumulator` for each.

    Args:
        dtype: Numba type of the numbers.
        height: ``T``.
        width: ``F``.
    """

    def __init__(self, dtype: Any, height: int, width: int) -> None:
        self.row = RowAccumulator(dtype, width)
        self.dtype = dtype
        self.height = height
        super().__init__(name=f"Tile({dtype}, {height}, {width})")


@register_model(TileAccumulator)
class _TileModel(models.PrimitiveModel):
    """Data model of a tile: a structure of vectors, row by row."""

    def __init__(self, manager: Any, kind: TileAccumulator) -> None:
        vectors = vector_types(kind.row) * kind.height
        super().__init__(manager, kind, ir.LiteralStructType(vectors))  # type: ignore[no-untyped-call]


@cache
def tile_height(row_bytes: int) -> int:
    """Return ``T``: the rows of a tile that fill at most half of the vector registers; 1 if none of two or more do."""
    features = binding.get_host_cpu_features()
    count, size = (32, 64) if features.get("avx512f") else (16, 32)
    return next((height for height in _HEIGHTS if 2 * height * row_bytes <= count * size), 1)


@intrinsic
def zero_tile(context: Any, rows: Any, height: Any, width: Any) -> Any:
    """Return zeros of the type of an array of rows; ``height`` and ``width`` are constants. For kernels."""
    if not isinstance(height, types.IntegerLiteral) or not isinstance(width, types.IntegerLiteral):
        return None
    kind = TileAccumulator(rows.dtype, height.literal_value, width.literal_value)

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(rows, height, width), emit_llvm


@intrinsic
def add_outer_row(context: Any, tile: Any, factors: Any, first: Any, column: Any, rows: Any, row: Any) -> Any:
    """Return ``tile[t] + factors[first + t, column] * rows[row]`` for all ``t``. For kernels."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind, factors_type, first_type, column_type, rows_type, row_type = signature.args
        out, values = given[0], []
        for begin, count in kind.row.vector_spans:
            pointer = vector_pointer(context, builder, (rows_type, row_type), given[4:], begin, count)
            values.append(builder.load(pointer, align=kind.dtype.bitwidth // 8))
        for t in range(kind.height):
            pointer = number_pointer(context, builder, (factors_type, first_type, column_type), given[1:4], t)
            factor = builder.load(pointer)
            for number, (_, count) in enumerate(kind.row.vector_spans):
                at = t * len(values) + number
                # May be contracted, as sums of single rows are.
                product = builder.fmul(broadcast_scalar(builder, factor, count), values[number], flags=("contract",))
                summed = builder.fadd(builder.extract_value(out, at), product, flags=("contract",))
                out = builder.insert_value(out, summed, at)
        return out

    return tile(tile, factors, first, column, rows, row), emit_llvm


@intrinsic
def add_tile_to_rows(context: Any, tile: Any, out: Any, places: Any, first: Any) -> Any:
    """Add ``tile[t]`` to the first numbers of ``out[places[first + t]]``, for distinct places. For kernels."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind, out_type, places_type, first_type = signature.args
        spans = kind.row.vector_spans
        for t in range(kind.height):
            pointer = number_pointer(context, builder, (places_type, first_type), given[2:4], t)
            row = builder.load(pointer)
            for number, (begin, count) in enumerate(spans):
                place = (out_type, places_type.dtype)
                pointer = vector_pointer(context, builder, place, (given[1], row), begin, count)
                align = kind.dtype.bitwidth // 8
                sums = builder.extract_value(given[0], t * len(spans) + number)
                builder.store(builder.fadd(builder.load(pointer, align=align), sums), pointer, align=align)
        return context.get_dummy_value()

    return types.void(tile, out, places, first), emit_llvm


@device_function
def add_product(
    factors: Array,
    span: tuple[int, int],
    rows: Array,
    row_span: tuple[int, int],
    out: Array,
    places: Array,
    height: int,
    width: int,
) -> None:
    """Add ``sum over k of factors[m, k] * rows[begin + k]`` to ``out[places[m]]``, for ``m`` in a span. For kernels.

    Args:
        factors: ``[M, K]``.
        span: The first ``m``, and the one after the last.
        rows: ``[N, S]``.
        row_span: ``begin``, and the row after the last: as many rows as ``factors`` has columns that count.
        out: ``[L, S]``.
        places: ``[M]``, distinct within the span.
        height: ``T``, a constant.
        width: ``F``, a constant.
    """
    m, end = span
    begin, last = row_span
    while m + height <= end:
        tile = zero_tile(out, height, width)
        for row in range(begin, last):
            tile = add_outer_row(tile, factors, m, row - begin, rows, row)
        add_tile_to_rows(tile, out, places, m)
        m += height
    while m < end:
        single = zero_tile(out, 1, width)
        for row in range(begin, last):
            single = add_outer_row(single, factors, m, row - begin, rows, row)
        add_tile_to_rows(single, out, places, m)
        m += 1
