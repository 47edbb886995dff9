"""Products of edge features with weights, on a GPU: products of chunks of edges by torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outgrow.ops.edge_features import dense_edge_features

_EDGES_AT_ONCE = 1 << 18
_NUMBERS_AT_ONCE = 1 << 26


def edge_projection(values_ED: Tensor, starts_D: Tensor | None, weight_IK: Tensor, out_EK: Tensor) -> None:
    """Compute the product of the features of each edge and the weight.

    Args:
        values_ED: ``[E, De]`` floating, or integer codes, of which -1 is a vector of zeros.
        starts_D: ``[De]`` int64, the row of the weight of the first category of each column; None for numbers.
        weight_IK: ``[I, K]``.
        out_EK: ``[E, K]``, written.
    """
    for rows, chunk_NI in dense_chunks(values_ED, starts_D, weight_IK):
        torch.mm(chunk_NI, weight_IK, out=out_EK[rows])


def edge_projection_grad(values_ED: Tensor, starts_D: Tensor | None, grad_EK: Tensor, out_IK: Tensor) -> None:
    """Compute the gradient of the weight, ``[I, K]``, from that of the product, ``[E, K]``, in float64."""
    total_IK = torch.zeros_like(out_IK, dtype=torch.float64)
    for rows, chunk_NI in dense_chunks(values_ED, starts_D, out_IK):
        # A product over the edges of a chunk instead of additions to the rows of codes: its order is fixed.
        total_IK += chunk_NI.T @ grad_EK[rows]
    out_IK.copy_(total_IK)


def dense_chunks(values_ED: Tensor, starts_D: Tensor | None, weight_IK: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield ranges of edges and their features ``[N, I]`` in the type of the weight: codes as one-hot vectors."""
    inputs = len(weight_IK)
    step = max(1, min(_EDGES_AT_ONCE, _NUMBERS_AT_ONCE // max(1, inputs)))
    for first in range(0, len(values_ED), step):
        rows = slice(first, first + step)
        yield rows, dense_edge_features(values_ED[rows], starts_D, inputs, weight_IK.dtype)
