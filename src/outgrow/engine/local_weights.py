"""Weights of the edges of a shard, divided as its edges are: those from own nodes, and those from the halo."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.graph.halo import LocalGraph
from outgrow.ops.backend import once_differentiable

_WEIGHT_KEY = "weights by part"


def weights_by_part(local: LocalGraph, weight_EK: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the weights of the edges of each part; those that the graph fixes are split once."""
    if weight_EK is None:
        return None, None
    order = local.edge_order
    num_own = local.local_edges.edges.num_edges
    # Trained weights differ in each step, and their gradients have to be merged again.
    if weight_EK.requires_grad:
        return _SplitWeights.apply(weight_EK, order, num_own)  # type: ignore[no-any-return, no-untyped-call]
    # By identity: a fixed weight is the same tensor in every step.
    cached: Any = local.block.edges.cache.get(_WEIGHT_KEY)
    if cached is None or cached[0] is not weight_EK:
        cached = weight_EK, *_split_weights(weight_EK, order, num_own)
        local.block.edges.cache[_WEIGHT_KEY] = cached
    return cached[1], cached[2]


def _split_weights(weight_EK: Tensor, order: Tensor, num_own: int) -> tuple[Tensor, Tensor]:
    return weight_EK.index_select(0, order[:num_own]), weight_EK.index_select(0, order[num_own:])


class _SplitWeights(torch.autograd.Function):
    """Split the weights of all edges into two parts."""

    @staticmethod
    def forward(ctx: Any, weight_EK: Tensor, order: Tensor, num_own: int) -> tuple[Tensor, Tensor]:
        ctx.order = order
        ctx.num_own = num_own
        return _split_weights(weight_EK, order, num_own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, own: Tensor, halo: Tensor) -> tuple[Tensor, None, None]:
        out = own.new_empty(len(ctx.order), *own.shape[1:])
        out[ctx.order[: ctx.num_own]] = own
        out[ctx.order[ctx.num_own :]] = halo
        return out, None, None
