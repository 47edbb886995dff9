"""Sums that workers take for each other: the same aggregate and gradient as of the whole block, in fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from layer_table import CONVS, IN
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind, Link
from outgrow.engine.shard import layer_topology
from outgrow.graph.sampling.edge_sampler import Fanout
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Layer, NodeMessages
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.split.layers import PartialSumBlock, RowBytes, plan_partial_sums, supports_partial_sums
from outgrow.strategies.split.sampler import SampledSplitBlock, SplitSampler, sample_cooperatively
from suites.checks import named, on_workers
from support import destinations_of, normal, random_topology, topology_of
from thread_group import run_in_threads

WORKERS = 3
BOTH_ORDERS = ("sage", "commnet", "gin")
SUMS = ["gcn", "gcn-aggregate-first", "ggnn", "ggnn-of-another-width"]
SUMS += ["propagate", "propagate-mean", "propagate-restart"]
SUMS += [f"{name}-{order}-first" for name in BOTH_ORDERS for order in ("project", "aggregate")]
GRAPHS = {"plain": random_topology(120, 2500), "weighted": random_topology(120, 2500, weighted=True)}
HUBS = torch.arange(120).clamp(max=12) // 6
"""Owners: the nodes that most edges leave and enter belong to workers 0 and 1, so sums pay for some pairs only."""
EMPTY = HUBS.clamp(max=1) * 2  # worker 1 owns nothing


class World(NamedTuple):
    """A layer on a batch of a graph, of one worker and of all.

    Attributes:
        hop: The worker's part.
        whole: The block of all.
        layer: The layer.
        row: What a row costs.
        weight: Of the edges of the whole block.
    """

    hop: SampledSplitBlock
    whole: Block
    layer: Layer
    row: RowBytes
    weight: Tensor | None


def weigh(layer: Layer, block: Block, dtype: torch.dtype) -> Tensor | None:
    return layer.conv.edge_weight(
        block, NodeMessages(torch.empty(0, 1, IN, dtype=dtype), None), NodeMessages(None, None)
    )


def worlds(
    comm: Comm, conv: str, topology: Topology, owner: Tensor, row: RowBytes, fanout: Sequence[Fanout] = (4, 9)
) -> list[World]:
    """Both layers of a batch. All workers together."""
    layer = Layer(CONVS[conv]())
    views = [layer_topology(topology, layer)] * len(fanout)
    seeds = torch.arange(0, topology.num_nodes, 2)
    sampler = SplitSampler(views, fanout, 1, owner=owner, rank=comm.rank, size=comm.size)
    hops = sample_cooperatively(sampler, comm.background_comm, seeds[owner[seeds] == comm.rank], 0, 0)
    blocks = NeighborSampler(views, fanout, 1).sample_blocks(seeds, 0, 0)
    return [
        World(hop, block, layer, row, weigh(layer, block, row.dtype)) for hop, block in zip(hops, blocks, strict=True)
    ]


class Result(NamedTuple):
    """The aggregate of some nodes, and the gradient of some nodes' rows; None for constant rows."""

    aggregate: Tensor
    gradient: Tensor | None


def whole_result(world: World, rows: Tensor, goal: Tensor) -> Result:
    """By the plain sum over the whole block, for all nodes of the graph."""
    block, given = world.whole, rows.clone().requires_grad_(world.row.has_gradient)
    out = WeightedSum()(block, given[block.src_nodes], None, world.weight)
    if world.row.has_gradient:
        (out * goal[block.dst_nodes]).sum().backward()
    everyone = out.new_full((len(rows), *out.shape[1:]), torch.nan)
    return Result(everyone.index_copy(0, block.dst_nodes, out.detach()), given.grad)


def split_result(world: World, summed: PartialSumBlock, comm: Comm, rows: Tensor, goal: Tensor) -> Result:
    """By all workers, for this worker's nodes; of rows of others a worker knows nothing."""
    own = rows[world.hop.own_nodes].requires_grad_(world.row.has_gradient)
    out = summed.aggregate(own, comm, Kind.ACTIVATIONS)
    if world.row.has_gradient:
        (out * goal[world.hop.block.dst_nodes]).sum().backward()
    return Result(out.detach(), own.grad)


def differences(world: World, summed: PartialSumBlock, comm: Comm) -> list[float]:
    """Between both, of the aggregate and of the gradient."""
    num_nodes, row = int(world.whole.src_nodes.max()) + 1, world.row
    rows, goal = normal(num_nodes, 1, row.columns), normal(num_nodes, 1, row.columns, seed=1)
    mine = split_result(world, summed, comm, rows.to(row.dtype), goal)
    whole = whole_result(world, rows.to(row.dtype), goal)
    pairs = [(mine.aggregate, whole.aggregate[world.hop.block.dst_nodes])]
    if whole.gradient is not None and mine.gradient is not None:
        pairs.append((mine.gradient, whole.gradient[world.hop.own_nodes]))
    return [(a - b).abs().max().item() if len(a) else 0.0 for a, b in pairs]


class Pair(NamedTuple):
    """What goes from another worker to this one: distinct sources, destinations, and edges."""

    sources: int
    destinations: int
    edges: int

    def told(self, weight: Tensor | None) -> int:
        """Bytes that the other must be told for parts of sums."""
        return 4 * self.destinations + (4 + (0 if weight is None else weight.itemsize)) * self.edges

    def is_partial(self, row: RowBytes, weight: Tensor | None) -> bool:
        """Whether parts of sums are fewer bytes."""
        both_ways = row.columns * row.dtype.itemsize * (2 if row.has_gradient else 1)
        return self.destinations * both_ways + self.told(weight) < self.sources * both_ways


def pairs_of(hop: SampledSplitBlock, owner: Tensor, rank: int) -> list[Pair]:
    """From each worker."""
    block, found = hop.block, []
    sources, targets = block.src_nodes[block.edges.indices.long()], block.dst_nodes[destinations_of(block.edges)]
    for peer in range(WORKERS):
        cut = (owner[sources] == peer) & (peer != rank)
        found.append(Pair(len(sources[cut].unique()), len(targets[cut].unique()), int(cut.sum())))
    return found


def tried(comm: Comm, conv: str, topology: Topology, owner: Tensor, row: RowBytes, *, partial: bool) -> list[str]:
    """What is wrong with a layer on a worker."""
    wrong, ids, told_in = [], (Link.PEER, Kind.IDS), (Link.PEER, Kind.TOPOLOGY)
    for layer, world in enumerate(worlds(comm, conv, topology, owner, row)):
        before = comm.ledger.bytes_by_link.copy()
        summed = plan_partial_sums(world.layer, world.hop, row, comm.background_comm, partial_sums=partial)
        added = comm.ledger.bytes_by_link - before
        found = differences(world, summed, comm)
        weight, pairs = weigh(world.layer, world.hop.block, row.dtype), pairs_of(world.hop, owner, comm.rank)
        chosen = [partial and pair.is_partial(row, weight) for pair in pairs]
        rows = [pair.destinations if part else pair.sources for pair, part in zip(pairs, chosen, strict=True)]
        told = sum(pair.told(weight) for pair, part in zip(pairs, chosen, strict=True) if part)
        routes = comm.all_gather_object(summed.split_sizes)
        checks = {
            "values": max(found) < 1e-12,
            "rows": [*summed.split_sizes.receive] == rows and summed.remote_rows == sum(rows),
            "both ends": [route.send[comm.rank] for route in routes] == rows,
            "bytes": (added.pop(ids), added.pop(told_in, 0), len(added)) == (8 * 3 * (WORKERS - 1), told, 0),
        }
        wrong += [f"{conv} {layer} {row} {partial} {name} {found}" for name, good in checks.items() if not good]
    return wrong


def every_sum_is_right(comm: Comm) -> None:
    """Each layer, with and without parts, of wide and of narrow rows; also where a worker owns nothing."""
    wrong = []
    for conv in SUMS:
        for topology in GRAPHS.values():
            for owner, columns, partial in ((HUBS, 16, True), (HUBS, 2, True), (HUBS, 16, False), (EMPTY, 16, True)):
                row = RowBytes(dtype=torch.float64, columns=columns, has_gradient=columns > 2)
                wrong += tried(comm, conv, topology, owner, row, partial=partial)
    assert wrong == []


def pairs_choose_for_themselves(comm: Comm) -> None:
    """In one layer parts go to some workers and sources to others, so the checks above see both."""
    row, kinds = RowBytes(dtype=torch.float64, columns=16, has_gradient=True), set[tuple[int, bool]]()
    for layer, world in enumerate(worlds(comm, "gcn", GRAPHS["plain"], HUBS, row)):
        weight, pairs = weigh(world.layer, world.hop.block, row.dtype), pairs_of(world.hop, HUBS, comm.rank)
        kinds |= {(layer, pair.is_partial(row, weight)) for pair in pairs if pair.edges}
    everyones = comm.all_gather_object(kinds)
    assert any({(layer, True), (layer, False)} <= set.union(*everyones) for layer in range(2))
    assert any({(layer, True), (layer, False)} <= mine for mine in everyones for layer in range(2))


def some_workers_have_weights_and_others_none(comm: Comm) -> None:
    """The in-edges of worker 0 are not cut, so all of them weigh 1; those of the others stand for more."""
    pairs = [
        (10 * src + 1 + each, 10 * dst)
        for dst in range(WORKERS)
        for src in range(WORKERS)
        for each in range(2 if dst == 0 else 4)
    ]
    owner, row = torch.arange(30) // 10, RowBytes(dtype=torch.float64, columns=16, has_gradient=True)
    (world,) = worlds(comm, "gin-project-first", topology_of(30, pairs), owner, row, (6,))
    summed = plan_partial_sums(world.layer, world.hop, row, comm.background_comm)
    weights = comm.all_gather_object((summed.local_weight is None, summed.remote_rows, sum(world.hop.recv_counts)))
    found = differences(world, summed, comm)
    assert [has_none for has_none, _, _ in weights] == [True, False, False]
    assert all(rows == WORKERS - 1 < wanted for _, rows, wanted in weights)
    assert max(found) < 1e-12


def half_precision_is_summed_in_float32(comm: Comm) -> None:
    """Rows in half precision are constants; parts of their sums, which are no longer half, do not travel."""
    found, is_whole = [], []
    for dtype in (torch.float16, torch.bfloat16):
        row = RowBytes(dtype=dtype, columns=IN, has_gradient=False)
        for world in worlds(comm, "sage-aggregate-first", GRAPHS["weighted"], HUBS, row):
            summed = plan_partial_sums(world.layer, world.hop, row, comm.background_comm)
            found += differences(world, summed, comm)
            is_whole.append(summed.split_sizes.receive == world.hop.recv_counts)
    assert len(found) == 4
    assert max(found) < 1e-5
    assert all(is_whole)


CHECKS = named(
    every_sum_is_right,
    pairs_choose_for_themselves,
    some_workers_have_weights_and_others_none,
    half_precision_is_summed_in_float32,
)


test_three_workers = on_workers(CHECKS, WORKERS, run_in_threads)


@pytest.mark.parametrize("name", CONVS)
def test_layers_whose_sums_may_be_cut(name: str) -> None:
    """Sums with weights of the graph; neither a maximum nor weights that are trained or read both ends."""
    assert supports_partial_sums(Layer(CONVS[name]())) == (name in SUMS)


@pytest.mark.parametrize(("dtype", "gradient", "expected"), [(torch.float32, True, 40), (torch.float16, False, 10)])
def test_what_a_row_costs(dtype: torch.dtype, gradient: bool, expected: int) -> None:
    assert RowBytes(dtype=dtype, columns=5, has_gradient=gradient).round_trip_bytes == expected
