"""Edges of several relations: their checks, their means, their trained weights; no row per edge.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``R`` relations, ``B`` bases, ``F`` columns. Gradients that
sum over all edges are summed in a fixed number of parts, in order, whatever the number of threads.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.ops.aggregation import Aggregation
from outgrow.ops.backend import array, kernel, prange, tensor
from outgrow.ops.topology import transpose

_PARTS = 16


def require_relations(edges: Edges, num_relations: int) -> NDArray[Any]:
    """``[E]``: the relation of each edge, once it is sure that all are in ``[0, num_relations)``.

    Raises:
        InputError: Edges have no relation, or one out of range.
    """
    if edges.relation is None:
        got = "edges without a relation"
    else:
        if "relations" not in edges.derived:
            ends = edges.relation.aminmax() if edges.num_edges else (torch.tensor(0), torch.tensor(-1))
            edges.derived["relations"] = [int(end) for end in ends]
        low, high = cast(list[int], edges.derived["relations"])
        if low >= 0 and high < num_relations:
            return array(edges.relation)
        got = f"relations {low} to {high}"
    raise InputError(
        "a relational layer does not fit the graph",
        needed=f"edges of {num_relations} relations, numbered from 0",
        got=got,
        repair="build the layer with graph.num_relations, on a graph whose edges have relations",
    )


def relation_mean(block: Block, num_relations: int, dtype: torch.dtype) -> Tensor:
    """``[E, 1]``: weight of each edge over the sum of those that share its destination and its relation.

    Counted in the block, so the block must hold all in-edges of its destinations. Computed once per block.
    """
    edges, slot = block.edges, f"relation mean {dtype}"
    relation = require_relations(edges, num_relations)
    if slot not in edges.derived:
        out = torch.empty(edges.num_edges, 1, dtype=dtype)
        weight = None if edges.weight is None else array(edges.weight)
        _mean(array(edges.indptr), relation, weight, num_relations, out.view(-1).numpy())
        edges.derived[slot] = out
    return cast(Tensor, edges.derived[slot])


def basis_weight(edges: Edges, share_RB: Tensor, scale_E1: Tensor) -> Tensor:
    """``[E, B]``: ``scale[e] * share[relation of e]``, differentiable in ``share``.

    Args:
        edges: In-edges of a block, whose relations are below ``R``.
        share_RB: ``[R, B]``: how much of each basis a relation has.
        scale_E1: ``[E, 1]`` constant.
    """
    require_relations(edges, len(share_RB))
    return _BasisWeight.apply(share_RB, scale_E1, edges)  # type: ignore[no-any-return, no-untyped-call]


class RelationScale(nn.Module, Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * scale[relation of e] * src[source of e]``, column by column.

    Its scales are as wide as a whole row, so a slice of the columns cannot be aggregated alone.

    Args:
        num_relations: ``R``.
        columns: ``F``.
    """

    sliceable = False
    additive = True

    def __init__(self, num_relations: int, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(num_relations, columns))
        nn.init.normal_(self.scale, 1.0, 0.1)

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`. Takes one channel and one constant weight per edge."""
        assert src_VsCF.shape[1:] == (1, self.scale.shape[1])
        assert weight_EK is not None
        assert weight_EK.shape[1] == 1
        assert not weight_EK.requires_grad
        require_relations(block.edges, len(self.scale))
        return _RelationScale.apply(src_VsCF, self.scale, weight_EK, block.edges)  # type: ignore[no-any-return, no-untyped-call]


class _BasisWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share_RB: Tensor, scale_E1: Tensor, edges: Edges) -> Tensor:
        ctx.edges, ctx.shape = edges, share_RB.shape
        ctx.save_for_backward(scale_E1)
        out = torch.empty(edges.num_edges, share_RB.shape[1], dtype=share_RB.dtype)
        _spread(require_relations(edges, len(share_RB)), array(share_RB), array(scale_E1.view(-1)), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad_EB: Tensor) -> tuple[Tensor, None, None]:
        (scale_E1,) = ctx.saved_tensors
        parts = np.zeros((_PARTS, *ctx.shape))
        _collect(require_relations(ctx.edges, ctx.shape[0]), array(scale_E1.view(-1)), array(grad_EB), parts)
        return tensor(parts.sum(0)).to(grad_EB.dtype), None, None


class _RelationScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, scale_RF: Tensor, weight_E1: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(src_VsCF, scale_RF, weight_E1)
        relation = require_relations(edges, len(scale_RF))
        out = torch.empty(edges.num_dst, 1, src_VsCF.shape[2], dtype=src_VsCF.dtype)
        at = torch.arange(edges.num_edges).numpy()
        topology = array(edges.indptr), array(edges.indices), at, relation
        _gather(*topology, array(weight_E1.view(-1)), array(scale_RF), array(src_VsCF), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        src_VsCF, scale_RF, weight_E1 = ctx.saved_tensors
        edges: Edges = ctx.edges
        relation, weight, grad = require_relations(edges, len(scale_RF)), array(weight_E1.view(-1)), array(grad_VdCF)
        d_src = d_scale = None
        if ctx.needs_input_grad[0]:
            back, d_src = transpose(edges), torch.empty_like(src_VsCF, memory_format=torch.contiguous_format)
            topology = array(back.indptr), array(back.indices), array(back.edge), relation
            _gather(*topology, weight, array(scale_RF), grad, d_src.numpy())
        if ctx.needs_input_grad[1]:
            parts = np.zeros((_PARTS, *scale_RF.shape), dtype=grad.dtype)
            _products(array(edges.indptr), array(edges.indices), relation, weight, array(src_VsCF), grad, parts)
            d_scale = tensor(parts.sum(0))
        return d_src, d_scale, None, None


@kernel
def _mean(
    indptr: NDArray[np.int64],
    relation: NDArray[Any],
    weight: NDArray[Any] | None,
    num_relations: int,
    out: NDArray[Any],
) -> None:
    count = len(indptr) - 1
    for part in prange(_PARTS):
        total = np.zeros(num_relations)
        for v in range(count * part // _PARTS, count * (part + 1) // _PARTS):
            for e in range(indptr[v], indptr[v + 1]):
                total[relation[e]] += 1.0 if weight is None else weight[e]
            for e in range(indptr[v], indptr[v + 1]):
                value = (1.0 if weight is None else weight[e]) / total[relation[e]]
                out[e] = value if np.isfinite(value) else 0.0
            for e in range(indptr[v], indptr[v + 1]):
                total[relation[e]] = 0.0


@kernel
def _spread(relation: NDArray[Any], share: NDArray[Any], scale: NDArray[Any], out: NDArray[Any]) -> None:
    for e in prange(out.shape[0]):
        for b in range(out.shape[1]):
            out[e, b] = scale[e] * share[relation[e], b]


@kernel
def _collect(relation: NDArray[Any], scale: NDArray[Any], grad: NDArray[Any], parts: NDArray[np.float64]) -> None:
    count = len(relation)
    for part in prange(_PARTS):
        for e in range(count * part // _PARTS, count * (part + 1) // _PARTS):
            for b in range(grad.shape[1]):
                parts[part, relation[e], b] += scale[e] * grad[e, b]


@kernel
def _gather(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    edge: NDArray[Any],
    relation: NDArray[Any],
    weight: NDArray[Any],
    scale: NDArray[Any],
    src: NDArray[Any],
    out: NDArray[Any],
) -> None:
    for v in prange(out.shape[0]):
        row = out[v, 0]
        row[:] = 0
        for i in range(indptr[v], indptr[v + 1]):
            e, other = edge[i], src[indices[i], 0]
            factor, mine = weight[e], scale[relation[e]]
            for f in range(len(row)):
                row[f] += factor * mine[f] * other[f]


@kernel
def _products(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    relation: NDArray[Any],
    weight: NDArray[Any],
    src: NDArray[Any],
    grad: NDArray[Any],
    parts: NDArray[Any],
) -> None:
    count = len(grad)
    for part in prange(_PARTS):
        for v in range(count * part // _PARTS, count * (part + 1) // _PARTS):
            g = grad[v, 0]
            for e in range(indptr[v], indptr[v + 1]):
                other, factor = src[indices[e], 0], weight[e]
                row = parts[part, relation[e]]
                for f in range(len(row)):
                    row[f] += factor * other[f] * g[f]
