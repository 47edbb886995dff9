"""As few chunks as fit into the budget, the same on all workers; and a refusal that says what would do."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generators import apart
from outgrow.core.errors import InputError
from outgrow.engine.layer_plan import plan_layers
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.nn import GCNConv, SAGEConv
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload.chunking import (
    CHUNK_COUNT_TOLERANCE,
    ChunkPlan,
    ChunkPlanner,
    choose_cached_waves,
    fewest_chunks,
)
from outgrow.strategies.offload.memory import WaveSizes, cached_wave_bytes, chunked_bytes
from outgrow.strategies.offload.reorder import Bandwidths
from outgrow.strategies.offload.wave_plan import TransferOptions, WaveRequirements, cut_chunks
from strategies.offload.cut_graphs import together
from support import normal, random_topology

MIB = 1 << 20
NUMBER_BYTES = 64 << 10  # so that few nodes take much
with apart():
    MODEL = Model([Layer(GCNConv(6, 8)), Layer(SAGEConv(8, 3))])
TOPOLOGY = random_topology(60, 240)
SPREAD = random_topology(100, 130, seed=4)


def cutter_of(share: GraphShard, *, base: int = 10 * MIB, overlap: bool = True) -> ChunkPlanner:
    traits = plan_layers(MODEL, normal(4, 6).float(), cache=True)
    return ChunkPlanner(
        shard=share,
        graphs={self_loops: ChunkGraph(share.topology, self_loops=self_loops) for self_loops in (False, True)},
        layer_plans=traits,
        transfer_options=TransferOptions(overlap=overlap),
        reorganise=True,
        bandwidths=Bandwidths(host=1.0, device=10.0, reuse=100.0),
        number_bytes=NUMBER_BYTES,
        base_bytes=base,
    )


def counts_to_try(num_own: int) -> list[int]:
    """All small numbers, then every third more."""
    counts = [1]
    while counts[-1] < num_own:
        counts.append(min(num_own, counts[-1] + max(1, counts[-1] // 3)))
    return counts


def needed_by(error: InputError) -> int:
    """The memory that a refusal asks for, in bytes."""
    [number] = re.findall(r"--memory (\d+)MiB", error.repair)
    return int(number) * MIB


@cache
def sizes() -> dict[int, int]:
    """What each number of chunks takes."""
    cutter = cutter_of(FullGraphShard(TOPOLOGY))
    return {count: cutter.plan_chunks(count).peak_bytes for count in counts_to_try(TOPOLOGY.num_nodes)}


@settings(deadline=None, max_examples=8)
@given(st.floats(0, 1))
def test_about_the_first_number_that_fits(part: float) -> None:
    """Of those that are tried, none that would fit is passed over; then it is looked for closer by."""
    least, most = min(sizes().values()), max(sizes().values())
    budget = int(least + part * (most - least)) + 1
    cutter = cutter_of(FullGraphShard(TOPOLOGY))
    chunking = cutter.fewest_chunks(budget)
    fits = next(count for count, taken in sizes().items() if taken <= budget)
    too_few = max((count for count in sizes() if count < fits), default=0)
    assert too_few < chunking.num_chunks <= fits
    assert chunking.peak_bytes == cutter.plan_chunks(chunking.num_chunks).peak_bytes <= budget


def test_numbers_between_those_that_are_tried_first() -> None:
    cutter = cutter_of(FullGraphShard(TOPOLOGY))
    between = [count + (after - count) // 2 for count, after in pairwise(sizes()) if after > 16]
    chosen = [cutter.fewest_chunks(cutter.plan_chunks(count).peak_bytes).num_chunks for count in between]
    assert set(chosen) - set(sizes())


def test_chunks_grow_in_number_as_the_budget_shrinks() -> None:
    cutter = cutter_of(FullGraphShard(TOPOLOGY))
    budgets = sorted(sizes().values(), reverse=True)[::2]
    chosen = [cutter.fewest_chunks(budget).num_chunks for budget in budgets]
    assert chosen == sorted(chosen)
    assert chosen[0] == 1
    assert len(set(chosen)) > 4


@pytest.mark.parametrize("budget", [1, 50 * MIB, 80 * MIB])
@pytest.mark.parametrize("topology", [TOPOLOGY, SPREAD])
def test_what_a_refusal_asks_for_is_enough(topology: Topology, budget: int) -> None:
    cutter = cutter_of(FullGraphShard(topology))
    with pytest.raises(InputError, match="too small for the smallest chunks") as refusal:
        cutter.fewest_chunks(budget)
    needed = needed_by(refusal.value)
    chunking = cutter.fewest_chunks(needed)
    assert chunking.peak_bytes <= needed
    smallest = cutter.plan_chunks(topology.num_nodes)
    assert smallest.peak_bytes <= needed <= 1.05 * smallest.peak_bytes + MIB
    assert f"{needed // MIB:,} MiB for each worker" in refusal.value.needed
    assert "of which 10 MiB are in use" in refusal.value.got


def test_what_is_in_use_already_counts() -> None:
    less, more = (cutter_of(FullGraphShard(TOPOLOGY), base=base).plan_chunks(3).peak_bytes for base in (0, 5 * MIB))
    assert more - less == 5 * MIB


def check_needs(cutter: ChunkPlanner, needs: dict[bool, WaveRequirements], count: int) -> None:
    """All own nodes are cut, in the same way and order in both views; each view has its sources."""
    share = cutter.shard
    assert needs[True].chunks == needs[False].chunks
    assert sorted(needs[True].chunks) == cut_chunks(cutter.graphs[False], share.owned_nodes, count)
    for self_loops, graph in cutter.graphs.items():
        for j, (first, last) in enumerate(needs[self_loops].chunks):
            there = torch.cat([needs[self_loops].loads[j], needs[self_loops].remote[j]])
            assert torch.isin(graph.source_ids(share.owned_nodes[first:last]), there).all()


class Told(NamedTuple):
    """What a worker knows of its chunks."""

    chunking: ChunkPlan
    estimate: int


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("size", [1, 3])
def test_all_workers_cut_alike(size: int, count: int) -> None:
    """With as many chunks, of which the largest of any worker counts; one worker owns nothing."""
    owner = torch.arange(60) % 2 * (size - 1)

    def work(comm: Comm) -> Told:
        share = PartitionShard(TOPOLOGY, owner, comm) if size > 1 else FullGraphShard(TOPOLOGY, comm)
        cutter = cutter_of(share, base=comm.rank * MIB)
        chunking = cutter.plan_chunks(count)
        check_needs(cutter, chunking.requirements, count)
        return Told(chunking, chunked_bytes(cutter.base_bytes, cutter.layer_plans, chunking.wave_sizes, NUMBER_BYTES))

    told = together(size, work)
    for chunking, _ in told:
        assert chunking.num_chunks == count
        assert chunking.order.chunks.shape == (size, count)
        assert chunking.order.chunks.tolist() == told[0].chunking.order.chunks.tolist()
        assert chunking.peak_bytes == max(estimate for _, estimate in told)


def test_the_worker_with_the_least_memory_decides() -> None:
    """Workers that are given different budgets do not part ways, of which one would wait for ever."""
    owner = torch.arange(60) % 3

    def work(comm: Comm, budget: int) -> ChunkPlan:
        return cutter_of(PartitionShard(TOPOLOGY, owner, comm)).fewest_chunks(budget)

    ample = 1 << 40
    some = together(3, lambda comm: work(comm, ample))[0].peak_bytes - 1
    alike = together(3, lambda comm: work(comm, some))
    mixed = together(3, lambda comm: work(comm, some if comm.rank == 1 else ample))
    assert {chunking.num_chunks for chunking in mixed} == {chunking.num_chunks for chunking in alike}
    assert alike[0].num_chunks > 1


def test_a_refusal_reaches_all_workers() -> None:
    owner = torch.arange(60) % 2

    def work(comm: Comm) -> int:
        with pytest.raises(InputError) as refusal:
            cutter_of(PartitionShard(TOPOLOGY, owner, comm)).fewest_chunks(MIB if comm.rank else 1 << 40)
        return needed_by(refusal.value)

    first, second = together(2, work)
    assert first == second
    chosen = together(2, lambda comm: cutter_of(PartitionShard(TOPOLOGY, owner, comm)).fewest_chunks(first).num_chunks)
    assert chosen[0] == chosen[1] >= 1


def test_without_overlap_a_buffer_holds_no_rows_of_the_next_wave() -> None:
    ahead, behind = (cutter_of(FullGraphShard(TOPOLOGY), overlap=overlap).plan_chunks(6) for overlap in (True, False))
    assert behind.wave_sizes.num_slots == max(
        len(nodes) for needs in behind.requirements.values() for nodes in needs.loads
    )
    assert behind.wave_sizes.num_slots < ahead.wave_sizes.num_slots
    assert behind.peak_bytes < ahead.peak_bytes


@settings(deadline=None)
@given(st.integers(1, 1024), st.integers(1, 1200), st.integers(1, 3), st.booleans())
def test_the_search_finds_a_number_close_to_the_fewest(most: int, fewest: int, step: int, bounded: bool) -> None:
    """With a lower bound that is not sharp, or without one; and the last number that fitted is the one it returns."""
    fitting = []

    def bytes_of(count: int) -> int:
        assert 1 <= count <= most
        size = 1200 * 1200 // count
        if size <= budget:
            fitting.append(count)
        return size

    budget = 1200 * 1200 // fewest
    least_bytes_of = (lambda count: 1200 * 1200 // (2 * count)) if bounded else None
    found = fewest_chunks(bytes_of, most, budget=budget, step=step, least_bytes_of=least_bytes_of)
    needed = next((count for count in range(1, most + 1) if 1200 * 1200 // count <= budget), None)
    if needed is None:
        assert found is None
    else:
        assert found == fitting[-1]
        assert needed <= found <= needed + found // CHUNK_COUNT_TOLERANCE


def test_waves_stay_in_memory_as_far_as_the_budget_goes() -> None:
    extent = WaveSizes(num_slots=100, num_rows=50, num_edges=400, evicted_rows=20, listed_rows=120, loaded_rows=300)
    plans = plan_layers(MODEL, normal(4, 6).float(), cache=True)
    of_one = 2 * cached_wave_bytes(plans, extent) + 1
    spares = (-1, 0, of_one - 1, of_one, 3 * of_one + 5, 1 << 40)
    kept = [choose_cached_waves(4, extent, layer_plans=plans, views=2, spare=spare) for spare in spares]
    assert kept == [0, 0, 0, 1, 3, 4]
