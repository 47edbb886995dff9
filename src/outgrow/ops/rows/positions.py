"""Positions of nodes among ascending ones, and answers among ascending codes: searches that several engines make."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.rows.gather import concat_ranges


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
