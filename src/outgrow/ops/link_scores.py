"""Scores of node pairs, negative sampling, rank counts.

No row per pair is materialised, forward or backward. Letters: ``N`` rows, ``F`` columns, ``P`` pairs or
links, ``R`` relations, ``T`` types of nodes, ``Q`` queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.relational import relational_scale_grad, relational_spmm
from outgrow.ops.aggregation.spmm import spmm
from outgrow.ops.backend import (
    as_numpy,
    as_tensor,
    gpu_dispatch,
    kernel_factory,
    once_differentiable,
    parallel_kernel,
    prange,
    reducing_kernel,
)
from outgrow.ops.csc import cached_transpose, transpose_csc
from outgrow.ops.kernels.work_split import END_ROW, ROW, as_kernel_array, balanced_work, row_span, specialised_width
from outgrow.ops.rng import hash64, uniform01

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class NodePairs:
    """Pairs of rows, ordered by their first rows.

    Attributes:
        edges: One edge for each pair, from its second row to its first: from the head of a link to its tail.
        relation: ``[P]`` int64.
        order: ``[P]`` integer, the original position of each pair.
    """

    edges: Edges
    relation: Tensor
    order: Tensor

    @property
    def with_relation_zero(self) -> NodePairs:
        """Same pairs, all of relation 0."""
        return replace(self, relation=torch.zeros_like(self.relation))

    @staticmethod
    def from_endpoints(first_P: Tensor, second_P: Tensor, relation_P: Tensor, num_rows: int) -> NodePairs:
        """Return the pairs of these rows, all int64, in any order."""
        each = torch.arange(len(first_P) + 1, device=first_P.device)
        indptr, _, order = transpose_csc(each, first_P, num_rows, len(first_P))
        order = order.long()
        return NodePairs(
            edges=Edges(indptr=indptr, indices=second_P[order], num_src=num_rows),
            relation=relation_P[order],
            order=order,
        )


def gather_pair_rows(x_NF: Tensor, pairs: NodePairs) -> tuple[Tensor, Tensor]:
    """Return ``[P, F]`` and ``[P, F]``: the first and the second row of each pair.

    Differentiable: the gradient of a row is summed in the order of its pairs, on every device.
    """
    return _GatherPairRows.apply(x_NF, pairs)  # type: ignore[no-any-return, no-untyped-call]


class _GatherPairRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, pairs: NodePairs) -> tuple[Tensor, Tensor]:
        ctx.pairs = pairs
        first = torch.repeat_interleave(pairs.edges.indptr.diff(), output_size=len(pairs.relation))
        return x_NF.index_select(0, first), x_NF.index_select(0, pairs.edges.indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first_PF: Tensor, second_PF: Tensor) -> tuple[Tensor, None]:
        edges = ctx.pairs.edges
        d_x = first_PF.new_empty(edges.num_src, 1, first_PF.shape[1])
        at = torch.arange(edges.num_edges, device=first_PF.device)
        spmm(edges.indptr, at, None, None, first_PF[:, None].contiguous(), d_x)
        back = cached_transpose(edges)
        other = torch.empty_like(d_x)
        spmm(back.indptr, back.edge, None, None, second_PF[:, None].contiguous(), other)
        return (d_x + other)[:, 0], None


def pair_scores(x_NF: Tensor, pairs: NodePairs, scale_RF: Tensor) -> Tensor:
    """Return ``[P]``: ``sum over f of x[first, f] * scale[relation, f] * x[second, f]`` of each pair.

    Args:
        x_NF: ``[N, F]`` float32 or float64.
        pairs: Pairs of these rows.
        scale_RF: ``[R, F]`` of the same type; every relation of a pair is below ``R``.

    Returns:
        ``[P]``, differentiable in ``x`` and ``scale``.
    """
    return _PairScores.apply(x_NF, scale_RF, pairs)  # type: ignore[no-any-return, no-untyped-call]


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, scale_RF: Tensor, pairs: NodePairs) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(x_NF, scale_RF)
        out = x_NF.new_empty(len(pairs.relation))
        distmult_scores(pairs.edges.indptr, pairs.edges.indices, pairs.relation, scale_RF, x_NF, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_P: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_NF, scale_RF = ctx.saved_tensors
        edges, relation = ctx.pairs.edges, ctx.pairs.relation
        d_x = d_scale = None
        if ctx.needs_input_grad[0]:
            at = torch.arange(edges.num_edges, device=x_NF.device)
            # A row is the first of some pairs and the second of others: one sum for each role, without
            # atomics.
            d_x, other = x_NF.new_empty(x_NF.shape), x_NF.new_empty(x_NF.shape)
            relational_spmm(edges.indptr, edges.indices, at, relation, grad_P, scale_RF, x_NF, d_x)
            relational_spmm(*cached_transpose(edges), relation, grad_P, scale_RF, x_NF, other)
            d_x += other
        if ctx.needs_input_grad[1]:
            d_scale = scale_RF.new_empty(scale_RF.shape)
            relational_scale_grad(edges.indptr, edges.indices, relation, grad_P, x_NF, x_NF, d_scale)
        return d_x, d_scale, None


@gpu_dispatch
def distmult_scores(
    indptr: Tensor, indices: Tensor, relation: Tensor, scale_RF: Tensor, x_NF: Tensor, out_P: Tensor
) -> None:
    """Compute `pair_scores` into ``out_P``; pair ``e`` of row ``m`` has the second row ``indices[e]``."""
    given = (as_kernel_array(value) for value in (indptr, indices, relation, scale_RF, x_NF))
    run = _make_distmult_kernel(specialised_width(len(indices), x_NF.shape[1]))
    run(balanced_work(as_kernel_array(indptr)), *given, x_NF.shape[1], as_kernel_array(out_P))


@kernel_factory
def _make_distmult_kernel(fixed: int | None) -> Callable[..., None]:
    @reducing_kernel
    def distmult_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        relation: Array,
        scale: Array,
        x: Array,
        columns: int,
        out: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        for part in prange(len(parts)):
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                for e in range(*row_span(parts, part, indptr, m)):
                    u = indices[e]
                    r = relation[e]
                    total = x.dtype.type(0)
                    for f in range(width):
                        total += x[m, f] * scale[r, f] * x[u, f]
                    out[e] = total

    return distmult_kernel


Ids = NDArray[np.int64]


def sample_negatives(head_P: Tensor, tail_P: Tensor, id_P: Tensor, ends_T: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """Return the kept end of each link and the node that replaces the other end.

    Which end is replaced (with probability one half each) and by which node of its type (uniformly) depends
    only on ``(key, id)`` and the link. The result may be an existing link by chance.

    Args:
        head_P: ``[P]`` int64.
        tail_P: ``[P]`` int64.
        id_P: ``[P]`` int64, a unique number of each link.
        ends_T: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        key: 64-bit key.

    Returns:
        ``[P]`` and ``[P]``, int64.
    """
    kept = np.empty(len(head_P), np.int64)
    other = np.empty(len(head_P), np.int64)
    _sample_negatives(as_numpy(head_P), as_numpy(tail_P), as_numpy(id_P), as_numpy(ends_T), np.uint64(key), kept, other)
    return as_tensor(kept), as_tensor(other)


@parallel_kernel
def _sample_negatives(head: Ids, tail: Ids, number: Ids, ends: Ids, key: np.uint64, kept: Ids, drawn: Ids) -> None:
    for p in prange(len(head)):
        link_key = hash64(key, np.uint64(number[p]))
        keeps_head = uniform01(hash64(link_key, np.uint64(0))) < 0.5
        kept[p] = head[p] if keeps_head else tail[p]
        replaced = tail[p] if keeps_head else head[p]
        t = np.searchsorted(ends, replaced, side="right") - 1
        drawn[p] = ends[t] + np.int64(uniform01(hash64(link_key, np.uint64(1))) * (ends[t + 1] - ends[t]))


@gpu_dispatch
def rank_counts(score_QN: Tensor, threshold_Q: Tensor) -> Tensor:
    """Return ``[2, Q]`` int64 on the CPU: how many scores of each row are above and equal to its threshold.

    NaN counts as above: a model that yields NaN must not rank well.
    """
    out = np.empty((2, len(threshold_Q)), np.int64)
    _count_ranks(as_numpy(score_QN), as_numpy(threshold_Q), out)
    return as_tensor(out)


@parallel_kernel
def _count_ranks(score: Array, threshold: Array, out: NDArray[np.int64]) -> None:
    for q in prange(len(threshold)):
        above = 0
        same = 0
        limit = threshold[q]
        for n in range(score.shape[1]):
            # Negated, since every comparison with NaN is false.
            above += not score[q, n] <= limit
            same += score[q, n] == limit
        out[0, q] = above
        out[1, q] = same
