"""Scores of node pairs, rank counts."""

from __future__ import annotations

import torch
from torch import Tensor

_BYTES = 64 << 20
"""Size of the rows of pairs that are materialised at a time."""


def distmult_scores(
    indptr: Tensor, indices: Tensor, relation: Tensor, scale_RF: Tensor, x_NF: Tensor, out_P: Tensor
) -> None:
    """Compute `outgrow.ops.link_scores.distmult_scores`, some pairs at a time to bound memory."""
    first = torch.repeat_interleave(indptr[1:] - indptr[:-1], output_size=len(indices))
    size = max(1, _BYTES // max(1, x_NF[:1].nbytes))
    for some in (slice(at, at + size) for at in range(0, len(indices), size)):
        product = x_NF[first[some]] * scale_RF[relation[some]]
        out_P[some] = (product * x_NF[indices[some]]).sum(1)


def rank_counts(score_QN: Tensor, threshold_Q: Tensor) -> Tensor:
    """Compute `outgrow.ops.link_scores.rank_counts`; waits for the device."""
    # Negated, since every comparison with NaN is false: NaN counts as above.
    threshold_Q1 = threshold_Q[:, None]
    return torch.stack([(~(score_QN <= threshold_Q1)).sum(1), (score_QN == threshold_Q1).sum(1)]).cpu()
