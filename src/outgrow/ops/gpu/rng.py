"""Keyed dropout with the same draws as on the CPU, to the last bit.

Letters: ``N`` rows, ``F`` columns, ``S`` stored values.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import (
    launch_kernel,
    num_blocks,
    num_extra_segments,
    program_edges,
    segment_tile,
    tile_shape,
    triton_function,
    triton_kernel,
)


def write_dropout(x_NF: Tensor, nodes_N: Tensor, key: int, p: float, out_NF: Tensor) -> None:
    """Zero each element with probability ``p`` and scale the others by ``1 / (1 - p)``.

    Args:
        x_NF: ``[N, F]`` floating.
        nodes_N: ``[N]`` int64, global id of each row.
        key: 64 bits.
        p: In [0, 1).
        out_NF: ``[N, F]``, written.
    """
    num_rows, columns = x_NF.shape
    rows, width = tile_shape(columns)
    grid = num_blocks(num_rows, rows), num_blocks(columns, width)
    given = x_NF, nodes_N, out_NF, _as_signed(key), _dropout_threshold(p), num_rows
    launch_kernel(_dropout_kernel, grid, *given, SHAPE=(columns, 1 / (1 - p)), TILE=(rows, width))


def write_dropout_sparse(
    indptr: Tensor, indices: Tensor, values_S: Tensor, nodes_N: Tensor, key: int, p: float, out_S: Tensor
) -> None:
    """Apply `write_dropout` to the stored values of sparse rows: the same draws as on the dense matrix.

    Args:
        indptr: ``[N + 1]`` int64.
        indices: ``[S]`` int32 or int64, column of each stored value.
        values_S: ``[S]`` floating.
        nodes_N: ``[N]`` int64, global id of each row.
        key: 64 bits.
        p: In [0, 1).
        out_S: ``[S]``, written.
    """
    cuts = num_extra_segments(len(indices))
    given = indptr, cuts, indices, values_S, nodes_N, out_S, _as_signed(key), _dropout_threshold(p)
    grid = (cuts + len(nodes_N),)
    launch_kernel(_dropout_sparse_kernel, grid, *given, SHAPE=(1 / (1 - p),), TILE=segment_tile(1)[:2], num_warps=1)


def _as_signed(key: int) -> int:
    """Return the signed number with the same 64 bits."""
    return key - (1 << 64) if key >> 63 else key


def _dropout_threshold(p: float) -> int:
    return round(p * 2**32)


@triton_function
def _hash64(key: tl.tensor, value: tl.tensor) -> tl.tensor:
    """Return `outgrow.ops.rng.hash64`; both are uint64, whose arithmetic wraps around."""
    z = key + (value + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton_function
def _keep_mask(row_key: tl.tensor, column: tl.tensor, threshold: tl.tensor) -> tl.tensor:
    return (_hash64(row_key, column.to(tl.uint64)) >> 32).to(tl.int64) >= threshold


@triton_kernel
def _dropout_kernel(
    x: tl.tensor,
    nodes: tl.tensor,
    out: tl.tensor,
    key: tl.tensor,
    threshold: tl.tensor,
    num_rows: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    SCALE: tl.constexpr = SHAPE[1]
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (n < num_rows)[:, None] & (f < F)[None, :]
    node = tl.load(nodes + n, n < num_rows, 0).to(tl.uint64)
    # Triton passes small integers as int32: sign-extend first, so that all 64 bits of the key are as on the
    # CPU.
    row_key = _hash64(key.to(tl.int64).to(tl.uint64), node)
    kept = _keep_mask(row_key[:, None], f[None, :], threshold)
    at = n[:, None] * F + f[None, :]
    value = tl.load(x + at, mask, 0) * SCALE
    tl.store(out + at, tl.where(kept, value, 0), mask)


@triton_kernel
def _dropout_sparse_kernel(
    indptr: tl.tensor,
    num_cuts: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    nodes: tl.tensor,
    out: tl.tensor,
    key: tl.tensor,
    threshold: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    SCALE: tl.constexpr = SHAPE[0]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    row_key = _hash64(key.to(tl.int64).to(tl.uint64), tl.load(nodes + row).to(tl.uint64))
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        kept = _keep_mask(row_key, tl.load(indices + e, e < last, 0), threshold)
        value = tl.load(values + e, e < last, 0) * SCALE
        tl.store(out + e, tl.where(kept, value, 0), e < last)
