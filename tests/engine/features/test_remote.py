"""Feature rows by owner: the right ones, in order, whoever owns them, and nothing more than these on the wire."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.own_features import COLUMNS, NODES, as_dense, batch, blocks, dense, known_to, sparse
from hosts import hosts_of_their_own, on_hosts
from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.engine.features.assembly import DenseMatrixBuilder
from outgrow.engine.features.cache import CacheSpec
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.nn import GCN, SAGE
from outgrow.nn.layer import Features
from outgrow.ops import memory_pool
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.system.process_memory import PeakMemorySampler, resident_bytes
from suites.checks import named, on_workers
from support import normal, random_topology
from thread_group import run_in_threads

WORKERS, BATCHES = 3, 6
GRAPH = random_topology(NODES, 160)
SCATTERED = torch.from_numpy(np.random.default_rng(0).integers(0, 2, NODES) * 2)  # worker 1 owns nothing
RANGES = torch.arange(NODES, dtype=torch.int16) // 16
COUNTERS = ("rows_loaded", "local_peer_rows", "remote_rows")
CONVERSIONS = (
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.float64, torch.float32),
    (torch.float16, torch.float16),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
)


def store_on(comm: Comm, owner: Tensor, features: Features, dtype: torch.dtype) -> RemoteFeatureStore:
    """A store whose worker knows the rows of its own nodes only, on a host of its own."""
    with on_hosts(comm, hosts_of_their_own(comm)):
        return RemoteFeatureStore(PartitionShard(GRAPH, owner, comm), known_to(features, owner, [comm.rank]), dtype)


def got(store: RemoteFeatureStore, nodes: Tensor) -> Features:
    return store.send_request(store.prepare_request(nodes)).wait()


def every_row_is_right(comm: Comm) -> None:
    """In the order asked for and of the type asked for, also if a worker owns nothing or wants nothing."""
    wrong = []
    for owner in (SCATTERED, RANGES):
        for given, wanted in CONVERSIONS:
            store = store_on(comm, owner, dense(given), wanted)
            for number in range(BATCHES):
                nodes = batch(comm.rank, number)
                rows = got(store, nodes)
                assert isinstance(rows, Tensor)
                if rows.dtype != wanted or not torch.equal(rows, dense(given)[nodes].to(wanted)):
                    wrong.append((given, wanted, number))
    assert wrong == []


def wrong_batches(comm: Comm, given: SparseRows | BlockRows) -> list[int]:
    """Batches whose rows have another form, type or numbers than those asked for."""
    whole, wrong = as_dense(given), []
    for owner in (SCATTERED, RANGES):
        store = store_on(comm, owner, given, torch.float64)
        for number in range(BATCHES):
            nodes = batch(comm.rank, number)
            rows = got(store, nodes)
            assert isinstance(rows, type(given))
            if rows.dtype != torch.float64 or not torch.equal(as_dense(rows), whole[nodes]):
                wrong.append(number)
    return wrong


def sparse_rows_stay_sparse(comm: Comm) -> None:
    """Also those that store nothing."""
    assert wrong_batches(comm, sparse()) == []


def blocks_stay_blocks(comm: Comm) -> None:
    """Also those without a row in a batch, and rows of none."""
    assert wrong_batches(comm, blocks()) == []


def several_batches_are_under_way(comm: Comm) -> None:
    """They may be waited for in another order on each worker; batches are prepared by several threads."""
    store = store_on(comm, RANGES, dense(), torch.float32)
    batches = [batch(comm.rank, number) for number in range(BATCHES)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [store.send_request(wanted) for wanted in pool.map(store.prepare_request, batches)]
    order = np.random.default_rng(comm.rank).permutation(BATCHES).tolist()
    rows = {number: waiting[number].wait() for number in order}
    assert all(torch.equal(as_dense(rows[number]), dense()[batches[number]]) for number in order)


def walk(owner: Tensor, rank: int, columns_of: Tensor) -> Counter[str]:
    """What a worker should count and send in all batches; ``columns_of`` the bytes of each node's row on the wire."""
    owners, found = owner.tolist(), Counter[str]()
    for number in range(BATCHES):
        for worker in range(WORKERS):
            for node in batch(worker, number).tolist():
                if worker == rank:
                    found["rows_loaded"] += 1
                    found["remote_rows"] += owners[node] != rank
                elif owners[node] == rank:
                    found["bytes"] += int(columns_of[node])
    return found


def widths_of_blocks() -> Tensor:
    """How many numbers each row of the blocks has."""
    widths = torch.zeros(NODES, dtype=torch.int64)
    for block, rows in zip(blocks().blocks, blocks().rows, strict=True):
        widths[rows] = block.shape[1]
    return widths


def only_remote_rows_travel(comm: Comm) -> None:
    """Each once per batch, in the smaller type; 8 bytes for its id, and 8 for each worker and batch."""
    pairs = []
    sizes = sparse().indptr.diff()
    for features, dtype, row_bytes in (
        (dense(), torch.float32, torch.full((NODES,), 4 * COLUMNS)),
        (dense(torch.float16), torch.float32, torch.full((NODES,), 2 * COLUMNS)),
        (dense(torch.float64), torch.float32, torch.full((NODES,), 4 * COLUMNS)),
        (sparse(), torch.float64, 8 + sizes * (4 + 4)),
        (blocks(), torch.float64, 1 + 4 * widths_of_blocks()),
        (blocks(torch.float16), torch.float32, 1 + 2 * widths_of_blocks()),
    ):
        for owner in (SCATTERED, RANGES):
            store = store_on(comm, owner, features, dtype)
            comm.ledger.bytes_by_link.clear()
            comm.ledger.counters.clear()
            for number in range(BATCHES):
                got(store, batch(comm.rank, number))
            expected = walk(owner, comm.rank, row_bytes)
            crossed, counters = comm.ledger.bytes_by_link, comm.ledger.counters
            pairs += [
                (crossed[Link.PEER, Kind.FEATURES], expected["bytes"]),
                (crossed[Link.PEER, Kind.IDS], 8 * expected["remote_rows"]),
                (crossed[Link.PEER, Kind.METRICS], 8 * (WORKERS - 1) * BATCHES),
                (dict(counters), {name: expected[name] for name in COUNTERS}),
            ]
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def requests_may_be_sent_ahead(comm: Comm) -> None:
    """By one message for each request and worker, which also tells the number of rows of the next one."""
    pairs = []
    for owner in (SCATTERED, RANGES):
        store = store_on(comm, owner, dense(), torch.float32)
        for count in (0, 1, BATCHES):
            comm.ledger.bytes_by_link.clear()
            comm.ledger.counters.clear()
            batches = [batch(comm.rank, number) for number in range(count)]
            rows = [as_dense(each.wait()) for each in store.send_requests(map(store.prepare_request, batches))]
            crossed, told = comm.ledger.bytes_by_link, 8 * (WORKERS - 1)
            remote = sum(int((owner[nodes] != comm.rank).sum()) for nodes in batches)
            pairs += [
                ([each.tolist() for each in rows], [dense()[nodes].tolist() for nodes in batches]),
                (crossed[Link.PEER, Kind.METRICS], told * (count > 0)),
                (crossed[Link.PEER, Kind.IDS], 8 * remote + told * max(0, count - 1)),
                (comm.ledger.counters["remote_rows"], remote),
            ]
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def rows_of_a_host_are_read(comm: Comm) -> None:
    """Those of its other workers too, without a message; rows of other hosts come from their owners."""
    pairs = []
    for hosts in (("a", "a", "a"), ("a", "a", "b")):
        near = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
        for owner in (SCATTERED, RANGES):
            comm.ledger.bytes_by_link.clear()
            comm.ledger.counters.clear()
            with on_hosts(comm, hosts):
                store = RemoteFeatureStore(
                    PartitionShard(GRAPH, owner, comm), known_to(dense(), owner, near), torch.float32
                )
                found = [as_dense(got(store, batch(comm.rank, number))) for number in range(BATCHES)]
            batches = [batch(comm.rank, number) for number in range(BATCHES)]
            owners = [int(each) for nodes in batches for each in owner[nodes]]
            expected = {
                "rows_loaded": len(owners),
                "local_peer_rows": sum(each in near and each != comm.rank for each in owners),
                "remote_rows": sum(each not in near for each in owners),
            }
            pairs += [
                ([each.tolist() for each in found], [dense()[nodes].tolist() for nodes in batches]),
                (dict(comm.ledger.counters), expected),
                (comm.ledger.bytes_by_link[Link.PEER, Kind.FEATURES], 0),
            ]
            assert store.exchanges_rows == (len(near) < WORKERS)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


CHECKS = named(
    requests_may_be_sent_ahead,
    rows_of_a_host_are_read,
    every_row_is_right,
    sparse_rows_stay_sparse,
    blocks_stay_blocks,
    several_batches_are_under_way,
    only_remote_rows_travel,
)


test_three_workers = on_workers(CHECKS, WORKERS, run_in_threads)


@pytest.mark.parametrize(
    "features", [dense(), dense(torch.float16), sparse(), blocks()], ids=["dense", "half", "sparse", "blocks"]
)
def test_one_worker_reads_them_all(features: Features) -> None:
    ledger = Ledger()
    cache = CacheSpec(hotness=torch.ones(NODES), size=0.5)
    store = RemoteFeatureStore(FullGraphShard(GRAPH, SingleProcessComm(ledger)), features, torch.float64, cache)
    for number in range(BATCHES):
        nodes = batch(0, number)
        assert torch.equal(as_dense(got(store, nodes)), as_dense(features)[nodes].double())
    loaded = sum(len(batch(0, number)) for number in range(BATCHES))
    assert ledger.counters == {"rows_loaded": loaded, "local_peer_rows": 0, "remote_rows": 0}
    assert not ledger.bytes_by_link


def test_threads_side_by_side() -> None:
    features = normal(2000, 8)
    store = RemoteFeatureStore(FullGraphShard(random_topology(2000, 10)), features, torch.float32)
    batches = [torch.randperm(2000)[:1500] for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        prepared = list(pool.map(store.prepare_request, batches))
    rows = [store.send_request(wanted).wait() for wanted in prepared]
    assert all(torch.equal(as_dense(each), features[nodes].float()) for each, nodes in zip(rows, batches, strict=True))


def test_mapped_features_are_not_copied(tmp_path: Path) -> None:
    rows, columns = 1 << 16, 256
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, columns))
    mapped[:: 1 << 12] = 7
    features, nodes = torch.from_numpy(mapped), torch.arange(0, rows, 1 << 12)
    graph = random_topology(rows, 10)
    got(RemoteFeatureStore(FullGraphShard(graph), dense(), torch.float32), nodes[:1])  # compiles
    before = resident_bytes()
    with PeakMemorySampler() as memory:
        store = RemoteFeatureStore(FullGraphShard(graph), features, torch.float32)
        found = got(store, nodes)
    assert torch.equal(as_dense(found), torch.full((16, columns), 7.0))
    assert store.features is features
    assert memory.peak_bytes - before < features.nbytes // 4


def test_batches_of_about_one_size_take_the_same_memory() -> None:
    like = torch.empty(0, 256)
    memory_pool.release_idle_memory()
    for rows in (20_000, 20_010, 20_479, 20_300):
        assert DenseMatrixBuilder(rows, like, torch.float32).out.shape == (rows, 256)
    assert 0 < memory_pool.idle_bytes() <= 20_480 * 1024


def test_the_type_that_a_model_takes() -> None:
    half, torch_half = dense(torch.float16), torch.float16
    takes_half, doubled = SAGE(COLUMNS, 8, 3), GCN(COLUMNS, 8, 3).double()
    assert input_dtype(takes_half, half) == (torch_half if takes_half.layers_list()[0].accepts_half else torch.float32)
    assert input_dtype(doubled, half) == torch.float64
    assert input_dtype(takes_half, dense(torch.float64)) == torch.float32
