"""How many numbers of a row are larger than a bar, and how many as large. Letters: ``Q`` rows, ``N`` columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, kernel, prange, tensor, twinned

Array = NDArray[Any]


@twinned
def count_above(score_QN: Tensor, bar_Q: Tensor) -> Tensor:
    """``[2, Q]`` int64, in memory: how many numbers of each row are above its bar, and how many are equal to it.

    What is no number is above: a model that gives such must not be taken for good.
    """
    out = np.empty((2, len(bar_Q)), np.int64)
    _count(array(score_QN), array(bar_Q), out)
    return tensor(out)


@kernel
def _count(score: Array, bar: Array, out: NDArray[np.int64]) -> None:
    for q in prange(len(bar)):
        above, same, limit = 0, 0, bar[q]
        for n in range(score.shape[1]):
            above += not score[q, n] <= limit
            same += score[q, n] == limit
        out[0, q], out[1, q] = above, same
