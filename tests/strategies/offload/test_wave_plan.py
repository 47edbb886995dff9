"""The plans of workers against Python's sets: chunks, what crosses links in each wave, and where rows lie."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.strategies.offload.reorder import count_transfer_volumes, node_bitsets
from outgrow.strategies.offload.wave import EVICTED, LOADED, RowList, Wave, pack_wave, unpack_wave
from outgrow.strategies.offload.wave_plan import TransferOptions, WaveRequirements, cut_chunks, node_owners
from strategies.offload.cut_graphs import Cut, Sets, cuts, dressed, ids, multigraphs, together
from suites.checks import named, on_workers
from support import random_topology
from thread_group import run_in_threads

WORKERS = 3
techniques = st.builds(TransferOptions, sharing=st.booleans(), reuse=st.booleans(), overlap=st.booleans())


@settings(deadline=None)
@given(multigraphs(), st.integers(1, 20), st.booleans(), st.data())
def test_chunks_cost_about_the_same(topology: Topology, count: int, self_loops: bool, data: st.DataObject) -> None:
    """At most an even share and the cost of one node; none is empty unless there are more chunks than nodes."""
    own = sorted(data.draw(st.sets(st.integers(0, topology.num_nodes - 1))))
    graph = ChunkGraph(topology, self_loops=self_loops)
    chunks = cut_chunks(graph, ids(own), count)
    assert len(chunks) == count
    assert all(last == first for (_, last), (first, _) in pairwise(chunks))
    assert (chunks[0][0], chunks[-1][1]) == (0, len(own))
    full = min(count, len(own))
    assert [last > first for first, last in chunks] == [True] * full + [False] * (count - full)
    costs = [int(size) + 1 for size in graph.row_sizes(ids(own))]
    for first, last in chunks[:full]:
        assert sum(costs[first:last]) <= sum(costs) / full + max(costs)


def test_owners() -> None:
    topology = random_topology(5, 9)
    assert node_owners(FullGraphShard(topology)).tolist() == [0] * 5
    owner = torch.tensor([0, 0, 1, 0, 1])
    assert node_owners(PartitionShard(topology, owner, SingleProcessComm())) is owner


def check_needs(cut: Cut, comm: Comm, *, sharing: bool) -> WaveRequirements:
    """What a worker needs: ``N_ij``, ``U_ij`` and what it sends, against sets."""
    needs = cut.needs(cut.share(comm), sharing=sharing)
    reads, rank, owner = cut.reads(), comm.rank, cut.owner.tolist()
    assert needs.chunks == cut.chunks(rank)
    for j in range(cut.count):
        mine = set(cut.own(rank))
        loads, remote = needs.loads[j].tolist(), needs.remote[j].tolist()
        sent = [nodes.tolist() for nodes in needs.sent[j]]
        if sharing:
            union = set().union(*(row[j] for row in reads))
            assert loads == sorted(union & mine)
            assert remote == sorted(reads[rank][j] - mine, key=lambda v: (owner[v], v))
            assert sent == [[] if i == rank else sorted(row[j] & mine) for i, row in enumerate(reads)]
        else:
            assert loads == sorted(reads[rank][j], key=lambda v: (owner[v], v))
            assert (remote, sent) == ([], [[]] * cut.size)
    return needs


def check_held(cut: Cut, held: RowList, nodes: list[int]) -> None:
    """Rows by owner, with their numbers among the owner's."""
    owner = cut.owner.tolist()
    assert held.node.tolist() == nodes
    assert held.row.tolist() == [cut.own(owner[v]).index(v) for v in nodes]
    assert list(held.counts) == [sum(owner[v] == i for v in nodes) for i in range(cut.size)]


def plan_of(cut: Cut, comm: Comm, used: TransferOptions) -> list[Wave]:
    """A worker's plan, checked as far as one worker can."""
    needs = check_needs(cut, comm, sharing=used.sharing)
    waves, size = cut.waves(cut.share(comm), used)
    held = dict[int, int]()
    for j, wave in enumerate(waves):
        sent = torch.cat(needs.sent[j]).tolist()
        check_held(cut, wave.loads, needs.loads[j].tolist())
        check_held(cut, wave.remote, needs.remote[j].tolist())
        assert wave.sent.counts == tuple(len(nodes) for nodes in needs.sent[j])
        assert wave.sent.node.tolist() == sent
        assert (wave.first, wave.last) == needs.chunks[j]
        both = wave.loads, wave.remote
        at = {v: place for part in both for v, place in zip(part.node.tolist(), part.slot.tolist(), strict=True)}
        arrive = {v for part in both for v in part.filter_event(LOADED).node.tolist()}
        assert arrive == (set(at) - set(held) if used.reuse else set(at))
        assert all(at[v] == held[v] for v in set(at) - arrive)
        assert len(set(at.values())) == len(at)
        assert all(place < size for place in at.values())
        assert wave.sent.slot.tolist() == [at[v] for v in sent]
        if used.overlap:
            assert not set(wave.loads.filter_event(LOADED).slot.tolist()) & set(held.values())
        held = at
    return waves


def check_together(cut: Cut, plans: list[list[Wave]], used: TransferOptions) -> None:
    """What one sends the other expects, and sums are those of the formulas."""
    workers = range(cut.size)
    for j in range(cut.count):
        for turn in (LOADED, EVICTED):
            routes = [waves[j].split_sizes_at(turn) for waves in plans]
            assert all(routes[a].send[b] == routes[b].receive[a] for a in workers for b in workers)
            for a in workers:
                gone = [plans[b][j].remote.filter_event(turn).of_owner(a).node for b in workers]
                assert torch.equal(plans[a][j].sent.filter_event(turn).node, torch.cat(gone))
    rows = volumes_of(cut, cut.reads())
    loads = sum(len(wave.loads.slot) for waves in plans for wave in waves)
    remote = sum(len(wave.remote.slot) for waves in plans for wave in waves)
    come = sum(len(wave.loads.filter_event(LOADED).slot) for waves in plans for wave in waves)
    cross = sum(len(wave.remote.filter_event(LOADED).slot) for waves in plans for wave in waves)
    assert loads == (rows.shared if used.sharing else rows.vanilla)
    assert remote == (rows.peer if used.sharing else 0)
    if not used.reuse:
        assert (come, cross) == (loads, remote)
    elif used.sharing:
        assert (come, cross) == (rows.reused, rows.peer_reused)
        assert loads - come == rows.reuse


def volumes_of(cut: Cut, reads: Sets):
    num_nodes = cut.topology.num_nodes
    bits = np.stack([node_bitsets([ids(nodes) for nodes in row], num_nodes, None) for row in reads])
    owned = np.stack([node_bitsets([ids(cut.own(rank))], num_nodes, None)[0] for rank in range(cut.size)])
    return count_transfer_volumes(bits, owned, np.tile(np.arange(cut.count), (cut.size, 1)))


@settings(deadline=None)
@given(cuts(), techniques)
def test_plans_are_those_of_sets(cut: Cut, used: TransferOptions) -> None:
    check_together(cut, together(cut.size, lambda comm: plan_of(cut, comm, used)), used)


def real_plans(comm: Comm) -> None:
    """The same on processes: owners scattered or in ranges, a worker without nodes, more chunks than nodes."""
    plans = []
    for seed in range(6):
        nodes, random = 6 + 9 * seed, np.random.default_rng(seed)
        topology = dressed(random_topology(nodes, 5 * nodes, seed=seed), weights=seed % 2 == 0, relations=seed % 3)
        scattered = random.integers(0, WORKERS - seed % 2, nodes)
        owner = np.sort(scattered) if seed % 4 < 2 else scattered
        cut = Cut(topology, torch.from_numpy(owner.astype(np.int16)), WORKERS, 1 + 2 * seed, seed % 3 != 1)
        used = TransferOptions(sharing=seed != 4, reuse=seed != 3, overlap=seed % 2 == 0)
        plans.append((cut, plan_of(cut, comm, used), used))
    every = comm.all_gather_object([[pack_wave(wave) for wave in waves] for _, waves, _ in plans])
    for number, (cut, _, used) in enumerate(plans):
        check_together(cut, [[unpack_wave(*wave) for wave in of_worker[number]] for of_worker in every], used)


CHECKS = named(real_plans)


test_three_workers = on_workers(CHECKS, WORKERS, run_in_threads)
