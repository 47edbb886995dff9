"""Feature rows of any nodes, for a worker that owns some of them: read, cached, or fetched from others.

All workers of a host map the same store, but a worker reads only rows of nodes that it owns, as if the others
were on disks that it cannot access.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.assembly import RowSource, make_matrix_builder, send_features
from outgrow.engine.features.cache import CacheAssignment, CacheSpec, assign_cache
from outgrow.engine.features.inputs import keeps_half
from outgrow.engine.features.store import FeatureRequest, LocalFeatureStore, PendingFeatures, RemoteRows
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.rows.gather import group_by_owner
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm


class RemoteFeatureStore:
    """A `FeatureStore` of all nodes; ``send_request`` and ``wait`` communicate with other workers. Final.

    A remote row is sent once for each batch, in the features' type or in that of the result, whichever is
    smaller.

    Counted in the ledger at each request: ``rows_loaded``, ``remote_rows`` received from other workers, and,
    with a cache, ``cache_hits`` and ``cache_misses`` among the rows that other workers own: those in a cache
    of this worker or of another on its host, and those in none.

    Args:
        shard: The worker's shard of the graph.
        features: ``[V, D]`` dense or sparse, as the graph has them, memory-mapped where they are many; or rows in
            storage, of own nodes at least.
        dtype: Type of the returned rows.
        cache: Specification of the cache, which all workers fill together now; None for none. A single worker
            has none.
        comm: Communicator for requests; None for that of the shard.
        kind: Kind of the rows, for the ledger.
    """

    def __init__(
        self,
        shard: GraphShard,
        features: RowSource,
        dtype: torch.dtype,
        cache: CacheSpec | None = None,
        *,
        comm: Comm | None = None,
        kind: Kind = Kind.FEATURES,
    ) -> None:
        self.comm = comm or shard.comm
        self.kind = kind
        self.features = features
        self.dtype = dtype
        self.wire_dtype = min(dtype, features.dtype, key=lambda each: each.itemsize)
        self.owner = self.holder = shard.owner if isinstance(shard, PartitionShard) else None
        self.copies: Features | None = None
        self.slot = torch.empty(0, dtype=torch.int32)
        if cache is not None and self.owner is not None:
            kept = assign_cache(cache, features, self.owner, self.comm)
            self._add_cache(kept, self._exchange_rows(self._prepare_rows(kept.nodes, self.wire_dtype)).wait())

    def _add_cache(self, assignment: CacheAssignment, copies: Features) -> None:
        """Serve cached rows from now on, and request others from their holders."""
        self.holder = assignment.holder
        # A built matrix may occupy more memory than its rows need.
        self.copies = copies.clone() if isinstance(copies, Tensor) else copies
        self.slot = torch.full((len(assignment.holder),), -1, dtype=torch.int32)
        self.slot[assignment.nodes] = torch.arange(len(assignment.nodes), dtype=torch.int32)
        memory_pool.release_idle_memory()

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather own and cached rows, and group the others by holder."""
        return self._prepare_rows(nodes, self.dtype)

    def send_request(self, request: FeatureRequest) -> PendingFeatures:
        """Send a request, and answer those of the other workers.

        Waits for their requests: a count of 8 bytes (``metrics``), and 8 bytes for each row (``ids``).
        """
        count = self.comm.ledger.add_count
        remote = request.remote
        count("rows_loaded", request.num_rows)
        count("remote_rows", len(remote.nodes) if remote is not None else 0)
        if self.copies is not None:
            count("cache_hits", request.hits)
            count("cache_misses", request.misses)
        return self._exchange_rows(request)

    def _prepare_rows(self, nodes: Tensor, dtype: torch.dtype) -> FeatureRequest:
        if self.owner is None or self.holder is None:
            return LocalFeatureStore(self.features, dtype).prepare_request(nodes)
        builder = make_matrix_builder(len(nodes), self.features, dtype)
        rank = self.comm.rank
        # The last group is cached by this worker.
        places, sizes = group_by_owner(nodes, self.holder, self.comm.size + 1)
        *by_worker, copied = torch.split(places, sizes)
        builder.write_rows(self.features, nodes[by_worker[rank]], by_worker[rank])
        if self.copies is not None:
            builder.write_rows(self.copies, self.slot[nodes[copied]].long(), copied)
        others = torch.cat([places[:0], *by_worker[:rank], *by_worker[rank + 1 :]])
        remote = RemoteRows(nodes[others], others, (*sizes[:rank], 0, *sizes[rank + 1 : -1]))
        # A row held by its owner is in no cache; any other holder has a cached copy.
        misses = int((self.owner[remote.nodes] == self.holder[remote.nodes]).sum())
        hits = len(copied) + len(others) - misses
        return FeatureRequest(builder=builder, num_rows=len(nodes), remote=remote, hits=hits, misses=misses)

    def _exchange_rows(self, request: FeatureRequest) -> PendingFeatures:
        comm = self.comm
        remote = request.remote
        if remote is None:
            return PendingFeatures(request, None)
        asked_for = comm.all_to_all_counts(torch.tensor(remote.sizes), Kind.METRICS)
        # Requests go out along this route, and rows come back along its reverse.
        route = SplitSizes(remote.sizes, tuple(asked_for.tolist()))
        asked = comm.all_to_all(remote.nodes, route, Kind.IDS).wait()
        with comm.timeline.span("gather"):
            # In the smaller type, so that no row is widened before it is sent.
            answer = self._prepare_rows(asked, self.wire_dtype)
        assert answer.remote is None or len(answer.remote.nodes) == 0
        return PendingFeatures(request, send_features(comm, answer.builder.build_matrix(), route.reverse, self.kind))


def input_dtype(model: Model, features: RowSource) -> torch.dtype:
    """Return the type of features as a model reads them: that of its parameters, or half precision."""
    return features.dtype if keeps_half(model, features) else model.dtype
