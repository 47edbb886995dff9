"""Source rows that are products of the input: their gradient is computed without them.

The gradients of ``x W`` are ``g W^T`` and ``x^T g``. A backward pass that has kept neither the product nor a graph of
it needs the factors again, but no value of the product. Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from outgrow.nn.layer import Conv, Features, Layer, NodeMessages
from outgrow.nn.projection import project_rows
from outgrow.ops.backend import once_differentiable
from outgrow.ops.linear import product_functions, uses_bfloat16


class SourceProductConv(Conv, ABC):
    """Convolution whose source rows are products of its input, and of which no gradient reads the products."""

    @abstractmethod
    def source_without_values(self, x_VD: Features) -> NodeMessages:
        """Return `source` for its gradient alone: values that nothing needs are NaN, and not computed."""


def project_rows_without_values(x_VD: Features, weight_DO: Tensor) -> Tensor:
    """Return ``[V, O]``: `project_rows` for its gradient alone; values are NaN, or computed if rows are sparse."""
    if not isinstance(x_VD, Tensor):
        return project_rows(x_VD, weight_DO)
    return _ProductWithoutValues.apply(x_VD, weight_DO)  # type: ignore[no-any-return, no-untyped-call]


def source_for_gradient(layer: Layer, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
    """Return `Layer.source` of nodes for its gradient alone; values may be NaN.

    Args:
        layer: The layer.
        x_VD: Its input.
        nodes_V: ``[V]`` int64, global ids of the nodes.
    """
    conv = layer.conv
    if isinstance(conv, SourceProductConv) and skips_source_products(type(conv)):
        return conv.source_without_values(x_VD)
    return layer.source(x_VD, nodes_V)


def skips_source_products(kind: type[Conv]) -> bool:
    """Whether `source_for_gradient` computes no products; it does for a class that overrides `source` alone."""
    if not issubclass(kind, SourceProductConv):
        return False

    def find_owner(name: str) -> type:
        return next(each for each in kind.__mro__ if name in vars(each))

    written_for = find_owner("source_without_values")
    return all(issubclass(written_for, find_owner(name)) for name in ("source", "source_of_nodes"))


class _ProductWithoutValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_VD: Tensor, weight_DO: Tensor) -> Tensor:
        # Remembered, since the backward pass may run outside the context that switched bfloat16 on.
        ctx.narrow = uses_bfloat16()
        ctx.save_for_backward(x_VD, weight_DO)
        # One number in memory for all: whoever reads values by mistake gets NaN.
        return weight_DO.new_full((), torch.nan).expand(len(x_VD), weight_DO.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VO: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (x_VD, weight_DO), (of_rows, of_weight) = ctx.saved_tensors, ctx.needs_input_grad
        product, weight_gradient = product_functions(ctx.narrow)
        return (
            product(grad_VO, weight_DO.T) if of_rows else None,
            weight_gradient(x_VD, grad_VO) if of_weight else None,
        )
