"""Keyed draws of nodes that stand in for an end of links. Letters: ``V`` nodes, ``N`` nodes of a type or numbers."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, as_tensor, parallel_kernel, prange
from outgrow.ops.rng import fold_in, hash64, uniform01

_POWER = 0.75
"""Power of the degree (Mikolov et al., NeurIPS 2013)."""
_ATTEMPTS = 8
"""How often twice as many numbers are drawn as nodes are wanted."""
_REST = 1
"""Part of the key of numbers of all nodes."""


class DegreeDraws:
    """Draws without replacement in proportion to ``degree ** 0.75``; nodes of degree 0 are never drawn. Final.

    Args:
        degree_N: ``[N]`` int64.
    """

    def __init__(self, degree_N: Tensor) -> None:
        self._degree = degree_N
        self._linked = int((degree_N > 0).sum())
        self._ends = degree_N.double().pow(_POWER).cumsum(0)

    def draw(self, count: int, key: int) -> Tensor:
        """Return ascending distinct numbers: ``count`` of them, or all with a degree."""
        count = min(count, self._linked)
        found = torch.empty(0, dtype=torch.int64)
        # One after the other, leaving out what was drawn: the time does not grow with the number of nodes. Where few
        # are left, or some are far more likely than others, that takes too many draws.
        for attempt in range(_ATTEMPTS if 0 < 2 * count <= self._linked else 0):
            place = draw_numbers(torch.arange(attempt * 2 * count, (attempt + 1) * 2 * count), key) * self._ends[-1]
            at = torch.searchsorted(self._ends, place, right=True).clamp_(max=len(self._ends) - 1)
            found = torch.cat([found, at[self._degree[at] > 0]])
            _, first = np.unique(as_numpy(found), return_index=True)
            found = found[as_tensor(np.sort(first))]
            if len(found) >= count:
                return found[:count].sort().values
        return self._complete(found, count, key)

    def _complete(self, found: Tensor, count: int, key: int) -> Tensor:
        """Draw the rest with a number for each node: Efraimidis & Spirakis, Inf. Process. Lett. 97, 2006."""
        drawn = draw_numbers(torch.arange(len(self._degree)), fold_in(key, _REST))
        time_N = -torch.log1p(-drawn) / self._degree.double().pow(_POWER)
        time_N[found] = -1.0
        return time_N.argsort(stable=True)[:count].sort().values


def draw_numbers(number: Tensor, key: int) -> Tensor:
    """Return ``[N]`` float64: a random number from [0, 1) of each number and the key."""
    out = np.empty(len(number), dtype=np.float64)
    _draw_numbers(as_numpy(number), np.uint64(key), out)
    return as_tensor(out)


def smallest_of_each(nodes: Tensor, draws: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` distinct nodes with the smallest draws, and these."""
    order = draws.argsort(stable=True)
    nodes, draws = nodes[order], draws[order]
    _, first = np.unique(as_numpy(nodes), return_index=True)
    kept = as_tensor(np.sort(first))[:count]
    return nodes[kept], draws[kept]


@parallel_kernel
def _draw_numbers(number: NDArray[np.int64], key: np.uint64, out: NDArray[np.float64]) -> None:
    for i in prange(len(number)):
        out[i] = uniform01(hash64(key, np.uint64(number[i])))
