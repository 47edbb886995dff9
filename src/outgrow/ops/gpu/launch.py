"""Launching of GPU kernels, shapes of tiles, sums over long rows.

Constants of kernels are in capitals. ``SHAPE`` holds the widths that a kernel is compiled for, ``TILE`` its
block sizes.

A program sums the edges of one row. A row of more than `SEGMENT` edges would keep its program busy long after
all others, so it is cut at the multiples of `SEGMENT`: its own program sums up to the first cut, one further
program sums from each cut to the next, and a second kernel adds these parts to the row in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_VARIABLE = ("num_cuts", "num_rows", "num_edges", "num_relations", "rows_of_part", "key", "threshold")
"""Arguments that vary from call to call: Triton must not compile a kernel for each value of them."""

_WRITTEN = ("out", "scratch", "winner", "d_weight", "d_bias", "d_score", "d_dst")
"""Arguments that kernels write: results in a copy would be lost."""

MOST_EDGES = 32
"""Most edges of a tile: most rows have few edges, and the rest of the tile is idle."""


class TritonKernel(Protocol):
    """Compiled function that is launched once for each program of a grid."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """Return the function that launches it on a grid."""


def triton_kernel(function: Callable[..., None]) -> TritonKernel:
    """Compile a function that is run by each program of a grid."""
    return cast(TritonKernel, triton.jit(function, do_not_specialize=_VARIABLE))


def triton_function(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that kernels call."""
    return cast(Callable[P, R], triton.jit(function))


def launch_kernel(
    function: TritonKernel, grid: tuple[int, ...], *given: Any, num_warps: int = 4, **constants: object
) -> None:
    """Run a kernel on a grid, unless the grid is empty; multiply-adds may be contracted.

    Kernels take contiguous tensors: others are copied first.
    """
    if 0 in grid:
        return
    operands = map(_contiguous_argument, function.arg_names, given)
    function[grid](*operands, **constants, num_warps=num_warps, enable_fp_fusion=True)


def _contiguous_argument(name: str, value: Any) -> Any:
    """Return an argument as kernels take it; one that is written cannot be copied."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return value
    assert name not in _WRITTEN, f"{name} is written, so it must be contiguous"
    return value.contiguous()


def num_blocks(count: int, size: int) -> int:
    """Return the number of blocks of ``size`` that hold ``count``."""
    return -(-count // size)


def next_power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least ``count`` and 1."""
    return 1 << max(0, count - 1).bit_length()


def tile_shape(columns: int, most: int = 256, elements: int = 1024) -> tuple[int, int]:
    """Return the edges and columns that a program processes at a time; both are powers of two."""
    width = next_power_of_two(min(columns, most))
    return max(1, min(MOST_EDGES, elements // width)), width


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which numbers of a type are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


SEGMENT = 1024
"""Edges between two cuts."""


def num_extra_segments(num_edges: int) -> int:
    """Return the number of places at which a row may be cut: multiples of `SEGMENT` inside the edges."""
    return max(0, num_edges - 1) // SEGMENT


def segment_tile(columns: int) -> tuple[int, int, int]:
    """Return the edges between two cuts, then edges and columns of the tile of a kernel with segments."""
    return (SEGMENT, *tile_shape(columns))


def sum_over_edges(
    function: TritonKernel,
    indptr: Tensor,
    num_edges: int,
    out: Tensor,
    *given: Tensor | None,
    shape: tuple[float, ...],
    channels: int = 1,
    whole_rows: bool = False,
) -> None:
    """Run a kernel of sums over edges: programs per row and cut, per channel and per block of columns.

    Args:
        function: Kernel that takes ``indptr``, ``out``, ``scratch``, ``num_cuts``, ``given``, ``SHAPE`` and
            ``TILE``, sums the edges of `program_edges` and stores the sum with `store_partial_sum`.
        indptr: ``[M + 1]`` int64.
        num_edges: ``E``.
        out: ``[M, C, F]``, written.
        given: Tensors for the kernel.
        shape: Further constants of the kernel, after ``F``.
        channels: Number of channels, each of which gets programs of its own.
        whole_rows: Whether a program must see all columns at once.
    """
    columns, cuts = out.shape[2], num_extra_segments(num_edges)
    edges, width = tile_shape(columns, columns) if whole_rows else tile_shape(columns)
    # Atomic additions would sum in a different order each time; scratch per cut costs little, since cuts are
    # few.
    scratch = out.new_empty(cuts, out.shape[1] * columns, dtype=sum_dtype(out.dtype))
    # Programs behind cuts come first: the hardware usually starts them first, and they have the most edges.
    grid = (cuts + len(out), channels, num_blocks(columns, width))
    constants: dict[str, Any] = {"SHAPE": (columns, *shape), "TILE": (SEGMENT, edges, width)}
    launch_kernel(function, grid, indptr, out, scratch, cuts, *given, **constants)
    add_segments(indptr, scratch, out)


def add_segments(indptr: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Add the sums behind each cut to the row that was cut.

    Args:
        indptr: ``[M + 1]`` int64.
        scratch: ``[cuts, C * F]``, the sum from each cut to the next or to the end of the row.
        out: ``[M, C, F]``, the sums up to the first cut of each row; added to.
    """
    cuts, columns = scratch.shape
    parts, width = tile_shape(columns)
    grid = (cuts, num_blocks(columns, width))
    launch_kernel(
        _add_segments_kernel,
        grid,
        indptr,
        scratch,
        out,
        len(indptr) - 1,
        SHAPE=(columns,),
        TILE=(SEGMENT, parts, width),
    )


@triton_function
def find_row(indptr: tl.tensor, num_rows: tl.tensor, edge: tl.tensor) -> tl.tensor:
    """Return the row that holds an edge, by bisection."""
    low = tl.zeros([], tl.int64)
    high = low + num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(indptr + middle) > edge:
            high = middle
        else:
            low = middle
    return low


@triton_function
def program_edges(indptr: tl.tensor, num_cuts: tl.tensor, SEGMENT: tl.constexpr) -> tl.tensor:
    """Return the row of a program, and the first and last + 1 of the edges that it sums.

    The first ``num_cuts`` programs sum behind a cut, or nothing if no row is cut there.
    """
    program = tl.program_id(0).to(tl.int64)
    # The host does not know which rows are cut without waiting for the device, so there is a program for
    # every multiple of SEGMENT, and those that have no long row find an empty range.
    if program < num_cuts:
        first = (program + 1) * SEGMENT
        row = find_row(indptr, tl.num_programs(0) - num_cuts, first)
        begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
        # A row that begins at the cut is summed from there by its own program.
        is_cut = (end - begin > SEGMENT) & (begin < first)
        last = tl.where(is_cut, tl.minimum(end, first + SEGMENT), first)
    else:
        row = program - num_cuts
        first, end = tl.load(indptr + row), tl.load(indptr + row + 1)
        last = tl.where(end - first > SEGMENT, (first // SEGMENT + 1) * SEGMENT, end)
    return row, first, last


@triton_function
def store_partial_sum(
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    at: tl.tensor,
    value: tl.tensor,
    inside: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """Write columns ``at`` of the row or segment that a program has summed, ``WIDTH`` wide."""
    program = tl.program_id(0).to(tl.int64)
    if program < num_cuts:
        tl.store(scratch + program * WIDTH + at, value, inside)
    else:
        tl.store(out + (program - num_cuts) * WIDTH + at, value, inside)


@triton_kernel
def _add_segments_kernel(
    indptr: tl.tensor,
    scratch: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    WIDTH: tl.constexpr = SHAPE[0]
    SEGMENT: tl.constexpr = TILE[0]
    PARTS: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    cut = tl.program_id(0).to(tl.int64)
    row = find_row(indptr, num_rows, (cut + 1) * SEGMENT)
    begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    # The program of a row's first cut adds all of its segments, in order; the others have nothing to do.
    is_first_of_row = (end - begin > SEGMENT) & (begin // SEGMENT == cut)
    if is_first_of_row:
        f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = f < WIDTH
        total = tl.zeros([PARTS, COLUMNS], scratch.dtype.element_ty)
        last = (end - 1) // SEGMENT
        for start in range(cut, last, PARTS):
            part = start + tl.arange(0, PARTS)
            given = (part < last)[:, None] & inside[None, :]
            total += tl.load(scratch + part[:, None] * WIDTH + f[None, :], given, 0)
        own = tl.load(out + row * WIDTH + f, inside, 0)
        tl.store(out + row * WIDTH + f, own + tl.sum(total, 0), inside)
