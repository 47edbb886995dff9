"""Feature stores: the one way to get the features of a batch, in steps that can overlap with computation.

Stores can be stacked: `CachedFeatureStore` keeps some rows on the device and fetches the others from another
store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.engine.features.assembly import AwaitableFeatures, MatrixBuilder, RowSource, make_matrix_builder
from outgrow.engine.features.cache import CacheLookup, DeviceCache
from outgrow.nn.layer import Features
from outgrow.runtime.system.device import DeviceStreams


class RemoteRows(NamedTuple):
    """Rows to fetch from other workers.

    Attributes:
        nodes: ``[r]`` int64, nodes of these rows, ordered by worker.
        positions: ``[r]`` int64, positions of the rows in the result.
        sizes: Number of rows to fetch from each worker.
    """

    nodes: Tensor
    positions: Tensor
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureRequest:
    """Rows for a batch, of which the local ones are gathered already.

    Attributes:
        builder: Builder of the rows that are not cached on the device.
        num_rows: Number of these rows.
        remote: Rows to fetch from other workers; None if there is nobody to fetch from.
        local_peer_rows: Number of rows that other workers of this host own.
        hits: Rows of other hosts that are in a cache in memory, the worker's own or a peer's.
        misses: Rows of other hosts that are in no such cache.
        lookup: Positions of these rows and of those cached on the device; None for all in order.
    """

    builder: MatrixBuilder
    num_rows: int
    remote: RemoteRows | None = None
    local_peer_rows: int = 0
    hits: int = 0
    misses: int = 0
    lookup: CacheLookup | None = None

    @property
    def num_on_device(self) -> int:
        """Number of rows cached on the device."""
        return 0 if self.lookup is None else len(self.lookup.cached_slots)


class PendingFeatures(NamedTuple):
    """Rows for a batch, some of which are being received.

    Attributes:
        request: The request.
        remote_rows: Rows of other workers; None if there are none.
    """

    request: FeatureRequest
    remote_rows: AwaitableFeatures | None

    def wait(self) -> Features:
        """Return the rows in the order of the nodes, ``[n, D]``. Call it once, in the requesting thread."""
        builder = self.request.builder
        remote = self.request.remote
        # Written last, as they are the last to come in; the positions make the order irrelevant.
        if self.remote_rows is not None and remote is not None:
            builder.write_rows(self.remote_rows.wait(), None, remote.positions)
        return builder.build_matrix()


class FeatureStore(Protocol):
    """The features of nodes: ``send_request(prepare_request(nodes)).wait()``."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the returned rows."""

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather local rows, and group the others by worker. In any thread; sends nothing.

        Args:
            nodes: ``[n]`` int64, distinct.
        """

    def send_request(self, request: FeatureRequest) -> AwaitableFeatures:
        """Start fetching the other rows. All workers together, even if there are none."""


class LocalFeatureStore:
    """A store of rows that this worker reads itself. Counts nothing. Final.

    Args:
        features: ``[V, D]`` dense or sparse, as the graph has them; memory-mapped where they are many.
        dtype: Type of the returned rows.
    """

    def __init__(self, features: RowSource, dtype: torch.dtype) -> None:
        self.features = features
        self.dtype = dtype

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather the local rows that are not cached on the device."""
        builder = make_matrix_builder(len(nodes), self.features, self.dtype)
        # Read here, in a sampling thread, so that a mapped file does not stall the computation.
        builder.write_rows(self.features, nodes, None)
        return FeatureRequest(builder=builder, num_rows=len(nodes))

    def send_request(self, request: FeatureRequest) -> PendingFeatures:
        """Return the gathered rows, without communication."""
        return PendingFeatures(request, None)


class CachedFeatureStore:
    """A store of rows on the device, with a cache there; other rows come from another store. Final.

    Args:
        store: The store of rows in memory.
        to_device: Moves rows to the device, and counts the bytes.
        cache: Rows on the device; None for none.
    """

    def __init__(
        self, store: FeatureStore, to_device: Callable[[Features], Features], cache: DeviceCache | None = None
    ) -> None:
        self._store = store
        self._to_device = to_device
        self._cache = cache

    @property
    def dtype(self) -> torch.dtype:
        """Type of the returned rows."""
        return self._store.dtype

    def extend_cache(self, nodes: Tensor, num_nodes: int) -> None:
        """Cache the rows of these nodes as well. All workers together, by the thread that sends requests.

        Requests that were prepared before use the cache as it was.

        Args:
            nodes: ``[c]`` int64, distinct, none of which is cached.
            num_nodes: ``V``.
        """
        rows = self._store.send_request(self._store.prepare_request(nodes)).wait()
        # Also without nodes of its own a worker has answered the others.
        if len(nodes):
            moved, cache = self._to_device(rows), self._cache
            extended = DeviceCache(moved, nodes, num_nodes) if cache is None else cache.add_rows(moved, nodes)
            # The stream of another thread may read it from now on.
            DeviceStreams(moved.device).synchronize()
            self._cache = extended

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather the local rows that are not cached on the device."""
        # Read once: the thread that sends requests may extend the cache meanwhile.
        cache = self._cache
        if cache is None:
            return self._store.prepare_request(nodes)
        # Cached rows are left out before anything is read or sent for them.
        missing, lookup = cache.look_up(nodes)
        return replace(self._store.prepare_request(missing), lookup=lookup)

    def send_request(self, request: FeatureRequest) -> AwaitableFeatures:
        """Start fetching the other rows; they move to the device when they are waited for."""
        # Not moved yet: rows of other workers are still being received.
        return _PendingOnDevice(self, request, self._store.send_request(request))

    def assemble_rows(self, request: FeatureRequest, missing_rows: Features) -> Features:
        """Return the rows of a request on the device, ``[n, D]``, from those that were not cached."""
        moved = self._to_device(missing_rows)
        return moved if request.lookup is None else request.lookup.assemble_rows(moved, self.dtype)


class _PendingOnDevice(NamedTuple):
    """Rows that move to the device when they are waited for."""

    store: CachedFeatureStore
    request: FeatureRequest
    missing_rows: AwaitableFeatures

    def wait(self) -> Features:
        return self.store.assemble_rows(self.request, self.missing_rows.wait())
