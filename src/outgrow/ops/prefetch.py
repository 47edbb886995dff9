"""Asking for memory before it is needed, in compiled kernels.

Rows that a graph's edges name lie anywhere: the processor cannot guess them, and waits for each. A kernel that asks for
the row of an edge some edges ahead keeps several on their way: on narrow rows that is two to three times as fast.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from outgrow.ops.backend import inlined, intrinsic, sequential

Array = NDArray[Any]

LINE_BYTES = 64
NUMBERS_AHEAD = 32
"""How many edges ahead a kernel asks for the numbers of edges that are not in order."""
_BYTES_AHEAD = 4096
_MOST_EDGES = 16


@sequential
def edges_ahead(row_bytes: int) -> int:
    """How many edges ahead a kernel asks for rows of this size."""
    return max(2, min(_MOST_EDGES, _BYTES_AHEAD // max(1, row_bytes)))


@intrinsic
def prefetch(context: Any, rows: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of ``rows[row, column]``, a two-dimensional array. For kernels; changes no result."""

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
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

    return types.void(rows, row, column), emit


@inlined
def prefetch_row(rows: Array, indices: Array, i: int, ahead: int, width: int) -> None:
    """Ask for ``width`` numbers of the row of the edge that is some edges ahead of edge ``i``. For kernels."""
    row = indices[min(i + ahead, len(indices) - 1)]
    for column in range(0, width, LINE_BYTES // rows.itemsize):
        prefetch(rows, row, column)
