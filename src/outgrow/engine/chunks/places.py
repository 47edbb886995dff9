"""Where rows lie in a worker's buffer, wave after wave, so that none that stays has to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.engine.chunks.wave import ARRIVES, LEAVES
from outgrow.ops.backend import array, tensor

Array = NDArray[Any]


def turnover(lists: Sequence[Tensor], *, reuse: bool) -> list[Tensor]:
    """Which nodes of each wave arrive, since the wave before has not got them, and which leave.

    Args:
        lists: ``[n]`` int64 distinct nodes for each wave.
        reuse: Whether waves keep rows; else all arrive and leave in every wave.

    Returns:
        ``[n]`` uint8 of ``ARRIVES`` and ``LEAVES`` for each wave.
    """
    found = []
    for j, nodes in enumerate(lists):
        turn = torch.full((len(nodes),), ARRIVES | LEAVES, dtype=torch.uint8)
        if reuse:
            for other, what in ((j - 1, ARRIVES), (j + 1, LEAVES)):
                if 0 <= other < len(lists):
                    turn[tensor(np.isin(array(nodes), array(lists[other]), assume_unique=True))] &= 0xFF ^ what
        found.append(turn)
    return found


class Places:
    """Gives each row that arrives a place in the buffer. Final.

    Args:
        num_nodes: ``V``.
        ahead: Whether rows from HOST arrive while the wave before is computed: then they take no place that it uses.

    Attributes:
        place_V: ``[V]`` int32, the place of each node that is there; -1 for others.
        size: Places that the buffer must have.
    """

    def __init__(self, num_nodes: int, *, ahead: bool) -> None:
        self.place_V = torch.full((num_nodes,), -1, dtype=torch.int32)
        self.size, self._ahead = 0, ahead
        self._free: Array = np.empty(0, dtype=np.int32)
        self._held: Array = np.empty(0, dtype=np.int64)

    def turn(self, loads: Tensor, load_turn: Tensor, remote: Tensor, remote_turn: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the rows of the next wave, int32: of those from HOST, and of those from other workers."""
        place = array(self.place_V)
        both = np.concatenate((array(loads), array(remote)))
        new = np.concatenate((array(load_turn), array(remote_turn))) & ARRIVES > 0
        gone = np.setdiff1d(self._held, both[~new], assume_unique=True)
        left = place[gone]
        early = self._take(int(new[: len(loads)].sum()) if self._ahead else 0)
        self._free = np.sort(np.concatenate((self._free, left)))
        place[gone] = -1
        place[both[new]] = np.concatenate((early, self._take(int(new.sum()) - len(early))))
        self._held = both
        return tensor(place[both[: len(loads)]]), tensor(place[both[len(loads) :]])

    def _take(self, count: int) -> Array:
        missing = max(0, count - len(self._free))
        fresh = np.arange(self.size, self.size + missing, dtype=np.int32)
        self.size += missing
        taken, self._free = self._free[:count], self._free[count:]
        return np.concatenate((taken, fresh))
