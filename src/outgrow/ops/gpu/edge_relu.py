"""Leaky ReLUs of what both ends and the features of an edge add up to, on a GPU: chunks of edges by torch.

Sums over the edges of a row are those of `spmm`, in a fixed order. Letters as in `outgrow.ops.aggregation.edge_relu`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.ops.aggregation.edge_relu import EdgeSums
from outgrow.ops.edge_features import dense_edge_features
from outgrow.ops.gpu.csc import edge_destinations
from outgrow.ops.gpu.edge_chunks import edge_chunks
from outgrow.ops.gpu.spmm import spmm


def relu_sum(indptr: Tensor, indices: Tensor, sums: EdgeSums, weight_E1: Tensor | None, out_VdF: Tensor) -> None:
    """Compute ``out[v] = sum over in-edges e of weight[e] * leaky_relu(src[u] + features[e] @ weight + shift)``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        sums: What the leaky ReLU is taken of; destinations add nothing.
        weight_E1: ``[E, 1]``; None if all are 1.
        out_VdF: ``[Vd, F]``, written.
    """
    out_VdF.zero_()
    for chunk in edge_chunks(indptr, len(indices), out_VdF.shape[1]):
        z_NF, _ = _edge_rows(sums, indices[chunk.edges].long(), None, chunk.positions + chunk.edges.start)
        weight = None if weight_E1 is None else weight_E1[chunk.edges]
        rows_N1F = functional.leaky_relu(z_NF, sums.slope)[:, None]
        spmm(chunk.indptr, chunk.positions, None, weight, rows_N1F, out_VdF[chunk.rows, None], add=True)


def leaky_score(indptr: Tensor, indices: Tensor, sums: EdgeSums, attention_W: Tensor, out_EK: Tensor) -> None:
    """Compute ``out[e, k] = attention[k] . leaky_relu(src[u, k] + dst[v, k] + (features[e] @ weight + shift)[k])``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        sums: What the leaky ReLU is taken of.
        attention_W: ``[K * F]``.
        out_EK: ``[E, K]``, written.
    """
    to_E = edge_destinations(indptr, len(indices))
    for chunk in edge_chunks(indptr, len(indices), len(attention_W)):
        at = chunk.positions + chunk.edges.start
        z_NW, _ = _edge_rows(sums, indices[chunk.edges].long(), to_E[chunk.edges], at)
        rows_NW = functional.leaky_relu(z_NW, sums.slope) * attention_W
        torch.sum(torch.unflatten(rows_NW, 1, (out_EK.shape[1], -1)), 2, out=out_EK[chunk.edges])


def relu_grad_src(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    sums: EdgeSums,
    heads: int,
    scale_EK: Tensor | None,
    rate_VW: Tensor | None,
    out_VsW: Tensor,
) -> None:
    """Compute the gradient of the sources, ``[Vs, W]``, over the out-edges of each.

    Args:
        indptr: ``[Vs + 1]`` int64.
        indices: ``[E]`` int32 or int64, destination of each out-edge.
        edge: ``[E]`` int32 or int64, position of each out-edge among the in-edges.
        sums: What the leaky ReLU is taken of.
        heads: ``K``.
        scale_EK: ``[E, K]``, scale of the gradient of each in-edge; None if all are 1.
        rate_VW: ``[Vd, W]``, rows of destinations that are scaled; None if all are 1.
        out_VsW: ``[Vs, W]``, written.
    """
    out_VsW.zero_()
    from_E = edge_destinations(indptr, len(indices))
    for chunk in edge_chunks(indptr, len(indices), out_VsW.shape[1]):
        at, to = edge[chunk.edges].long(), indices[chunk.edges].long()
        z_NW, _ = _edge_rows(sums, from_E[chunk.edges], to, at)
        scale = None if scale_EK is None else scale_EK[at]
        grad_NW = _scaled_slope(z_NW, sums.slope, heads, scale)
        grad_NW = grad_NW if rate_VW is None else grad_NW * rate_VW[to]
        spmm(chunk.indptr, chunk.positions, None, None, grad_NW[:, None], out_VsW[chunk.rows, None], add=True)


def relu_grad_terms(
    indptr: Tensor,
    indices: Tensor,
    sums: EdgeSums,
    heads: int,
    scale_EK: Tensor | None,
    rate_VW: Tensor | None,
    out_VdW: Tensor | None,
    d_terms: Tensor,
) -> None:
    """Compute the gradients of destinations and of the terms, from `scale` and `rate` as in `relu_grad_src`.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        sums: What the leaky ReLU is taken of.
        heads: ``K``.
        scale_EK: ``[E, K]``; None if all are 1.
        rate_VW: ``[Vd, W]``; None if all are 1.
        out_VdW: ``[Vd, W]``, written with the gradient of the destinations; None if it is not wanted.
        d_terms: ``[I + 1, W]``, or ``[I + 2, W]`` with the gradient of the attention last; summed in float64, written.
    """
    inputs = len(sums.terms) - 1
    total = torch.zeros_like(d_terms, dtype=torch.float64)
    if out_VdW is not None:
        out_VdW.zero_()
    to_E = edge_destinations(indptr, len(indices))
    for chunk in edge_chunks(indptr, len(indices), d_terms.shape[1]):
        to = to_E[chunk.edges]
        at = chunk.positions + chunk.edges.start
        z_NW, features_NI = _edge_rows(sums, indices[chunk.edges].long(), to, at)
        scale = None if scale_EK is None else scale_EK[chunk.edges]
        slope_NW = _scaled_slope(z_NW, sums.slope, heads, scale)
        grad_NW = slope_NW if rate_VW is None else slope_NW * rate_VW[to]
        if features_NI is not None:
            total[:inputs] += features_NI.T @ grad_NW
        total[inputs] += grad_NW.sum(0)
        if len(total) > inputs + 1:
            total[inputs + 1] += (slope_NW * z_NW).sum(0)
        if out_VdW is not None:
            spmm(chunk.indptr, chunk.positions, None, None, grad_NW[:, None], out_VdW[chunk.rows, None], add=True)
    d_terms.copy_(total)


def _edge_rows(sums: EdgeSums, src_N: Tensor, dst_N: Tensor | None, edge_N: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return ``[N, W]``: what the leaky ReLU is taken of at some edges, and the features of these, ``[N, I]``."""
    terms = sums.terms
    z_NW = sums.src[src_N].to(terms.dtype) + terms[-1]
    if sums.dst is not None and dst_N is not None:
        z_NW += sums.dst[dst_N]
    if sums.features is None:
        return z_NW, None
    values_ND = sums.features.values[edge_N]
    features_NI = dense_edge_features(values_ND, sums.features.starts, len(terms) - 1, terms.dtype)
    return z_NW.addmm_(features_NI, terms[:-1]), features_NI


def _scaled_slope(z_NW: Tensor, slope: float, heads: int, scale_NK: Tensor | None) -> Tensor:
    """Return ``[N, W]``: the derivative of the leaky ReLU, times the scale of each head."""
    rate_NW = torch.where(z_NW > 0, z_NW.new_ones(()), z_NW.new_tensor(slope))
    if scale_NK is None:
        return rate_NW
    return (torch.unflatten(rate_NW, 1, (heads, -1)) * scale_NK[:, :, None]).flatten(1)
