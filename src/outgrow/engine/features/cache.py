"""Caches of feature rows: selection of hot nodes, caches in host memory and on the device.

*Hot* is judged by the out-degree, as a node is sampled once for each edge that leaves it (PaGraph: Lin et
al., SoCC 2020), or counted in an epoch that is sampled beforehand (GNNLab: Yang et al., EuroSys 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import parse_bytes
from outgrow.core.validation import validate_choice
from outgrow.engine.features.assembly import RowSource, make_matrix_builder
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.owned_rows import OwnedRows
from outgrow.ops.rows.gather import add_bincount, group_by_owner
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm

_SCOPES = {"worker": False, "host": True}
_NODES_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheSpec:
    """Specification of a cache of hot rows that workers of other hosts own.

    Attributes:
        hotness: ``[V]`` int64, how often this worker, or any, requests a node; nodes with 0 are not cached.
        size: Size of each worker's cache: bytes, such as ``"64MiB"``, or a share of all rows, such as 0.1.
            Sparse rows count with their mean size.
        scope: ``worker``: each worker caches the hottest rows of other hosts. ``host``: the workers of a host
            share such a cache, each row on one of them (Quiver: Tan et al. 2023). On a single host there is
            nothing to cache, since all rows are there already.

    Raises:
        InputError: The scope or the size is invalid.
    """

    hotness: Tensor
    size: str | float
    scope: str = "worker"

    def __post_init__(self) -> None:
        validate_cache(self.size, self.scope)


class CacheAssignment(NamedTuple):
    """Assignment of cached rows to workers.

    Attributes:
        holder: ``[V]`` int32, the worker to request each row from: this one for rows that its host has, its
            owner or whoever caches it for others; the number of workers stands for the own cache.
        nodes: ``[c]`` int64, nodes whose rows this worker caches, the hottest first.
    """

    holder: Tensor
    nodes: Tensor


def validate_cache(size: str | float, scope: str, by: str = "degree") -> None:
    """Check the size, the scope and the criterion of a cache: see `CacheSpec` and `compute_hotness`.

    Raises:
        InputError: One of them is invalid.
    """
    validate_choice("cache_by", by, dict.fromkeys(("degree", "presampling")))
    validate_choice("place of a cache", scope, _SCOPES)
    if isinstance(size, str):
        parse_bytes(size)
    elif not 0 <= size <= 1:
        raise InputError(
            f"a cache cannot hold {size} of all rows",
            needed="a share from 0 to 1, or a size with a unit",
            got=repr(size),
            repair="write 0.1 or 64MiB, say",
        )


def require_other_hosts(size: str | float, num_workers: int, num_hosts: int) -> None:
    """Check that a cache of rows of other hosts has a use.

    Raises:
        InputError: A cache is asked for, but all workers are on one host.
    """
    if size and num_hosts == 1:
        raise InputError(
            "one host has no rows of others to cache: its workers read all rows themselves",
            needed="at least 2 hosts, or no cache",
            got=f"cache {size}, {num_workers} worker{'s' * (num_workers > 1)} on 1 host",
            repair="leave cache out (--set cache=0 for a run that is resumed), or train on more hosts",
        )


def compute_hotness(by: str, topology: Topology, batches: Callable[[], Iterable[Tensor]]) -> Tensor:
    """Return how hot each node is, ``[V]`` int64.

    Args:
        by: ``degree`` for `count_out_degrees`, ``presampling`` for `count_accesses`.
        topology: The edges.
        batches: Returns the batches for `count_accesses`.
    """
    return count_out_degrees(topology) if by == "degree" else count_accesses(batches(), topology.num_nodes)


def count_out_degrees(topology: Topology) -> Tensor:
    """Count the out-edges of each node, ``[V]`` int64."""
    counts = torch.zeros(topology.num_nodes, dtype=torch.int64)
    add_bincount(counts, topology.indices)
    return counts


def count_accesses(batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """Count the batches that request each node, ``[V]`` int64.

    Args:
        batches: ``[n]`` int64 distinct input nodes of each of a worker's batches, such as those of one epoch.
        num_nodes: ``V``.
    """
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    for nodes in batches:
        add_bincount(counts, nodes)
    return counts


def assign_cache(
    cache: CacheSpec, features: RowSource, owner: Tensor, comm: Comm, readable: list[int] | None = None
) -> CacheAssignment:
    """Assign the rows that this worker and the others of its scope cache. All workers together.

    For a cache of a host, hotness is summed over its workers, and the hottest rows are assigned round-robin.

    Args:
        cache: Specification of the cache.
        features: ``[V, D]``, for the size of rows.
        owner: ``[V]`` integer, the worker of each node.
        comm: Communicator of the workers.
        readable: Workers whose rows this one reads itself; None for those of its host.
    """
    shared = _SCOPES[cache.scope]
    here = comm.local_ranks if shared else [comm.rank]
    hotness = _sum_counts(cache.hotness, here, comm) if shared else cache.hotness
    # Rows that a worker of the host owns are never cached: they are as near already.
    elsewhere = torch.tensor([peer not in comm.local_ranks for peer in range(comm.size)])[owner.long()]
    chosen = hottest_nodes(hotness * elsewhere, len(here) * cache_capacity_rows(cache.size, features))
    readable = comm.local_ranks if readable is None else readable
    reads_itself = torch.tensor([peer in readable for peer in range(comm.size)])[owner.long()]
    holder = torch.where(reads_itself, comm.rank, owner).to(torch.int32)
    # Round-robin, so that the load of the hottest rows is shared by all workers of the host.
    for turn, peer in enumerate(here):
        holder[chosen[turn :: len(here)]] = comm.size if peer == comm.rank else peer
    return CacheAssignment(holder, chosen[here.index(comm.rank) :: len(here)])


def hottest_owned(hotness: Tensor, own: Tensor, size: str | float, features: RowSource) -> Tensor:
    """Return the hottest own nodes, as many as fit into a cache, ``[c]`` int64.

    Args:
        hotness: ``[V]`` int64, see `CacheSpec`.
        own: ``[n]`` int64, the nodes that the worker owns.
        size: See `CacheSpec`.
        features: ``[V, D]``, for the size of rows.
    """
    return sort_by_hotness(own, hotness)[: cache_capacity_rows(size, features)]


def sort_by_hotness(nodes: Tensor, hotness: Tensor) -> Tensor:
    """Sort nodes ``[n]`` int64 by hotness, the hottest first; equally hot ones keep their order.

    Args:
        nodes: Ids.
        hotness: ``[V]`` int64, see `CacheSpec`.
    """
    ordered: Tensor = nodes[hotness[nodes].sort(descending=True, stable=True).indices]
    return ordered


def hottest_nodes(counts: Tensor, max_nodes: int) -> Tensor:
    """Return the nodes with the highest counts, ``[h]`` int64; of equal ones, those with smaller ids.

    Args:
        counts: ``[V]`` int64; nodes with 0 are not hot.
        max_nodes: At most this many.
    """
    return sort_by_hotness(counts.nonzero()[:, 0], counts)[:max_nodes]


def cache_capacity_rows(size: str | float, features: RowSource) -> int:
    """Return how many rows fit into a cache; see `CacheSpec` for its size."""
    return rows_within_size(size, len(features), mean_row_bytes(features))


def rows_within_size(size: str | float, num_rows: int, row_bytes: float) -> int:
    """Return how many of ``num_rows`` rows fit into a cache; see `CacheSpec` for its size."""
    return int(parse_bytes(size) / row_bytes) if isinstance(size, str) else int(size * num_rows)


def _sum_counts(counts: Tensor, peers: list[int], comm: Comm) -> Tensor:
    """Return the sum of the counts of some workers, on each of them."""
    sums = [counts[:0]]
    # In pieces, as every peer of the host sends a copy of its counts.
    for part in torch.split(counts, _NODES_AT_ONCE):
        sizes = tuple(len(part) if peer in peers else 0 for peer in range(comm.size))
        everyones = comm.all_to_all(part.repeat(len(peers)), SplitSizes(sizes, sizes), Kind.METRICS).wait()
        sums.append(everyones.view(len(peers), -1).sum(0))
    return torch.cat(sums)


def mean_row_bytes(features: RowSource) -> float:
    """Return the bytes of a row of features; the mean where rows differ, of those that are here."""
    if isinstance(features, OwnedRows):
        return mean_row_bytes(features.rows)
    if isinstance(features, BlockRows):
        return features.num_values * features.dtype.itemsize / max(1, len(features))
    if isinstance(features, SparseRows):
        stored = len(features.values) * (features.indices.itemsize + features.values.itemsize)
        return features.indptr.itemsize + stored / max(1, len(features))
    return max(1, features.shape[1] * features.dtype.itemsize)


_MISSING = -1


class CacheLookup(NamedTuple):
    """Positions of cached and missing rows in a result.

    Attributes:
        missing_positions: ``[m]`` int64, positions of rows that are not cached.
        cached_slots: ``[n - m]`` int64, rows of the cache.
        cached_positions: ``[n - m]`` int64, positions of these rows in the result.
        copies: ``[c, D]`` rows of the cache, on the device.
    """

    missing_positions: Tensor
    cached_slots: Tensor
    cached_positions: Tensor
    copies: Features

    def assemble_rows(self, missing_rows: Features, dtype: torch.dtype) -> Features:
        """Combine missing and cached rows in the order of the nodes, ``[n, D]``, on the device."""
        device = self.copies.device
        draft = make_matrix_builder(len(missing_rows) + len(self.cached_slots), self.copies, dtype)
        draft.write_rows(self.copies, self.cached_slots.to(device), self.cached_positions.to(device))
        draft.write_rows(missing_rows, None, self.missing_positions.to(device))
        return draft.build_matrix()


class DeviceCache:
    """A cache of rows on the device, which does not change. Final.

    Args:
        copies: ``[c, D]``, on the device.
        nodes: ``[c]`` int64, the nodes of these rows.
        num_nodes: ``V``.
    """

    def __init__(self, copies: Features, nodes: Tensor, num_nodes: int) -> None:
        self.copies = copies
        # A table of int32 for all nodes: one read for each node of a batch, without a search.
        self._slot = torch.full((num_nodes,), _MISSING, dtype=torch.int32)
        self._slot[nodes] = torch.arange(len(nodes), dtype=torch.int32)

    def look_up(self, nodes: Tensor) -> tuple[Tensor, CacheLookup]:
        """Return the nodes not cached among distinct nodes ``[n]``, and all positions. In any thread."""
        slot = self._slot[nodes].long()
        # Missing rows are group 0, cached ones group 1.
        places, (num_missing, _) = group_by_owner(torch.arange(len(nodes)), (slot != _MISSING).to(torch.int8), 2)
        to = places[:num_missing]
        kept_to = places[num_missing:]
        return nodes[to], CacheLookup(to, slot[kept_to], kept_to, self.copies)

    def add_rows(self, rows: Features, nodes: Tensor) -> DeviceCache:
        """Return a cache that has these rows as well.

        Args:
            rows: ``[a, D]``, on the device.
            nodes: ``[a]`` int64, the nodes of these rows, none of which is cached.
        """
        size, device = len(self.copies), self.copies.device
        draft = make_matrix_builder(size + len(rows), self.copies, self.copies.dtype)
        draft.write_rows(self.copies, None, torch.arange(size, device=device))
        draft.write_rows(rows, None, torch.arange(size, size + len(rows), device=device))
        found = DeviceCache(draft.build_matrix(), nodes[:0], 0)
        # A copy: other threads may look nodes up in the cache as it was.
        found._slot = self._slot.clone()
        found._slot[nodes] = torch.arange(size, size + len(nodes), dtype=torch.int32)
        return found
