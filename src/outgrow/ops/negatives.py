"""Links that are not there: one end of a link replaced by a node drawn by a key.

Letters: ``P`` links, ``T`` types of nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, kernel, prange, tensor
from outgrow.ops.keyed import mix, uniform

Ids = NDArray[np.int64]


def draw_negatives(head_P: Tensor, tail_P: Tensor, id_P: Tensor, ends_T: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """For each link the end that is kept and the node that stands in for the other.

    Which end is replaced, each with probability one half, and by which node of its type, each alike, depends on
    ``(key, id)`` and the link alone. What is drawn may be a link by chance.

    Args:
        head_P: ``[P]`` int64.
        tail_P: ``[P]`` int64.
        id_P: ``[P]`` int64, a number of each link that no other has.
        ends_T: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        key: 64-bit key.

    Returns:
        ``[P]`` and ``[P]``, int64.
    """
    kept, drawn = np.empty(len(head_P), np.int64), np.empty(len(head_P), np.int64)
    _draw(array(head_P), array(tail_P), array(id_P), array(ends_T), np.uint64(key), kept, drawn)
    return tensor(kept), tensor(drawn)


@kernel
def _draw(head: Ids, tail: Ids, number: Ids, ends: Ids, key: np.uint64, kept: Ids, drawn: Ids) -> None:
    for p in prange(len(head)):
        link_key = mix(key, np.uint64(number[p]))
        keeps_head = uniform(mix(link_key, np.uint64(0))) < 0.5
        kept[p] = head[p] if keeps_head else tail[p]
        replaced = tail[p] if keeps_head else head[p]
        t = np.searchsorted(ends, replaced, side="right") - 1
        drawn[p] = ends[t] + np.int64(uniform(mix(link_key, np.uint64(1))) * (ends[t + 1] - ends[t]))
