"""Gather and scatter of rows, grouping of nodes by owner, counts, concatenated ranges.

Letters: ``V`` rows of the table or nodes, ``N`` rows or ids given, ``M`` rows of the result, ``D`` columns,
``B`` positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, as_tensor, device_function, gpu_dispatch, serial_kernel
from outgrow.ops.kernels.numerics import LINE_BYTES, as_float, is_half, kernel_view, prefetch_distance, prefetch_line

Array = NDArray[Any]
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by their bytes, as which numbers are copied bit by bit."""


@gpu_dispatch
def gather_rows(rows_VD: Tensor, at_N: Tensor | None, out_MD: Tensor, to_N: Tensor | None) -> None:
    """Copy ``out[to[i]] = rows[at[i]]``, converted to the type of ``out``.

    Reads no other row of a memory-mapped table.

    On a GPU the table may be in pinned memory, which the device reads directly.

    Args:
        rows_VD: ``[V, D]`` floating.
        at_N: ``[N]`` int64; None for all rows in order.
        out_MD: ``[M, D]`` floating, written.
        to_N: ``[N]`` int64, distinct; None for the first rows in order.
    """
    # Our kernels widen 16-bit numbers but cannot round to them: torch does that.
    if rows_VD.dtype != out_MD.dtype and is_half(out_MD.dtype):
        rows_VD = (rows_VD if at_N is None else rows_VD[at_N]).to(out_MD.dtype)
        at_N = None
    at = np.arange(len(rows_VD)) if at_N is None else as_numpy(at_N)
    to = np.arange(len(at)) if to_N is None else as_numpy(to_N)
    if rows_VD.dtype == out_MD.dtype:
        # As integers of the same size, so that all types of a width share one compiled kernel.
        word = WORDS[out_MD.dtype.itemsize]
        _copy_rows(rows_VD.detach().view(word).numpy(), at, out_MD.view(word).numpy(), to)
    else:
        _widen_rows(kernel_view(rows_VD.detach()).numpy(), at, out_MD.numpy(), to)


def via_host(read: Callable[[Tensor, Tensor], None], out_MD: Tensor, to_N: Tensor) -> None:
    """Write rows to a tensor that may be on a GPU, with a reader that can only write to host memory.

    Args:
        read: Takes a tensor and positions in it, and writes the rows there.
        out_MD: ``[M, D]``, written.
        to_N: ``[N]`` integer, distinct, on the device of ``out_MD``.
    """
    if out_MD.device.type == "cpu":
        read(out_MD, to_N)
        return
    found = torch.empty(len(to_N), out_MD.shape[1], dtype=out_MD.dtype)
    read(found, torch.arange(len(to_N)))
    # Not by torch's indexing: autograd would see an in-place change of a tensor that it needs.
    gather_rows(found.to(out_MD.device), None, out_MD, to_N)


def group_by_owner(nodes_N: Tensor, owner_V: Tensor, num_groups: int) -> tuple[Tensor, list[int]]:
    """Return positions of nodes grouped by owner: those of group 0 first, each group in the given order.

    Args:
        nodes_N: ``[N]`` int64.
        owner_V: ``[V]`` integer, the group of each node.
        num_groups: Number of groups.

    Returns:
        ``[N]`` int64 positions, and the size of each group.
    """
    starts = np.zeros(num_groups + 1, dtype=np.int64)
    positions = np.empty(len(nodes_N), dtype=np.int64)
    _group_by_owner(as_numpy(nodes_N), as_numpy(owner_V), starts, positions)
    return as_tensor(positions), np.diff(starts, prepend=0)[:num_groups].tolist()


@device_function
def _prefetch_row(rows: Array, row: int) -> None:
    for column in range(0, rows.shape[1], LINE_BYTES // rows.itemsize):
        prefetch_line(rows, row, column)


@serial_kernel
def _copy_rows(rows: Array, at: Array, out: Array, to: Array) -> None:
    columns = rows.shape[1]
    ahead = prefetch_distance(rows.shape[1] * rows.itemsize)
    for i in range(len(at)):
        _prefetch_row(rows, at[min(i + ahead, len(at) - 1)])
        row = at[i]
        target = to[i]
        for column in range(columns):
            out[target, column] = rows[row, column]


@serial_kernel
def _widen_rows(rows: Array, at: Array, out: Array, to: Array) -> None:
    columns = rows.shape[1]
    ahead = prefetch_distance(rows.shape[1] * rows.itemsize)
    for i in range(len(at)):
        _prefetch_row(rows, at[min(i + ahead, len(at) - 1)])
        row = at[i]
        target = to[i]
        for column in range(columns):
            out[target, column] = as_float(rows[row, column])


@serial_kernel
def _group_by_owner(nodes: Array, owner: Array, starts: Array, positions: Array) -> None:
    # Counting sort: two passes over the nodes, and the order within a group is kept.
    for node in nodes:
        starts[owner[node] + 1] += 1
    for group in range(1, len(starts)):
        starts[group] += starts[group - 1]
    for i in range(len(nodes)):
        group = owner[nodes[i]]
        positions[starts[group]] = i
        starts[group] += 1


def add_bincount(counts_V: Tensor, nodes: Tensor) -> None:
    """Add to ``counts[v]`` how often ``v`` is among the nodes.

    Args:
        counts_V: ``[V]`` int64, changed.
        nodes: ``[n]`` integer; may be memory-mapped.
    """
    _add_bincount(counts_V.numpy(), as_numpy(nodes))


@serial_kernel
def _add_bincount(counts: Array, nodes: Array) -> None:
    for node in nodes:
        counts[node] += 1


def masked_select(mark_N: Tensor, bits: int, *fields_N: Tensor) -> list[Tensor]:
    """Return ``[M]`` of each field: the values at marks that have one of some bits.

    Args:
        mark_N: ``[N]`` uint8.
        bits: At least one bit.
        fields_N: ``[N]`` each.
    """
    # Count first, so that each result is allocated once, of the right size.
    marks = as_numpy(mark_N)
    count = int(_count_marked(marks, bits))
    found = [torch.empty(count, dtype=field.dtype) for field in fields_N]
    for field, out in zip(fields_N, found, strict=True):
        _copy_marked(marks, bits, as_numpy(field), out.numpy())
    return found


def scatter_nodes(node_N: Tensor, at_N: Tensor, degree_V: Tensor, out_node_B: Tensor, out_degree_B: Tensor) -> None:
    """Write ``out_node[at[i]] = node[i]`` and ``out_degree[at[i]] = degree[node[i]]``.

    Args:
        node_N: ``[N]`` int64.
        at_N: ``[N]`` int32, distinct.
        degree_V: ``[V]`` float64.
        out_node_B: ``[B]`` int64, changed.
        out_degree_B: ``[B]`` float64, changed.
    """
    _scatter_nodes(as_numpy(node_N), as_numpy(at_N), as_numpy(degree_V), out_node_B.numpy(), out_degree_B.numpy())


@serial_kernel
def _count_marked(marks: Array, bits: int) -> int:
    count = 0
    for i in range(len(marks)):
        if marks[i] & bits != 0:
            count += 1
    return count


@serial_kernel
def _copy_marked(marks: Array, bits: int, field: Array, out: Array) -> None:
    count = 0
    for i in range(len(marks)):
        if marks[i] & bits != 0:
            out[count] = field[i]
            count += 1


@serial_kernel
def _scatter_nodes(node: Array, at: Array, degree: Array, out_node: Array, out_degree: Array) -> None:
    for i in range(len(node)):
        out_node[at[i]] = node[i]
        out_degree[at[i]] = degree[node[i]]


def concat_ranges(first_N: Tensor, count_N: Tensor) -> Tensor:
    """Return the ranges ``first[i] .. first[i] + count[i] - 1`` one after another, int64."""
    # Each range is its offset, repeated, plus one running count over all of them: no loop over ranges.
    ends = torch.cat([count_N.new_zeros(1), count_N.cumsum(0)])
    return torch.repeat_interleave(first_N - ends[:-1], count_N) + torch.arange(int(ends[-1]), device=count_N.device)
