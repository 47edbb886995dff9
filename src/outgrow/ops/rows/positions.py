"""Positions of nodes among ascending ones, and answers among ascending codes: searches that several engines make."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from outgrow.ops.rows.gather import concat_ranges


class RowNumbers(Protocol):
    """The row of each node of a batch: a tensor with an entry for each node of the graph, or a `SortedRowNumbers`."""

    def __getitem__(self, nodes: Tensor, /) -> Tensor:
        """Return the rows of nodes that have one, ``[N]`` int64."""


class SortedRowNumbers:
    """The rows of some nodes, by search: for nodes that are few beside those of the graph. Final.

    Args:
        nodes_M: ``[M]`` int64, the node of each row; distinct.
    """

    def __init__(self, nodes_M: Tensor) -> None:
        self._nodes, self._rows = nodes_M.sort()

    def __getitem__(self, nodes: Tensor, /) -> Tensor:
        """Return the rows of nodes that have one, ``[N]`` int64."""
        return self._rows[torch.searchsorted(self._nodes, nodes)]


def find_positions(ascending_M: Tensor, nodes_N: Tensor) -> Tensor:
    """Return ``[N]`` int64: the position of each node among ascending and distinct ones; -1 for nodes that are none.

    Args:
        ascending_M: ``[M]`` int64.
        nodes_N: ``[N]`` int64, in any order.
    """
    if not len(ascending_M):
        return torch.full_like(nodes_N, -1)
    at = torch.searchsorted(ascending_M, nodes_N).clamp_(max=len(ascending_M) - 1)
    return torch.where(ascending_M[at] == nodes_N, at, -1)


def find_answers(codes_A: Tensor, queries_Q: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the place of a query and the answer of all answers to some queries, int64 each, query by query.

    Args:
        codes_A: ``[A]`` int64, ascending: ``query * num_nodes + answer`` of all answers.
        queries_Q: ``[Q]`` int64.
        num_nodes: Number of nodes, all answers being below it.
    """
    first = torch.searchsorted(codes_A, queries_Q * num_nodes)
    count = torch.searchsorted(codes_A, (queries_Q + 1) * num_nodes) - first
    return torch.repeat_interleave(count), codes_A[concat_ranges(first, count)] % num_nodes
