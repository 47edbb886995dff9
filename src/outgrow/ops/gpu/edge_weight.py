"""Edge weights that depend on the graph only. Letters: ``V`` nodes, ``E`` edges."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.gpu.csc import edge_destinations


def scale_edge_weight(
    indptr: Tensor,
    indices: Tensor,
    weight_E: Tensor | None,
    dst_factor_V: Tensor,
    src_factor_V: Tensor | None,
    out_E: Tensor,
) -> None:
    """Compute ``out[e] = dst_factor[destination] * src_factor[source] * weight[e]``; 0 if not finite.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        weight_E: ``[E]``; None if all are 1.
        dst_factor_V: ``[Vd]`` float64.
        src_factor_V: ``[Vs]`` float64; None if all are 1.
        out_E: ``[E]``, written.
    """
    value = dst_factor_V[edge_destinations(indptr, len(indices))]
    if src_factor_V is not None:
        value *= src_factor_V[indices]
    if weight_E is not None:
        value *= weight_E
    out_E.copy_(torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0))
