"""How many numbers of a row are larger than a bar, and how many as large, on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def count_above(score_QN: Tensor, bar_Q: Tensor) -> Tensor:
    """See `outgrow.ops.rank_counts.count_above`."""
    bar_Q1 = bar_Q[:, None]
    return torch.stack([(~(score_QN <= bar_Q1)).sum(1), (score_QN == bar_Q1).sum(1)]).cpu()
