"""Linear projections of dense or sparse rows. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_members
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Features
from outgrow.ops.linear import affine

_LARGE_BYTES = 1 << 28


@renamed_members(plus="add_products")
@check_arguments()
class Projection(nn.Module):
    """Linear projection ``x @ weight (+ bias)`` of dense or sparse rows; Glorot-uniform weight, zero bias.

    Attributes:
        weight: ``[D, O]``.
        bias: ``[O]``, or None.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        require_counts(in_features=in_features, out_features=out_features)
        _require_memory(in_features, out_features)
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x_VD: Features) -> Tensor:
        """Return ``[V, O]``."""
        return project_rows(x_VD, self.weight, self.bias)

    def add_products(self, x_VD: Features, *terms: tuple[Tensor, Tensor]) -> Tensor:
        """Return ``[V, O]``: the projection plus products of rows ``[V, I]`` and weights ``[I, O]``."""
        # Dense products accumulate into one output; a sparse one has its own kernel and is added afterwards.
        if isinstance(x_VD, Tensor):
            return affine((x_VD, self.weight), *terms, bias_O=self.bias)
        return project_rows(x_VD, self.weight, self.bias) + affine(*terms)


def _require_memory(in_features: int, out_features: int) -> None:
    """Check that a weight, and with it its gradient, fit memory: the system may end this process otherwise.

    Raises:
        InputError: It cannot.
    """
    size = 2 * in_features * out_features * torch.finfo(torch.get_default_dtype()).bits // 8
    # What is available takes some time to find out.
    if size <= _LARGE_BYTES or torch.get_default_device().type != "cpu":
        return
    available = available_bytes()
    if size > available:
        raise InputError(
            "a weight of the model does not fit memory",
            needed=f"{size:,} bytes for {in_features:,} by {out_features:,} numbers and their gradient",
            got=f"{available:,} bytes available",
            repair="make the layer narrower",
        )


def project_rows(x_VD: Features, weight_DO: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return ``[V, O]``: ``x @ weight (+ bias)`` for dense or sparse rows."""
    if isinstance(x_VD, Tensor):
        return affine((x_VD, weight_DO), bias_O=bias_O)
    y_VO: Tensor = x_VD @ weight_DO
    # In place: a second tensor as large as the first would cost its page faults.
    return y_VO if bias_O is None else y_VO.add_(bias_O)


def project_channels(x_VD: Features, *projections: Projection) -> Tensor:
    """Return ``[V, C, O]``: a channel for each of several projections of the same width, by one product."""
    width = projections[0].weight.shape[1]
    # A zero bias stands in for a missing one, so that one fused product serves all.
    biases = [torch.zeros_like(p.weight[0]) if p.bias is None else p.bias for p in projections]
    bias = torch.cat(biases) if any(p.bias is not None for p in projections) else None
    y_VJ = project_rows(x_VD, torch.cat([p.weight for p in projections], 1), bias)
    return torch.unflatten(y_VJ, 1, (len(projections), width))
