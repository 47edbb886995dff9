"""Rows that are kept on a device, so that batches need not bring them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.drafts import draft_of
from outgrow.nn.layer import Features
from outgrow.ops.rows.gather import deal

_MISSING = -1


class Places(NamedTuple):
    """Where rows of some nodes belong.

    Attributes:
        to: ``[m]`` int64, for those that are not kept.
        slots: ``[n - m]`` int64, rows among the kept ones.
        kept_to: ``[n - m]`` int64, where these belong.
    """

    to: Tensor
    slots: Tensor
    kept_to: Tensor


class DeviceCache:
    """Copies of rows of some nodes. Final.

    Args:
        copies: ``[c, D]``, on the device.
        nodes: ``[c]`` int64, whose they are.
        num_nodes: ``V``.
    """

    def __init__(self, copies: Features, nodes: Tensor, num_nodes: int) -> None:
        self.copies = copies
        self._slot = torch.full((num_nodes,), _MISSING, dtype=torch.int32)
        self._slot[nodes] = torch.arange(len(nodes), dtype=torch.int32)

    def find(self, nodes: Tensor) -> tuple[Tensor, Places]:
        """Those of some distinct nodes ``[n]`` that are not kept, and where rows belong. In any thread."""
        slot = self._slot[nodes].long()
        places, (num_missing, _) = deal(torch.arange(len(nodes)), (slot != _MISSING).to(torch.int8), 2)
        to, kept_to = places[:num_missing], places[num_missing:]
        return nodes[to], Places(to, slot[kept_to], kept_to)

    def complete(self, missing: Features, places: Places, dtype: torch.dtype) -> Features:
        """``[n, D]``: rows of all nodes, in their order, from those that are not kept; on the device."""
        device = self.copies.device
        draft = draft_of(len(missing) + len(places.slots), self.copies, dtype)
        draft.put(self.copies, places.slots.to(device), places.kept_to.to(device))
        draft.put(missing, None, places.to.to(device))
        return draft.done()
