"""Scores of pairs of rows: the sum over columns of both rows and the scale of the pair's relation, multiplied.

No row per pair is made, forward or backward. Letters: ``N`` rows, ``F`` columns, ``P`` pairs, ``R`` relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import once, prange, reducing_kernel, twinned
from outgrow.ops.parts import END_ROW, ROW, even_parts, piece
from outgrow.ops.pieces import as_array, fixed_width
from outgrow.ops.relation import scaled_gather, scaled_products
from outgrow.ops.topology import transpose, transposed

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Pairs of rows, in the order of their first ones.

    Attributes:
        edges: One edge for each pair, from its second row to its first.
        relation: ``[P]`` int64.
        order: ``[P]`` integer, the number that each pair was given with.
    """

    edges: Edges
    relation: Tensor
    order: Tensor

    @property
    def of_one_relation(self) -> Pairs:
        """The same pairs, all of relation 0."""
        return replace(self, relation=torch.zeros_like(self.relation))

    @staticmethod
    def of(first_P: Tensor, second_P: Tensor, relation_P: Tensor, num_rows: int) -> Pairs:
        """The pairs of these rows, all int64, in any order."""
        each = torch.arange(len(first_P) + 1, device=first_P.device)
        indptr, _, order = transposed(each, first_P, num_rows, len(first_P))
        order = order.long()
        return Pairs(
            edges=Edges(indptr=indptr, indices=second_P[order], num_src=num_rows),
            relation=relation_P[order],
            order=order,
        )


def pair_scores(x_NF: Tensor, pairs: Pairs, scale_RF: Tensor) -> Tensor:
    """``[P]``: ``sum over f of x[first, f] * scale[relation, f] * x[second, f]`` of each pair, in the pairs' order.

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
    def forward(ctx: Any, x_NF: Tensor, scale_RF: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(x_NF, scale_RF)
        out = x_NF.new_empty(len(pairs.relation))
        scaled_dots(pairs.edges.indptr, pairs.edges.indices, pairs.relation, scale_RF, x_NF, out)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, grad_P: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_NF, scale_RF = ctx.saved_tensors
        edges, relation = ctx.pairs.edges, ctx.pairs.relation
        d_x = d_scale = None
        if ctx.needs_input_grad[0]:
            at = torch.arange(edges.num_edges, device=x_NF.device)
            d_x, other = x_NF.new_empty(x_NF.shape), x_NF.new_empty(x_NF.shape)
            scaled_gather(edges.indptr, edges.indices, at, relation, grad_P, scale_RF, x_NF, d_x)
            scaled_gather(*transpose(edges), relation, grad_P, scale_RF, x_NF, other)
            d_x += other
        if ctx.needs_input_grad[1]:
            d_scale = scale_RF.new_empty(scale_RF.shape)
            scaled_products(edges.indptr, edges.indices, relation, grad_P, x_NF, x_NF, d_scale)
        return d_x, d_scale, None


@twinned
def scaled_dots(
    indptr: Tensor, indices: Tensor, relation: Tensor, scale_RF: Tensor, x_NF: Tensor, out_P: Tensor
) -> None:
    """What `pair_scores` gives, written to ``out_P``: of pair ``e`` of row ``m`` the second is ``indices[e]``."""
    given = (as_array(value) for value in (indptr, indices, relation, scale_RF, x_NF))
    run = _dots_of(fixed_width(len(indices), x_NF.shape[1]))
    run(even_parts(as_array(indptr)), *given, x_NF.shape[1], as_array(out_P))


@cache
def _dots_of(fixed: int | None) -> Callable[..., None]:
    @reducing_kernel
    def dots(
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
                for e in range(*piece(parts, part, indptr, m)):
                    u, r, total = indices[e], relation[e], x.dtype.type(0)
                    for f in range(width):
                        total += x[m, f] * scale[r, f] * x[u, f]
                    out[e] = total

    return dots
