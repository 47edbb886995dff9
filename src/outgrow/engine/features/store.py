"""Feature stores: the one way to get the features of a batch, in steps between which there is time to compute.

A store may stand on another one: `CachedFeatureStore` keeps some rows on the device and asks the store below
for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.engine.features.assembly import AwaitableFeatures, MatrixBuilder, make_matrix_builder
from outgrow.engine.features.cache import CacheLookup, DeviceCache
from outgrow.nn.layer import Features


class RemoteRows(NamedTuple):
    """Rows that other workers have.

    Attributes:
        nodes: ``[r]`` int64, whose rows they are; those to ask worker 0 for first.
        positions: ``[r]`` int64, where the rows belong.
        sizes: How many to ask each worker for.
    """

    nodes: Tensor
    positions: Tensor
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureRequest:
    """Rows for a batch, of which those in this worker's memory are written.

    Attributes:
        builder: The rows that are not kept on the device.
        num_rows: How many these are.
        remote: Those that are elsewhere; None if there is no elsewhere.
        hits: Rows that are not the worker's own and are in a cache in memory, its own or a peer's.
        misses: Rows that are not the worker's own and are in no such cache.
        lookup: Where these rows and those that are kept on the device belong; None for all in order.
    """

    builder: MatrixBuilder
    num_rows: int
    remote: RemoteRows | None = None
    hits: int = 0
    misses: int = 0
    lookup: CacheLookup | None = None

    @property
    def num_on_device(self) -> int:
        """How many rows are kept on the device."""
        return 0 if self.lookup is None else len(self.lookup.cached_slots)


class PendingFeatures(NamedTuple):
    """Rows for a batch in memory, of which some are under way.

    Attributes:
        request: What was asked for.
        remote_rows: Rows of others; None if there are no others.
    """

    request: FeatureRequest
    remote_rows: AwaitableFeatures | None

    def wait(self) -> Features:
        """``[n, D]``: the rows in the order of the nodes. To be called once, by the thread that asked."""
        builder = self.request.builder
        remote = self.request.remote
        if self.remote_rows is not None and remote is not None:
            builder.write_rows(self.remote_rows.wait(), None, remote.positions)
        return builder.build_matrix()


class FeatureStore(Protocol):
    """The features of nodes: ``send_request(prepare_request(nodes)).wait()``."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows that are given out."""

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather the rows that are here, and find out whom to ask for the others. In any thread; sends nothing.

        Args:
            nodes: ``[n]`` int64, distinct.
        """

    def send_request(self, request: FeatureRequest) -> AwaitableFeatures:
        """Ask for the other rows, which are under way when this returns. All workers together, also for nothing."""


class LocalFeatureStore:
    """Rows that this worker reads itself. Counts nothing. Final.

    Args:
        features: ``[V, D]`` dense or sparse, as the graph has them; memory-mapped where they are many.
        dtype: Type of the rows that are given out.
    """

    def __init__(self, features: Features, dtype: torch.dtype) -> None:
        self.features = features
        self.dtype = dtype

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """See `FeatureStore.prepare_request`."""
        builder = make_matrix_builder(len(nodes), self.features, self.dtype)
        builder.write_rows(self.features, nodes, None)
        return FeatureRequest(builder=builder, num_rows=len(nodes))

    def send_request(self, request: FeatureRequest) -> PendingFeatures:
        """See `FeatureStore.send_request`; does not communicate."""
        return PendingFeatures(request, None)


class CachedFeatureStore:
    """Rows on the device, where copies of some are kept; the others come from the store below. Final.

    Args:
        store: Gives rows in memory.
        to_device: Brings rows to the device, and counts the bytes that cross.
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
        """Type of the rows that are given out."""
        return self._store.dtype

    def fill_cache(self, nodes: Tensor, num_nodes: int) -> None:
        """Keep the rows of some nodes, and no others. All workers together, while no request is under way.

        Args:
            nodes: ``[c]`` int64, distinct.
            num_nodes: ``V``.
        """
        rows = self._store.send_request(self._store.prepare_request(nodes)).wait()
        self._cache = DeviceCache(self._to_device(rows), nodes, num_nodes)

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """See `FeatureStore.prepare_request`."""
        if self._cache is None:
            return self._store.prepare_request(nodes)
        missing, lookup = self._cache.look_up(nodes)
        return replace(self._store.prepare_request(missing), lookup=lookup)

    def send_request(self, request: FeatureRequest) -> AwaitableFeatures:
        """See `FeatureStore.send_request`; rows cross to the device when they are waited for."""
        return _PendingOnDevice(self, request, self._store.send_request(request))

    def assemble_rows(self, request: FeatureRequest, missing_rows: Features) -> Features:
        """``[n, D]`` on the device: the rows of a request, from those in memory that were not kept."""
        moved = self._to_device(missing_rows)
        if self._cache is None or request.lookup is None:
            return moved
        return self._cache.assemble_rows(moved, request.lookup, self.dtype)


class _PendingOnDevice(NamedTuple):
    """Rows on their way to the device."""

    store: CachedFeatureStore
    request: FeatureRequest
    missing_rows: AwaitableFeatures

    def wait(self) -> Features:
        return self.store.assemble_rows(self.request, self.missing_rows.wait())
