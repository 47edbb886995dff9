"""Feature rows of own nodes, moved to the device for each batch; hot ones are cached there."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from outgrow.engine.features.assembly import AwaitableFeatures, RowSource
from outgrow.engine.features.cache import DeviceCache
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.engine.features.store import CachedFeatureStore, FeatureRequest, LocalFeatureStore
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import DeviceStreams


class OwnFeatureStore:
    """A `FeatureStore` of a worker's own nodes that returns rows on the device, without communication. Final.

    Counted in the ledger at each request: ``rows_loaded``; with a cache, ``cache_hits`` and ``cache_misses``.
    On a GPU, the bytes moved to the device are counted, except those that fill the cache.

    Args:
        comm: Communicator; gives the device and the ledger.
        features: ``[V, D]`` dense or sparse, as the graph has them; memory-mapped where they are many.
        dtype: Type of the returned rows.
        cached_nodes: ``[c]`` int64, nodes whose rows are cached on the device; None for no cache.
    """

    def __init__(self, comm: Comm, features: RowSource, dtype: torch.dtype, cached_nodes: Tensor | None = None) -> None:
        self.dtype = dtype
        self._ledger = comm.ledger
        local = LocalFeatureStore(features, dtype)
        cache = None
        if cached_nodes is not None:
            copies = local.send_request(local.prepare_request(cached_nodes)).wait()
            cache = DeviceCache(copies.to(comm.device), cached_nodes, len(features))
            # The stream of another thread reads it.
            DeviceStreams(comm.device).synchronize()
        self._store = CachedFeatureStore(local, partial(move_features_to_device, comm=comm), cache)

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather the rows of own nodes that are not cached."""
        return self._store.prepare_request(nodes)

    def send_request(self, request: FeatureRequest) -> AwaitableFeatures:
        """Count the request; the returned rows move to the device when they are waited for."""
        count = self._ledger.add_count
        # Counted when sent, as requests of a batch that is never trained are dropped.
        count("rows_loaded", request.num_rows + request.num_on_device)
        if request.lookup is not None:
            count("cache_hits", request.num_on_device)
            count("cache_misses", request.num_rows)
        return self._store.send_request(request)
