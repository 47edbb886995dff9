"""Caches of hot rows: which nodes are hot, who keeps which, and exactly the remote rows that this saves."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.own_features import COLUMNS, NODES, as_dense, batch, blocks, dense, known_to, sparse
from hosts import hosts_of_their_own, on_hosts
from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind, Link
from outgrow.engine.features.cache import CacheSpec, assign_cache, count_accesses, count_out_degrees, hottest_owned
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.shard import PartitionShard
from outgrow.nn.layer import Features
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from suites.checks import named, on_workers
from support import destinations_of, normal, random_topology
from thread_group import run_in_threads

WORKERS, BATCHES = 4, 5
GRAPH = random_topology(NODES, 200)
OWNER = (torch.arange(NODES) * 7 % NODES % WORKERS).to(torch.int16)
TWO_HOSTS = ("a", "b", "a", "b")
HOSTS = (TWO_HOSTS, ("a", "b", "b", "b"), tuple("abcd"))
DEGREE = [int((GRAPH.indices == node).sum()) for node in range(NODES)]


def hottest(hotness: list[int], eligible: list[int], most: int) -> list[int]:
    """The hottest nodes that are asked for at all, those with smaller ids first among equals."""
    return sorted((node for node in eligible if hotness[node]), key=lambda node: (-hotness[node], node))[:most]


class Layout(NamedTuple):
    """Worked out by hand: where workers are, and whose rows each keeps copies of."""

    hosts: tuple[str, ...]
    place: str
    kept: list[list[int]]

    @staticmethod
    def of(hosts: tuple[str, ...], place: str, hotness: list[list[int]], rows: int) -> Layout:
        """The layout where each worker keeps so many copies at most; ``hotness`` is what each worker knows."""
        kept: list[list[int]] = [[] for _ in hosts]
        for me, host in enumerate(hosts):
            here = [worker for worker in range(WORKERS) if hosts[worker] == host] if place == "host" else [me]
            total = [sum(counts) for counts in zip(*(hotness[worker] for worker in here), strict=True)]
            elsewhere = [node for node in range(NODES) if hosts[OWNER[node]] != host]
            hot = hottest(total, elsewhere, rows * len(here))
            kept[me] = [node for turn, node in enumerate(hot) if here[turn % len(here)] == me]
        return Layout(hosts, place, kept)

    def server(self, node: int, worker: int) -> int:
        """Who gives a worker the row of a node: itself, a worker of its host that keeps a copy, or the owner."""
        if self.is_local(node, worker) or node in self.kept[worker]:
            return worker
        near = [peer for peer in range(WORKERS) if self.hosts[peer] == self.hosts[worker] and node in self.kept[peer]]
        return near[0] if near and self.place == "host" else int(OWNER[node])

    def is_local(self, node: int, worker: int) -> bool:
        """Whether a worker's host has the row of a node."""
        return self.hosts[OWNER[node]] == self.hosts[worker]

    def link(self, worker: int, other: int) -> Link:
        """What is between two workers."""
        return Link.PEER if self.hosts[worker] == self.hosts[other] else Link.NETWORK


def walk(layout: Layout, me: int) -> tuple[Counter[str], Counter[tuple[Link, Kind]]]:
    """What a worker should count, and send, for the batches of all workers."""
    counts, sent = Counter[str](), Counter[tuple[Link, Kind]]()
    for worker in range(WORKERS):
        sent[layout.link(me, worker), Kind.METRICS] += 8 * BATCHES * (worker != me)
        for node in [node for number in range(BATCHES) for node in batch(worker, number).tolist()]:
            server = layout.server(node, worker)
            if worker == me:
                counts["rows_loaded"] += 1
                counts["local_peer_rows"] += layout.is_local(node, me) and OWNER[node] != me
                counts["remote_rows"] += server != me
                counts["cache_hits"] += server != int(OWNER[node]) and not layout.is_local(node, me)
                counts["cache_misses"] += server == int(OWNER[node]) != me
                sent[layout.link(me, server), Kind.IDS] += 8 * (server != me)
            elif server == me:
                sent[layout.link(me, worker), Kind.FEATURES] += 4 * COLUMNS
    return counts, sent


def tried(comm: Comm, hosts: tuple[str, ...], features: Features, chosen: CacheSpec) -> tuple[bool, RemoteFeatureStore]:
    """Whether every row is right with a cache; the ledger then holds what the batches took, not the filling."""
    with on_hosts(comm, hosts):
        share = PartitionShard(GRAPH, OWNER, comm)
        store = RemoteFeatureStore(share, known_to(features, OWNER, comm.local_ranks), torch.float64, chosen)
        comm.ledger.bytes_by_link.clear()
        rows = [store.send_request(store.prepare_request(batch(comm.rank, number))).wait() for number in range(BATCHES)]
    whole = as_dense(features).double()
    right = [torch.equal(as_dense(each), whole[batch(comm.rank, number)]) for number, each in enumerate(rows)]
    return all(right), store


def asked_for(worker: int) -> Tensor:
    """How often a worker asks for each node, in some of its batches."""
    return count_accesses((batch(worker, number) for number in range(3)), NODES)


def caches_save_what_they_should(comm: Comm) -> None:
    """Each place and each way to judge; on two hosts, on two of unequal size, and on four."""
    wrong = []
    ways = {
        "degree": (count_out_degrees(GRAPH), [DEGREE] * WORKERS),
        "presampling": (asked_for(comm.rank), [asked_for(worker).tolist() for worker in range(WORKERS)]),
    }
    for hosts, place, way, rows in product(HOSTS, ("worker", "host"), ways, (0, 3, NODES)):
        mine, everyones = ways[way]
        comm.ledger.counters.clear()
        chosen = CacheSpec(hotness=mine, size=f"{4 * COLUMNS * rows + 7}B", scope=place)
        right, store = tried(comm, hosts, dense(), chosen)
        layout = Layout.of(hosts, place, everyones, rows)
        counts, sent = walk(layout, comm.rank)
        found = {
            "rows": right,
            "counts": comm.ledger.counters == counts,
            "bytes": comm.ledger.bytes_by_link == sent,
            "copies": torch.equal(as_dense(store.copies), dense()[layout.kept[comm.rank]]),
        }
        wrong += [] if all(found.values()) else [(hosts, place, way, rows, found)]
    assert wrong == []


def a_host_caches_what_other_hosts_own(comm: Comm) -> None:
    """All of it, if there is room: then no row crosses the network."""
    everything = CacheSpec(hotness=torch.ones(NODES, dtype=torch.int64), size=0.5, scope="host")
    right, store = tried(comm, TWO_HOSTS, dense(), everything)
    assert right
    assert comm.ledger.bytes_by_link[Link.NETWORK, Kind.FEATURES] == 0
    assert len(as_dense(store.copies)) == NODES // 4


def other_rows_are_cached_too(comm: Comm) -> None:
    """Half precision and sparse rows; a share of all rows."""
    share = CacheSpec(hotness=count_out_degrees(GRAPH), size=0.25, scope="host")
    found = [tried(comm, TWO_HOSTS, features, share) for features in (dense(torch.float16), sparse(), blocks())]
    kept = Layout.of(TWO_HOSTS, "host", [DEGREE] * WORKERS, NODES // 4).kept[comm.rank]
    assert all(right for right, _ in found)
    for (_, store), features in zip(found, (dense(torch.float16), sparse(), blocks()), strict=True):
        assert store.copies is not None
        assert store.copies.dtype == features.dtype
        assert torch.equal(as_dense(store.copies), as_dense(features)[kept])


def filling_is_one_exchange_of_rows(comm: Comm) -> None:
    """Counted as features, and not as rows of a batch."""
    hosts = tuple(hosts_of_their_own(comm))
    comm.ledger.bytes_by_link.clear()
    comm.ledger.counters.clear()
    with on_hosts(comm, hosts):
        shard = PartitionShard(GRAPH, OWNER, comm)
        RemoteFeatureStore(shard, dense(), torch.float32, CacheSpec(hotness=count_out_degrees(GRAPH), size=0.2))
    kept = Layout.of(hosts, "worker", [DEGREE] * WORKERS, NODES // 5).kept
    sent = sum(int(OWNER[node]) == comm.rank for nodes in kept for node in nodes)
    assert comm.ledger.bytes_by_link == {
        (Link.NETWORK, Kind.METRICS): 8 * (WORKERS - 1),
        (Link.NETWORK, Kind.IDS): 8 * len(kept[comm.rank]),
        (Link.NETWORK, Kind.FEATURES): 4 * COLUMNS * sent,
    }
    assert not comm.ledger.counters


CHECKS = named(
    caches_save_what_they_should,
    a_host_caches_what_other_hosts_own,
    other_rows_are_cached_too,
    filling_is_one_exchange_of_rows,
)


test_four_workers = on_workers(CHECKS, WORKERS, run_in_threads)


def test_degrees_count_edges_that_leave() -> None:
    assert count_out_degrees(GRAPH).tolist() == DEGREE
    assert sum(DEGREE) == len(destinations_of(GRAPH.block.edges))


def test_batches_are_counted() -> None:
    batches = [torch.tensor([3, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([3])]
    assert count_accesses(batches, 5).tolist() == [1, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("size", "features", "rows"),
    [
        ("0", dense(), 0),
        ("200B", dense(), 10),
        ("219B", dense(), 10),
        ("200b", dense(torch.float16), 20),
        ("1GiB", dense(), NODES),
        ("40 B", sparse(), 2),
        (0.1, dense(), 4),
        (0.1, sparse(), 4),
        (1, dense(), NODES),
        ("50 B", blocks(), 5),  # of 13 rows of 8 bytes, 22 of 12, and 5 empty ones
    ],
)
def test_the_size_of_a_cache(size: str | float, features: Features, rows: int) -> None:
    comm = SingleProcessComm()
    comm.size, comm.hosts = 2, ("a", "b")
    hot = CacheSpec(hotness=torch.arange(NODES) + 1, size=size)
    kept = assign_cache(hot, features, torch.ones(NODES, dtype=torch.int16), comm)
    assert kept.nodes.tolist() == list(range(NODES))[::-1][:rows]
    assert kept.holder.tolist() == [1] * (NODES - rows) + [2] * rows


def test_own_and_cold_rows_are_not_kept() -> None:
    comm = SingleProcessComm()
    comm.size, comm.hosts = 2, ("a", "b")
    hot = CacheSpec(hotness=torch.tensor([9, 0, 1, 1, 3]), size=1.0)
    kept = assign_cache(hot, normal(5, 2), torch.tensor([0, 1, 1, 1, 1]), comm)
    assert kept.nodes.tolist() == [4, 2, 3]
    assert kept.holder.tolist() == [0, 1, 2, 2, 2]


@pytest.mark.parametrize("own", [OWNER == 1, OWNER < 9, OWNER > 9])
@pytest.mark.parametrize(("size", "rows"), [("0", 0), ("119B", 5), (0.1, 4), (1.0, NODES)])
def test_the_hottest_of_own_rows(own: Tensor, size: str | float, rows: int) -> None:
    hotness, mine = count_out_degrees(GRAPH), own.nonzero()[:, 0]
    assert (hotness == 0).any()
    found = hottest_owned(hotness, mine, size, dense())
    assert found.dtype == torch.int64
    assert found.tolist() == sorted(mine.tolist(), key=lambda node: (-DEGREE[node], node))[:rows]


@pytest.mark.parametrize("size", ["many", 1.5, -0.1, float("nan")])
def test_no_size(size: str | float) -> None:
    with pytest.raises(InputError, match=r"many.*not a size|cannot hold"):
        CacheSpec(hotness=torch.ones(3), size=size)


def test_no_place() -> None:
    with pytest.raises(InputError, match="place of a cache"):
        CacheSpec(hotness=torch.ones(3), size=0.1, scope="hosts")
