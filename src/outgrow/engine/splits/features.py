"""Feature rows of own nodes, brought to the device for each batch; hot ones are kept there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.drafts import draft_of
from outgrow.engine.inputs import to_device
from outgrow.nn.layer import Features
from outgrow.ops.gather import deal
from outgrow.runtime.comm import Comm

_MISSING = -1


class Found(NamedTuple):
    """Rows for a batch, of which those that are not on the device are gathered.

    Attributes:
        missing: ``[m, D]`` those, in memory.
        to: ``[m]`` int64, where they belong; None for all rows in order.
        slots: ``[n - m]`` int64, rows among the kept ones.
        kept_to: ``[n - m]`` int64, where these belong.
    """

    missing: Features
    to: Tensor | None
    slots: Tensor
    kept_to: Tensor

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.missing) + len(self.slots)


class DeviceRows:
    """The features of a worker's own nodes: ``bring(find(nodes))``. Final.

    ``find`` may run in any thread. Counted in the ledger when rows are brought: ``rows_loaded``; with a cache,
    ``cache_hits`` and ``cache_misses``; on a GPU the bytes that cross.

    Args:
        comm: Whose device and ledger.
        features: ``[V, D]`` dense or sparse, as the graph has them; memory-mapped where they are many.
        dtype: Type of the rows that are given out.
        kept: ``[c]`` int64, nodes whose rows are kept on the device; None without a cache.
    """

    def __init__(self, comm: Comm, features: Features, dtype: torch.dtype, kept: Tensor | None = None) -> None:
        self.comm, self.features, self.dtype, self.has_cache = comm, features, dtype, kept is not None
        nodes = torch.empty(0, dtype=torch.int64) if kept is None else kept
        self.copies = self._gathered(nodes).to(comm.device)
        self._slot = torch.full((len(features) if self.has_cache else 0,), _MISSING, dtype=torch.int32)
        self._slot[nodes] = torch.arange(len(nodes), dtype=torch.int32)

    def find(self, nodes: Tensor) -> Found:
        """Gather the rows that are not on the device.

        Args:
            nodes: ``[n]`` int64, distinct own nodes.
        """
        if not self.has_cache:
            return Found(self._gathered(nodes), None, nodes[:0], nodes[:0])
        slot = self._slot[nodes].long()
        places, (num_missing, _) = deal(torch.arange(len(nodes)), (slot != _MISSING).to(torch.int8), 2)
        to, kept_to = places[:num_missing], places[num_missing:]
        return Found(self._gathered(nodes[to]), to, slot[kept_to], kept_to)

    def bring(self, found: Found) -> Features:
        """``[n, D]`` on the device, in the order of the nodes."""
        comm, device = self.comm, self.comm.device
        comm.ledger.count("rows_loaded", found.num_rows)
        missing = to_device(found.missing, comm)
        if found.to is None:
            return missing
        comm.ledger.count("cache_hits", len(found.slots))
        comm.ledger.count("cache_misses", len(found.missing))
        draft = draft_of(found.num_rows, self.copies, self.dtype)
        draft.put(self.copies, found.slots.to(device), found.kept_to.to(device))
        draft.put(missing, None, found.to.to(device))
        return draft.done()

    def _gathered(self, nodes: Tensor) -> Features:
        draft = draft_of(len(nodes), self.features, self.dtype)
        draft.put(self.features, nodes, None)
        return draft.done()
