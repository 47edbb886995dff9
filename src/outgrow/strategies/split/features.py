"""Feature rows of own nodes, brought to the device for each batch; hot ones are kept there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.features.assembly import draft_of
from outgrow.engine.features.cache import DeviceCache, Places
from outgrow.engine.features.inputs import to_device
from outgrow.nn.layer import Features
from outgrow.runtime.distributed.comm import Comm


class Found(NamedTuple):
    """Rows for a batch, of which those that are not on the device are gathered.

    Attributes:
        missing: ``[m, D]`` those, in memory.
        places: Where rows belong; None for all in order.
    """

    missing: Features
    places: Places | None

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.missing) + (0 if self.places is None else len(self.places.slots))


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
        self.comm, self.features, self.dtype = comm, features, dtype
        self.cache = None
        if kept is not None:
            self.cache = DeviceCache(self._gathered(kept).to(comm.device), kept, len(features))

    def find(self, nodes: Tensor) -> Found:
        """Gather the rows that are not on the device.

        Args:
            nodes: ``[n]`` int64, distinct own nodes.
        """
        if self.cache is None:
            return Found(self._gathered(nodes), None)
        missing, places = self.cache.find(nodes)
        return Found(self._gathered(missing), places)

    def bring(self, found: Found) -> Features:
        """``[n, D]`` on the device, in the order of the nodes."""
        count, missing = self.comm.ledger.count, to_device(found.missing, self.comm)
        count("rows_loaded", found.num_rows)
        if self.cache is None or found.places is None:
            return missing
        count("cache_hits", len(found.places.slots))
        count("cache_misses", len(missing))
        return self.cache.complete(missing, found.places, self.dtype)

    def _gathered(self, nodes: Tensor) -> Features:
        draft = draft_of(len(nodes), self.features, self.dtype)
        draft.put(self.features, nodes, None)
        return draft.done()
