"""Rows chosen by a mark, and what is noted of them at their places. One thread, without Python's lock.

Letters: ``N`` rows, ``M`` those chosen, ``B`` places, ``V`` nodes.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, sequential

Array = NDArray[Any]


def chosen(mark_N: Tensor, bits: int, *fields_N: Tensor) -> list[Tensor]:
    """``[M]`` of each field: where a mark has one of some bits.

    Args:
        mark_N: ``[N]`` uint8.
        bits: At least one bit.
        fields_N: ``[N]`` each.
    """
    marks = array(mark_N)
    count = int(_count(marks, bits))
    found = [torch.empty(count, dtype=field.dtype) for field in fields_N]
    for field, out in zip(fields_N, found, strict=True):
        _choose(marks, bits, array(field), out.numpy())
    return found


def note_nodes(node_N: Tensor, at_N: Tensor, degree_V: Tensor, out_node_B: Tensor, out_degree_B: Tensor) -> None:
    """``out_node[at[i]] = node[i]`` and ``out_degree[at[i]] = degree[node[i]]``.

    Args:
        node_N: ``[N]`` int64.
        at_N: ``[N]`` int32, distinct.
        degree_V: ``[V]`` float64.
        out_node_B: ``[B]`` int64, changed.
        out_degree_B: ``[B]`` float64, changed.
    """
    _note(array(node_N), array(at_N), array(degree_V), out_node_B.numpy(), out_degree_B.numpy())


@sequential
def _count(marks: Array, bits: int) -> int:
    count = 0
    for i in range(len(marks)):
        if marks[i] & bits != 0:
            count += 1
    return count


@sequential
def _choose(marks: Array, bits: int, field: Array, out: Array) -> None:
    count = 0
    for i in range(len(marks)):
        if marks[i] & bits != 0:
            out[count] = field[i]
            count += 1


@sequential
def _note(node: Array, at: Array, degree: Array, out_node: Array, out_degree: Array) -> None:
    for i in range(len(node)):
        out_node[at[i]] = node[i]
        out_degree[at[i]] = degree[node[i]]
