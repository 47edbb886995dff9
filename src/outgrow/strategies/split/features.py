"""Feature rows of own nodes, brought to the device for each batch; hot ones are kept there."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from outgrow.engine.features.assembly import AwaitableFeatures
from outgrow.engine.features.cache import DeviceCache
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.engine.features.store import CachedFeatureStore, FeatureRequest, LocalFeatureStore
from outgrow.nn.layer import Features
from outgrow.runtime.distributed.comm import Comm


class OwnFeatureStore:
    """A `FeatureStore` of a worker's own nodes, which gives rows on the device and asks nobody. Final.

    Counted in the ledger when rows are asked for: ``rows_loaded``; with a cache, ``cache_hits`` and ``cache_misses``.
    On a GPU the bytes that cross are counted when they do, but those of the cache.

    Args:
        comm: Whose device and ledger.
        features: ``[V, D]`` dense or sparse, as the graph has them; memory-mapped where they are many.
        dtype: Type of the rows that are given out.
        cached_nodes: ``[c]`` int64, nodes whose rows are kept on the device; None without a cache.
    """

    def __init__(self, comm: Comm, features: Features, dtype: torch.dtype, cached_nodes: Tensor | None = None) -> None:
        self.dtype, self._ledger = dtype, comm.ledger
        local, cache = LocalFeatureStore(features, dtype), None
        if cached_nodes is not None:
            copies = local.send_request(local.prepare_request(cached_nodes)).wait()
            cache = DeviceCache(copies.to(comm.device), cached_nodes, len(features))
        self._store = CachedFeatureStore(local, partial(move_features_to_device, comm=comm), cache)

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """See `FeatureStore.prepare_request`; of own nodes only."""
        return self._store.prepare_request(nodes)

    def send_request(self, request: FeatureRequest) -> AwaitableFeatures:
        """See `FeatureStore.send_request`; does not communicate."""
        count = self._ledger.add_count
        count("rows_loaded", request.num_rows + request.num_on_device)
        if request.lookup is not None:
            count("cache_hits", request.num_on_device)
            count("cache_misses", request.num_rows)
        return self._store.send_request(request)
