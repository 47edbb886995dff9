"""Hot-node selection, host cache, device cache.

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
from outgrow.engine.features.assembly import make_matrix_builder
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features
from outgrow.ops.rows.gather import add_bincount, group_by_owner
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm

_SCOPES = {"worker": False, "host": True}
_NODES_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheSpec:
    """Copies of hot rows. Only rows that a batch would otherwise get from elsewhere are worth one.

    Attributes:
        hotness: ``[V]`` int64, how often this worker, or any, asks for a node; nodes with 0 are not kept.
        size: What each worker keeps: bytes, such as ``"64MiB"``, or a share of all rows, such as 0.1. Bytes
            of sparse rows are reckoned by their mean size.
        scope: ``worker``: each keeps the hottest rows of all other workers. ``host``: the workers of a host
            keep the hottest rows of other hosts, each row on one of them, and ask each other before they ask
            another host (Quiver: Tan et al. 2023). On a single host that is nothing, since all rows are there
            already.

    Raises:
        InputError: No such place, or no such size.
    """

    hotness: Tensor
    size: str | float
    scope: str = "worker"

    def __post_init__(self) -> None:
        validate_cache(self.size, self.scope)


class CacheAssignment(NamedTuple):
    """Who keeps copies of which rows.

    Attributes:
        holder: ``[V]`` int32, whom a worker asks for each row; the number of workers stands for its own
            copies.
        nodes: ``[c]`` int64, whose rows this worker keeps copies of, the hottest first.
    """

    holder: Tensor
    nodes: Tensor


def validate_cache(size: str | float, scope: str, by: str = "degree") -> None:
    """Check the size and the place of a cache, and what is hot: see `CacheSpec` and `compute_hotness`.

    Raises:
        InputError: No such place, no such size, or nothing of that name is hot.
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


def compute_hotness(by: str, topology: Topology, batches: Callable[[], Iterable[Tensor]]) -> Tensor:
    """``[V]`` int64: how hot each node is.

    Args:
        by: ``degree`` for `count_out_degrees`, ``presampling`` for `count_accesses`.
        topology: The edges.
        batches: Gives what `count_accesses` takes.
    """
    return count_out_degrees(topology) if by == "degree" else count_accesses(batches(), topology.num_nodes)


def count_out_degrees(topology: Topology) -> Tensor:
    """``[V]`` int64: how many edges leave each node."""
    counts = torch.zeros(topology.num_nodes, dtype=torch.int64)
    add_bincount(counts, topology.indices)
    return counts


def count_accesses(batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """``[V]`` int64: how many of these batches ask for each node.

    Args:
        batches: ``[n]`` int64 distinct input nodes of each of a worker's batches, such as those of one epoch.
        num_nodes: ``V``.
    """
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    for nodes in batches:
        add_bincount(counts, nodes)
    return counts


def assign_cache(cache: CacheSpec, features: Features, owner: Tensor, comm: Comm) -> CacheAssignment:
    """Which rows this worker and those beside it keep. All workers together.

    For a cache of a host the hotness is summed over its workers, and the hottest rows are dealt out to them
    in turns.

    Args:
        cache: What is hot, and how much is kept where.
        features: ``[V, D]``, for the size of rows.
        owner: ``[V]`` integer, the worker of each node.
        comm: Communicator of the workers.
    """
    shared = _SCOPES[cache.scope]
    here = [peer for peer, host in enumerate(comm.hosts) if host == comm.hosts[comm.rank]] if shared else [comm.rank]
    hotness = _sum_counts(cache.hotness, here, comm) if shared else cache.hotness
    elsewhere = torch.tensor([peer not in here for peer in range(comm.size)])[owner.long()]
    chosen = hottest_nodes(hotness * elsewhere, len(here) * cache_capacity_rows(cache.size, features))
    holder = owner.to(torch.int32, copy=True)
    for turn, peer in enumerate(here):
        holder[chosen[turn :: len(here)]] = comm.size if peer == comm.rank else peer
    return CacheAssignment(holder, chosen[here.index(comm.rank) :: len(here)])


def hottest_owned(hotness: Tensor, own: Tensor, size: str | float, features: Features) -> Tensor:
    """``[c]`` int64: the hottest of a worker's own nodes, as many as a cache of that size holds.

    Args:
        hotness: ``[V]`` int64, see `CacheSpec`.
        own: ``[n]`` int64, the nodes that the worker owns.
        size: See `CacheSpec`.
        features: ``[V, D]``, for the size of rows.
    """
    return sort_by_hotness(own, hotness)[: cache_capacity_rows(size, features)]


def sort_by_hotness(nodes: Tensor, hotness: Tensor) -> Tensor:
    """Some nodes ``[n]`` int64 by how hot they are; of equally hot ones in the order given.

    Args:
        nodes: Ids.
        hotness: ``[V]`` int64, see `CacheSpec`.
    """
    ordered: Tensor = nodes[hotness[nodes].sort(descending=True, stable=True).indices]
    return ordered


def hottest_nodes(counts: Tensor, max_nodes: int) -> Tensor:
    """``[h]`` int64: the nodes that were counted most often, at most so many; of several, those with smaller ids.

    Args:
        counts: ``[V]`` int64; nodes with 0 are not hot.
        max_nodes: At most this many.
    """
    return sort_by_hotness(counts.nonzero()[:, 0], counts)[:max_nodes]


def cache_capacity_rows(size: str | float, features: Features) -> int:
    """How many rows a cache holds; see `CacheSpec` for its size."""
    return rows_within_size(size, len(features), mean_row_bytes(features))


def rows_within_size(size: str | float, num_rows: int, row_bytes: float) -> int:
    """How many of so many rows a cache holds, each of which has so many bytes; see `CacheSpec` for its size."""
    return int(parse_bytes(size) / row_bytes) if isinstance(size, str) else int(size * num_rows)


def _sum_counts(counts: Tensor, peers: list[int], comm: Comm) -> Tensor:
    """The sum of the counts of some workers, which all of them ask for."""
    sums = [counts[:0]]
    for part in torch.split(counts, _NODES_AT_ONCE):
        sizes = tuple(len(part) if peer in peers else 0 for peer in range(comm.size))
        everyones = comm.all_to_all(part.repeat(len(peers)), SplitSizes(sizes, sizes), Kind.METRICS).wait()
        sums.append(everyones.view(len(peers), -1).sum(0))
    return torch.cat(sums)


def mean_row_bytes(features: Features) -> float:
    """Of a row of features; of sparse ones in the mean."""
    if isinstance(features, SparseRows):
        stored = len(features.values) * (features.indices.itemsize + features.values.itemsize)
        return features.indptr.itemsize + stored / max(1, len(features))
    return max(1, features.shape[1] * features.itemsize)


_MISSING = -1


class CacheLookup(NamedTuple):
    """Where rows of some nodes belong.

    Attributes:
        missing_positions: ``[m]`` int64, for those that are not kept.
        cached_slots: ``[n - m]`` int64, rows among the kept ones.
        cached_positions: ``[n - m]`` int64, where these belong.
    """

    missing_positions: Tensor
    cached_slots: Tensor
    cached_positions: Tensor


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

    def look_up(self, nodes: Tensor) -> tuple[Tensor, CacheLookup]:
        """Those of some distinct nodes ``[n]`` that are not kept, and where rows belong. In any thread."""
        slot = self._slot[nodes].long()
        places, (num_missing, _) = group_by_owner(torch.arange(len(nodes)), (slot != _MISSING).to(torch.int8), 2)
        to = places[:num_missing]
        kept_to = places[num_missing:]
        return nodes[to], CacheLookup(to, slot[kept_to], kept_to)

    def assemble_rows(self, missing_rows: Features, lookup: CacheLookup, dtype: torch.dtype) -> Features:
        """``[n, D]``: rows of all nodes, in their order, from those that are not kept; on the device."""
        device = self.copies.device
        draft = make_matrix_builder(len(missing_rows) + len(lookup.cached_slots), self.copies, dtype)
        draft.write_rows(self.copies, lookup.cached_slots.to(device), lookup.cached_positions.to(device))
        draft.write_rows(missing_rows, None, lookup.missing_positions.to(device))
        return draft.build_matrix()
