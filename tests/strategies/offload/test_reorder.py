"""The order of chunks: the cheapest by Equation 4 of those that there are to choose from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload import reorder as module
from outgrow.strategies.offload.reorder import (
    Bandwidths,
    ChunkOrder,
    TransferVolumes,
    choose_chunk_order,
    local_order,
    node_bitsets,
    reorder_waves,
    reorganize_chunks,
)
from strategies.offload.cut_graphs import Sets, ids, together
from support import random_topology

NODES, ROW_BYTES = 40, 12
TOPOLOGY = random_topology(NODES, 1)
rates = st.builds(Bandwidths, **{name: st.sampled_from([1.0, 7.0, 1e3, 1e6]) for name in ("host", "device", "reuse")})


@st.composite
def reads(draw: st.DrawFn) -> Sets:
    """What the chunks of each worker read; they are often alike."""
    size, count = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    nodes = st.sets(st.integers(0, NODES - 1), max_size=draw(st.sampled_from([3, 25])))
    row = st.lists(nodes, min_size=count, max_size=count)
    return draw(st.lists(row, min_size=size, max_size=size))


def volumes_of(read: Sets, owner: list[int], order: NDArray[np.int64]) -> TransferVolumes:
    """The formulas, over sets."""
    n = [[read[i][chunk] for chunk in row] for i, row in enumerate(order)]
    u = [set().union(*(row[j] for row in n)) for j in range(len(n[0]))]
    foreign = [[{v for v in nodes if owner[v] != i} for nodes in row] for i, row in enumerate(n)]
    shared = sum(map(len, u))
    reused = sum(len(nodes - (u[j - 1] if j else set())) for j, nodes in enumerate(u))
    return TransferVolumes(
        vanilla=sum(len(nodes) for row in n for nodes in row),
        shared=shared,
        reused=reused,
        peer=sum(len(nodes) for row in foreign for nodes in row),
        peer_reused=sum(len(nodes - (row[j - 1] if j else set())) for row in foreign for j, nodes in enumerate(row)),
        reuse=shared - reused,
    )


def seconds_of(rows: TransferVolumes, machine: Bandwidths) -> float:
    return ROW_BYTES * (rows.reused / machine.host + rows.peer_reused / machine.device + rows.reuse / machine.reuse)


def orders(read: Sets, owner: list[int], machine: Bandwidths, *, reorganise: bool) -> list[ChunkOrder]:
    """What `order_of` gives on each worker."""

    def work(comm: Comm) -> ChunkOrder:
        share = PartitionShard(TOPOLOGY, torch.tensor(owner), comm) if len(read) > 1 else FullGraphShard(TOPOLOGY, comm)
        return choose_chunk_order(
            share, [ids(nodes) for nodes in read[comm.rank]], ROW_BYTES, machine, reorganise=reorganise
        )

    return together(len(read), work)


def owners(read: Sets, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, len(read), NODES).tolist()


@settings(deadline=None)
@given(reads(), rates, st.integers(0, 9))
def test_thecheapest_of_three(read: Sets, machine: Bandwidths, seed: int) -> None:
    owner, count = owners(read, seed), len(read[0])
    bits = np.stack([node_bitsets([ids(nodes) for nodes in row], NODES, None) for row in read])
    ranges = np.tile(np.arange(count), (len(read), 1))
    found = orders(read, owner, machine, reorganise=True)
    first = found[0]
    costs = [
        seconds_of(volumes_of(read, owner, o), machine) for o in (ranges, reorder_waves(bits), reorganize_chunks(bits))
    ]
    assert first.range_volumes == volumes_of(read, owner, ranges)
    assert first.chosen_volumes == volumes_of(read, owner, first.chunks)
    assert first.seconds[0] == pytest.approx(costs[0])
    assert first.seconds[1] == pytest.approx(min(costs))
    assert first.seconds[1] <= first.seconds[0]
    assert np.sort(first.chunks).tolist() == ranges.tolist()
    assert all(np.array_equal(other.chunks, first.chunks) and other[1:] == first[1:] for other in found)


@settings(deadline=None, max_examples=30)
@given(reads(), rates)
def test_ranges_where_no_order_is_looked_for(read: Sets, machine: Bandwidths) -> None:
    for found in orders(read, owners(read, 0), machine, reorganise=False):
        assert found.chunks.tolist() == [list(range(len(read[0])))] * len(read)
        assert found.range_volumes == found.chosen_volumes
        assert found.seconds[0] == found.seconds[1]


def test_chunks_that_share_come_one_after_another() -> None:
    """Chunks 0 and 2 read the same, as do 1 and 3: put side by side, half of the rows stay."""
    one, other = set(range(10)), set(range(20, 30))
    [found] = orders(
        [[one, other, one, other]], [0] * NODES, Bandwidths(host=1.0, device=1.0, reuse=100.0), reorganise=True
    )
    assert found.chunks.tolist() in ([[0, 2, 1, 3]], [[0, 2, 3, 1]])
    assert (found.range_volumes.reused, found.chosen_volumes.reused) == (40, 20)


def test_a_machine_on_which_to_stay_costs_most_keeps_the_ranges() -> None:
    one, other = set(range(10)), set(range(20, 30))
    machine = Bandwidths(host=100.0, device=100.0, reuse=1.0)
    [found] = orders([[one, other, one, other]], [0] * NODES, machine, reorganise=True)
    assert found.chunks.tolist() == [[0, 1, 2, 3]]


def test_volumes_of_a_sample_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    num_nodes, random = 20_000, np.random.default_rng(0)
    topology = random_topology(num_nodes, 1)
    sources = [ids(set(random.integers(0, num_nodes, 6000).tolist())) for _ in range(4)]
    machine = Bandwidths(host=1.0, device=1.0, reuse=1.0)
    exact = choose_chunk_order(FullGraphShard(topology), sources, 4, machine, reorganise=False)
    monkeypatch.setattr(module, "_MOST_BYTES", 4 * 8 * 60)
    some = choose_chunk_order(FullGraphShard(topology), sources, 4, machine, reorganise=False)
    assert some.range_volumes != exact.range_volumes
    for name, rows in vars(exact.range_volumes).items():
        assert vars(some.range_volumes)[name] == pytest.approx(rows, rel=0.1), name


def test_the_chunks_of_a_worker() -> None:
    rows = TransferVolumes(vanilla=0, shared=0, reused=0, peer=0, peer_reused=0, reuse=0)
    found = ChunkOrder(np.array([[0, 1, 2], [2, 0, 1]]), rows, rows, (0.0, 0.0))
    owner = torch.zeros(NODES, dtype=torch.int8)
    assert together(2, lambda comm: local_order(found, PartitionShard(TOPOLOGY, owner, comm))) == [[0, 1, 2], [2, 0, 1]]
