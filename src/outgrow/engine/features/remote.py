"""Feature rows of any nodes, for a worker that owns some of them: read, cached, or fetched from others.

All workers of a host map the same features, and each reads the rows of all of them itself. Rows of workers of other
hosts are requested from their owners, as if they were on disks that this host cannot access.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.assembly import RowSource, has_all_rows, make_matrix_builder, send_features
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

    Counted in the ledger at each request: ``rows_loaded``; ``local_peer_rows`` among them, which other workers of
    the host own; ``remote_rows``, received from other workers; and, with a cache, ``cache_hits`` and
    ``cache_misses`` among the rows of other hosts: those in a cache of this worker or of another on its host, and
    those in none.

    Args:
        shard: The worker's shard of the graph.
        features: ``[V, D]`` dense or sparse, as the graph has them, memory-mapped where they are many; or rows in
            storage, of own nodes at least.
        dtype: Type of the returned rows.
        cache: Specification of the cache, which all workers fill together now; None for none. Workers of a single
            host have none.
        comm: Communicator for requests; None for that of the shard.
        kind: Kind of the rows, for the ledger.
        owned_only: Whether ``features`` has rows of own nodes only, as that of a part, so that other workers of the
            host must be asked for theirs, too.
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
        owned_only: bool = False,
    ) -> None:
        self.comm = comm or shard.comm
        self.kind = kind
        self.features = features
        self.dtype = dtype
        self.wire_dtype = min(dtype, features.dtype, key=lambda each: each.itemsize)
        self.owner = shard.owner if isinstance(shard, PartitionShard) else None
        # Who has rows of own nodes alone reads no others, not even those of workers of the same host.
        owned_only = owned_only or not has_all_rows(features)
        readable = [self.comm.rank] if owned_only else self.comm.local_ranks
        self.holder = None if self.owner is None else _find_holders(self.owner, readable, self.comm)
        self.copies: Features | None = None
        self.slot = torch.empty(0, dtype=torch.int32)
        if cache is not None and self.owner is not None and self.holder is not None:
            kept = assign_cache(cache, features, self.owner, self.comm, readable)
            rows = self._exchange_rows(self._prepare_rows(kept.nodes, self.wire_dtype)).wait()
            self._add_cache(kept, rows)

    @property
    def exchanges_rows(self) -> bool:
        """Whether workers ask each other for rows; if not, ``send_request`` sends nothing."""
        return self.holder is not None

    def _add_cache(self, assignment: CacheAssignment, copies: Features) -> None:
        """Serve cached rows from now on, and request others from their holders."""
        self.holder = assignment.holder
        # A built matrix may occupy more memory than its rows need.
        self.copies = copies.clone() if isinstance(copies, Tensor) else copies
        self.slot = torch.full((len(assignment.holder),), -1, dtype=torch.int32)
        self.slot[assignment.nodes] = torch.arange(len(assignment.nodes), dtype=torch.int32)
        memory_pool.release_idle_memory()

    def prepare_request(self, nodes: Tensor) -> FeatureRequest:
        """Gather rows of this host and cached ones, and group the others by holder."""
        return self._prepare_rows(nodes, self.dtype)

    def send_request(self, request: FeatureRequest) -> PendingFeatures:
        """Send a request, and answer those of the other workers.

        Waits for their requests: a count of 8 bytes (``metrics``), and 8 bytes for each row (``ids``).
        """
        self._count_rows(request)
        return self._exchange_rows(request)

    def send_requests(self, requests: Iterable[FeatureRequest]) -> Generator[PendingFeatures]:
        """Send requests as they come, and answer those of the other workers; for a thread of its own.

        Uses the background communicator. All workers together, equally many requests. One message tells a worker
        which rows a request needs and how many the next one will (``ids``), so a request is answered once the next
        one has come; only the first number is a message of its own (``metrics``).
        """
        comm = self.comm.background_comm
        waiting: FeatureRequest | None = None
        num_asked = torch.zeros(comm.size, dtype=torch.int64)
        for request in requests:
            self._count_rows(request)
            sizes = torch.tensor(_remote_rows(request).sizes)
            if waiting is None:
                num_asked = comm.all_to_all_counts(sizes, Kind.METRICS)
            else:
                asked, route, num_next = _exchange_ids(_remote_rows(waiting), num_asked, sizes, comm)
                yield self._answer_request(waiting, asked, route, comm)
                num_asked = num_next
            waiting = request
        if waiting is not None:
            asked, route, _ = _exchange_ids(_remote_rows(waiting), num_asked, None, comm)
            yield self._answer_request(waiting, asked, route, comm)

    def _count_rows(self, request: FeatureRequest) -> None:
        count = self.comm.ledger.add_count
        remote = request.remote
        count("rows_loaded", request.num_rows)
        count("local_peer_rows", request.local_peer_rows)
        count("remote_rows", len(remote.nodes) if remote is not None else 0)
        if self.copies is not None:
            count("cache_hits", request.hits)
            count("cache_misses", request.misses)

    def _prepare_rows(self, nodes: Tensor, dtype: torch.dtype) -> FeatureRequest:
        if self.owner is None or self.holder is None:
            request = LocalFeatureStore(self.features, dtype).prepare_request(nodes)
            return replace(request, local_peer_rows=self._count_local_peers(nodes))
        builder = make_matrix_builder(len(nodes), self.features, dtype)
        rank = self.comm.rank
        # The last group is cached by this worker.
        places, sizes = group_by_owner(nodes, self.holder, self.comm.size + 1)
        *by_worker, copied = torch.split(places, sizes)
        here = nodes[by_worker[rank]]
        builder.write_rows(self.features, here, by_worker[rank])
        if self.copies is not None:
            builder.write_rows(self.copies, self.slot[nodes[copied]].long(), copied)
        others = torch.cat([places[:0], *by_worker[:rank], *by_worker[rank + 1 :]])
        remote = RemoteRows(nodes[others], others, (*sizes[:rank], 0, *sizes[rank + 1 : -1]))
        # A row held by its owner is in no cache; any other holder has a cached copy.
        misses = int((self.owner[remote.nodes] == self.holder[remote.nodes]).sum())
        hits = len(copied) + len(others) - misses
        return FeatureRequest(
            builder=builder,
            num_rows=len(nodes),
            remote=remote,
            local_peer_rows=self._count_local_peers(here),
            hits=hits,
            misses=misses,
        )

    def _count_local_peers(self, nodes: Tensor) -> int:
        """Return how many of these nodes, whose rows are read here, others own."""
        return 0 if self.owner is None else int((self.owner[nodes] != self.comm.rank).sum())

    def _exchange_rows(self, request: FeatureRequest) -> PendingFeatures:
        comm = self.comm
        remote = request.remote
        if remote is None:
            return PendingFeatures(request, None)
        asked_for = comm.all_to_all_counts(torch.tensor(remote.sizes), Kind.METRICS)
        asked, route, _ = _exchange_ids(remote, asked_for, None, comm)
        return self._answer_request(request, asked, route, comm)

    def _answer_request(self, request: FeatureRequest, asked: Tensor, route: SplitSizes, comm: Comm) -> PendingFeatures:
        """Send the rows that others have asked for, and start receiving those of a request."""
        with comm.timeline.span("gather"):
            # In the smaller type, so that no row is widened before it is sent.
            answer = self._prepare_rows(asked, self.wire_dtype)
        assert answer.remote is None or len(answer.remote.nodes) == 0
        return PendingFeatures(request, send_features(comm, answer.builder.build_matrix(), route.reverse, self.kind))


def _find_holders(owner: Tensor, readable: list[int], comm: Comm) -> Tensor | None:
    """Return ``[V]``, the worker to request each row from, this one for rows it can read; None if it can read all."""
    if len(readable) == comm.size:
        return None
    if readable == [comm.rank]:
        return owner
    by_owner = torch.arange(comm.size, dtype=owner.dtype)
    by_owner[readable] = comm.rank
    return by_owner[owner.long()]


def _remote_rows(request: FeatureRequest) -> RemoteRows:
    assert request.remote is not None
    return request.remote


def _exchange_ids(
    remote: RemoteRows, num_asked: Tensor, num_next: Tensor | None, comm: Comm
) -> tuple[Tensor, SplitSizes, Tensor]:
    """Tell other workers which of their rows a request needs, and how many the next one will.

    Args:
        remote: The rows.
        num_asked: ``[P]`` int64, how many each worker asks for.
        num_next: ``[P]`` int64, how many rows of each worker the next request needs; None for no next one.
        comm: Communicator.

    Returns:
        The nodes that others ask for, ordered by worker; the route of the requests, whose reverse the rows
        take; and ``[P]``, how many each worker will ask for next.
    """
    route = SplitSizes(remote.sizes, tuple(num_asked.tolist()))
    if num_next is None:
        return comm.all_to_all(remote.nodes, route, Kind.IDS).wait(), route, torch.zeros_like(num_asked)
    # The number comes last in each message.
    longer = SplitSizes(*(tuple(size + 1 for size in sizes) for sizes in route))
    ends = torch.tensor(route.send).cumsum(0)
    message = torch.empty(len(remote.nodes) + comm.size, dtype=torch.int64)
    is_number = torch.zeros(len(message), dtype=torch.bool)
    is_number[ends + torch.arange(comm.size)] = True
    message[is_number] = num_next
    message[~is_number] = remote.nodes
    received = comm.all_to_all(message, longer, Kind.IDS).wait()
    told_at = torch.tensor(longer.receive).cumsum(0) - 1
    asked = torch.ones(len(received), dtype=torch.bool)
    asked[told_at] = False
    return received[asked], route, received[told_at]


def input_dtype(model: Model, features: RowSource) -> torch.dtype:
    """Return the type of features as a model reads them: that of its parameters, or half precision."""
    return features.dtype if keeps_half(model, features) else model.dtype
