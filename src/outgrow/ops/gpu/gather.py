"""Gather of rows from a table on the device, or in pinned memory, which the device reads without a copy.

Letters: ``V`` rows of the table, ``M`` of the result, ``N`` rows gathered, ``D`` columns.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import launch_kernel, num_blocks, tile_shape, triton_kernel


def gather_rows(rows_VD: Tensor, at_N: Tensor | None, out_MD: Tensor, to_N: Tensor | None) -> None:
    """Copy ``out[to[i]] = rows[at[i]]``, converted to the type of ``out``.

    A program reads some whole rows: requests for neighbouring columns are combined on the bus.

    Args:
        rows_VD: ``[V, D]`` floating, contiguous; on the device, or in pinned memory.
        at_N: ``[N]`` integer, on the device; None for all rows in order.
        out_MD: ``[M, D]`` floating, written.
        to_N: ``[N]`` integer, on the device, distinct; None for the first rows in order.
    """
    assert rows_VD.is_contiguous(), "a copy of pinned memory would be pageable"
    count, columns = len(rows_VD) if at_N is None else len(at_N), rows_VD.shape[1]
    num_rows, width = tile_shape(columns)
    grid = num_blocks(count, num_rows), num_blocks(columns, width)
    launch_kernel(
        _gather_kernel, grid, out_MD, rows_VD.detach(), at_N, to_N, count, SHAPE=columns, TILE=(num_rows, width)
    )


@triton_kernel
def _gather_kernel(
    out: tl.tensor,
    rows: tl.tensor,
    at: tl.tensor,
    to: tl.tensor,
    num_rows: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    i = tl.program_id(0) * TILE[0] + tl.arange(0, TILE[0])
    f = tl.program_id(1) * TILE[1] + tl.arange(0, TILE[1])
    is_row = i < num_rows
    source = i.to(tl.int64) if at is None else tl.load(at + i, is_row, 0).to(tl.int64)
    target = i.to(tl.int64) if to is None else tl.load(to + i, is_row, 0).to(tl.int64)
    inside = is_row[:, None] & (f < SHAPE)[None, :]
    values = tl.load(rows + source[:, None] * SHAPE + f[None, :], inside, 0)
    tl.store(out + target[:, None] * SHAPE + f[None, :], values.to(out.dtype.element_ty), inside)
