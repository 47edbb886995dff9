"""Ranges of whole numbers, spelled out."""

from __future__ import annotations

import torch
from torch import Tensor


def spans(first_N: Tensor, count_N: Tensor) -> Tensor:
    """``[sum of count]`` int64: ``first[i]`` to ``first[i] + count[i] - 1`` of each range, one after another."""
    ends = torch.cat([count_N.new_zeros(1), count_N.cumsum(0)])
    return torch.repeat_interleave(first_N - ends[:-1], count_N) + torch.arange(int(ends[-1]), device=count_N.device)
