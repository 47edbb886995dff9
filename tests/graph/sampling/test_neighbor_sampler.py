"""The sampler against one in plain Python, bit by bit; what does not change its draws; what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graph.sampling.plain_sampler import Kept, kept_edges
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, SAMPLERS, WITH_REPLACEMENT, Fanout
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import GraphView, Topology
from outgrow.ops.rng import fold_in
from support import random_topology, topologies, topology_of, with_relations

RELATIONS = 3


def check_block(block: Block, view: Topology, kept: list[Kept], nodes: list[int], *, always_cut: bool) -> None:
    """A block against the edges that each of its destinations keeps; ``nodes`` are all that have a number by then."""
    edges, flat = block.edges, [pair for row in kept for pair in row]
    ids = torch.tensor([e for e, _ in flat], dtype=torch.int64)
    assert block.edge_ids is not None
    assert torch.equal(block.edge_ids, ids)
    assert edges.indptr.tolist() == np.cumsum([0, *map(len, kept)]).tolist()
    assert edges.indices.dtype == torch.int32
    assert block.src_nodes.tolist() == nodes
    assert block.dst_nodes.tolist() == nodes[: len(kept)]
    assert torch.equal(block.src_nodes[edges.indices.long()], view.indices[ids].long())
    # Sums of weights may be taken in another order where self-loops are added.
    torch.testing.assert_close(block.src_degree, view.degree[block.src_nodes], rtol=1e-12, atol=0)
    torch.testing.assert_close(block.dst_degree, view.degree[block.dst_nodes], rtol=1e-12, atol=0)
    assert edges.num_src == len(nodes)
    for ours, whole in ((edges.weight, view.weight), (edges.relation, view.relation)):
        assert (ours is None) == (whole is None)
        assert ours is None or whole is None or torch.equal(ours, whole[ids])
    counts = view.indptr.diff()[block.dst_nodes]
    if len(ids) == int(counts.sum()) and not always_cut:
        assert block.sample_weight is None
        assert block.relation_degree is None
        return
    assert block.sample_weight is not None
    assert block.sample_weight.tolist() == pytest.approx([share for _, share in flat], rel=1e-6)
    assert (block.relation_degree is None) == (view.relation is None)
    if block.relation_degree is not None:
        assert block.relation_degree.tolist() == pytest.approx(relation_degrees(view, ids), rel=1e-6)


def relation_degrees(view: Topology, ids: Tensor) -> list[float]:
    assert view.relation is not None
    row = torch.searchsorted(view.indptr, torch.arange(view.num_edges), right=True)
    weight = torch.ones(view.num_edges) if view.weight is None else view.weight
    same = [(row == row[e]) & (view.relation == view.relation[e]) for e in ids.tolist()]
    return [float(weight[mask].double().sum()) for mask in same]


class Case(NamedTuple):
    """What is sampled, around which seeds."""

    given: list[GraphView]
    views: list[Topology]
    fanout: list[Fanout]
    seeds: list[int]
    weighted: bool
    sampler: str
    seed: int


def check(case: Case) -> None:
    views, fanout = case.views, case.fanout
    sampler = NeighborSampler(case.given, fanout, case.seed, weighted=case.weighted, sampler=case.sampler)
    for epoch, step in ((0, 0), (3, 7)):
        blocks = sampler.sample_blocks(torch.tensor(case.seeds, dtype=torch.int64), epoch, step)
        nodes = list(case.seeds)
        for layer in reversed(range(len(views))):
            key = fold_in(fold_in(fold_in(case.seed, epoch, step), layer + 1), 2)
            number = fanout[len(views) - 1 - layer]
            kept = [kept_edges(views[layer], v, number, key, case.weighted, case.sampler) for v in nodes]
            for row in kept:
                for e, _ in row:
                    source = int(views[layer].indices[e])
                    if source not in nodes:
                        nodes.append(source)
            always_cut = number != -1 and case.sampler in (WITH_REPLACEMENT, FASTGCN)
            check_block(blocks[layer], views[layer], kept, nodes, always_cut=always_cut)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    topology, sampler = draw(topologies()), draw(st.sampled_from(SAMPLERS))
    ways = ("none", "some") if sampler == FASTGCN else ("none", "some", "drawn")
    typed, weights = draw(st.booleans()), draw(st.sampled_from(ways))
    if typed:
        topology = with_relations(topology, RELATIONS)
    if weights != "none":
        weight = draw(
            st.lists(st.sampled_from((0.0, 0.25, 1.0, 3.0)), min_size=topology.num_edges, max_size=topology.num_edges)
        )
        topology = replace(topology, weight=torch.tensor(weight, dtype=torch.float32))
    if draw(st.booleans()):
        topology = replace(topology, indices=topology.indices.long())
    looped = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    views = [topology.view(self_loops=loops) for loops in looped]
    given = [topology.sampling_view(self_loops=loops) for loops in looped]
    number = st.sampled_from((-1, 1, 2, 3, 5))
    by_relation = st.tuples(*[number] * RELATIONS)
    one = number | by_relation if typed and weights != "drawn" and sampler == NEIGHBOR else number
    fanout = draw(st.lists(one, min_size=len(views), max_size=len(views)))
    seeds = draw(st.lists(st.integers(0, topology.num_nodes - 1), unique=True))
    return Case(given, views, fanout, seeds, weights == "drawn", sampler, draw(st.integers(0, 2**64 - 1)))


@given(cases())
@settings(deadline=None, max_examples=250)
def test_small_graphs_against_plain_python(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("way", ["uniform", "weighted", "related", *SAMPLERS[1:]])
def test_heavy_rows_against_plain_python(way: str) -> None:
    """Rows of one word, of several, of several groups of words; rows that are not cut."""
    pairs = [(u % 6, dst) for dst, count in ((0, 9000), (1, 5), (2, 64), (3, 65), (4, 700)) for u in range(count)]
    topology = with_relations(topology_of(6, pairs, weighted=True), RELATIONS)
    fanout: Fanout = (4, 70, -1) if way == "related" else 20
    sampler = way if way in SAMPLERS else NEIGHBOR
    check(Case([topology], [topology], [fanout], [4, 0, 2, 5, 1, 3], way == "weighted", sampler, 5))


def kept_by(blocks: list[Block]) -> list[dict[int, list[int]]]:
    """The edges that each destination keeps, layer by layer."""
    out = []
    for block in blocks:
        assert block.edge_ids is not None
        ends = block.edges.indptr.tolist()
        rows = zip(block.dst_nodes.tolist(), ends, ends[1:], strict=False)
        out.append({v: block.edge_ids[low:high].tolist() for v, low, high in rows})
    return out


@pytest.fixture(scope="module")
def topology() -> Topology:
    return with_relations(random_topology(400, 12_000, weighted=True), RELATIONS)


WAYS: dict[str, tuple[list[Fanout], bool, str]] = {
    "uniform": ([4, 3, 2], False, NEIGHBOR),
    "weighted": ([4, 3, 2], True, NEIGHBOR),
    "related": ([(2, 1, 3), (1, 2, -1), 3], False, NEIGHBOR),
    "replaced": ([4, 3, 2], False, WITH_REPLACEMENT),
    "replaced by weight": ([4, 3, 2], True, WITH_REPLACEMENT),
    "labor": ([4, 3, 2], False, LABOR),
    "labor by weight": ([4, 3, 2], True, LABOR),
    "fastgcn": ([90, 50, 30], False, FASTGCN),
}
ways = pytest.mark.parametrize("way", WAYS)


def sampler_of(topology: Topology, way: str, seed: int = 1) -> NeighborSampler:
    fanout, weighted, sampler = WAYS[way]
    views = [topology, topology.with_self_loops, topology]
    return NeighborSampler(views, fanout, seed, weighted=weighted, sampler=sampler)


@ways
def test_what_a_node_keeps_does_not_depend_on_its_batch(topology: Topology, way: str) -> None:
    sampler, seeds = sampler_of(topology, way), torch.randperm(400, generator=torch.manual_seed(0))
    whole = kept_by(sampler.sample_blocks(seeds, 2, 5))
    for size in (1, 37, 399):
        for part in seeds.split(size):
            for layer, rows in enumerate(kept_by(sampler.sample_blocks(part, 2, 5))):
                assert rows.items() <= whole[layer].items()


@ways
def test_many_threads_draw_what_one_draws(topology: Topology, way: str) -> None:
    sampler, batches = sampler_of(topology, way), torch.arange(400).split(20) * 5
    alone = [sampler_of(topology, way).sample_blocks(batch, 0, step) for step, batch in enumerate(batches)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda step: sampler.sample_blocks(batches[step], 0, step), range(len(batches))))
    for blocks, others in zip(alone, together, strict=True):
        for block, other in zip(blocks, others, strict=True):
            assert_equal(block, other)


def assert_equal(a: Block, b: Block) -> None:
    for x, y in ((a, b), (a.edges, b.edges)):
        for field in fields(x):
            one, other = getattr(x, field.name), getattr(y, field.name)
            if isinstance(one, Tensor):
                assert torch.equal(one, other), field.name
            else:
                assert field.name in ("edges", "derived") or one == other, field.name


@ways
def test_every_part_of_the_key_changes_the_draws(topology: Topology, way: str) -> None:
    seeds = torch.arange(300)
    drawn = [
        kept_by(sampler_of(topology, way, seed).sample_blocks(seeds, epoch, step))[-1]
        for seed, epoch, step in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))
    ]
    assert all(a != b for i, a in enumerate(drawn) for b in drawn[:i])
    fanout, weighted, sampler = WAYS[way]
    both = NeighborSampler([topology] * 2, fanout[:1] * 2, 1, weighted=weighted, sampler=sampler)
    first, last = kept_by(both.sample_blocks(seeds, 0, 0))
    assert {v: first[v] for v in last} != last


def test_results_stay_when_the_next_batch_is_drawn(topology: Topology) -> None:
    """Memory is lent again only when nothing refers to it: all blocks of many batches, and parts of blocks."""
    big = random_topology(20_000, 400_000)
    sampler, seeds = NeighborSampler([big, big], [10, 10], 0), torch.arange(15_000)
    held = [(step, sampler.sample_blocks(seeds[step:], 0, step)) for step in range(4)]
    parts = [sampler.sample_blocks(seeds[step:], 0, step)[0].src_nodes[5:] for step in range(4, 6)]
    for step in range(6, 9):
        sampler.sample_blocks(seeds, 1, step)
    fresh = NeighborSampler([big, big], [10, 10], 0)
    for step, blocks in held:
        for block, other in zip(blocks, fresh.sample_blocks(seeds[step:], 0, step), strict=True):
            assert_equal(block, other)
    for step, part in zip((4, 5), parts, strict=True):
        assert torch.equal(part, fresh.sample_blocks(seeds[step:], 0, step)[0].src_nodes[5:])


def test_numbers_of_nodes_begin_anew_before_they_overflow(topology: Topology) -> None:
    sampler, seeds = sampler_of(topology, "uniform"), torch.arange(50)
    sampler.sample_blocks(seeds, 0, 0)
    (scratch,) = sampler._idle
    scratch._base = 2**31 - 1 - topology.num_nodes
    for step in range(1, 4):
        for block, other in zip(
            sampler.sample_blocks(seeds, 0, step),
            sampler_of(topology, "uniform").sample_blocks(seeds, 0, step),
            strict=True,
        ):
            assert_equal(block, other)
    assert scratch._base < 1500


def test_nothing_is_cut_by_a_fanout_of_all(topology: Topology) -> None:
    every: list[tuple[Fanout, str]] = [(-1, sampler) for sampler in SAMPLERS]
    for fanout, sampler in (*every, (topology.num_edges, NEIGHBOR), (topology.num_edges, LABOR), ((-1,) * 3, NEIGHBOR)):
        (block,) = NeighborSampler([topology], [fanout], 0, sampler=sampler).sample_blocks(topology.nodes, 0, 0)
        assert block.sample_weight is None
        assert block.relation_degree is None
        assert_equal(replace(block, edge_ids=None), replace(topology.block, edges=block.edges))
        assert torch.equal(block.edges.indptr, topology.indptr)
        assert torch.equal(block.edges.indices, topology.indices)


@ways
def test_a_batch_of_nothing(topology: Topology, way: str) -> None:
    for block in sampler_of(topology, way).sample_blocks(torch.empty(0, dtype=torch.int64), 0, 0):
        assert block.edges.indptr.tolist() == [0]
        assert block.edges.num_edges == block.edges.num_src == block.edges.num_dst == 0
        assert len(block.src_nodes) == len(block.dst_nodes) == len(block.src_degree) == len(block.dst_degree) == 0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_graph_without_edges(sampler: str) -> None:
    sampling = NeighborSampler([topology_of(3, [])], [2], 0, sampler=sampler)
    (block,) = sampling.sample_blocks(torch.tensor([2, 0]), 0, 0)
    assert block.edges.indptr.tolist() == [0, 0, 0]
    assert block.src_nodes.tolist() == [2, 0]


@pytest.mark.parametrize("seeds", [[0, 1, 0], [400], [-1]])
def test_seeds_are_nodes_and_come_once(topology: Topology, seeds: list[int]) -> None:
    sampler = sampler_of(topology, "uniform")
    before = sampler.sample_blocks(torch.arange(5), 0, 0)
    with pytest.raises(InputError, match=f"{seeds[-1]} at position {len(seeds) - 1}"):
        sampler.sample_blocks(torch.tensor(seeds), 0, 0)
    assert_equal(sampler.sample_blocks(torch.arange(5), 0, 0)[0], before[0])


def test_what_cannot_be_sampled_is_refused(topology: Topology) -> None:
    plain, small = topology_of(400, [(0, 1)]), topology_of(2, [(0, 1)], weighted=True)
    twice = topology_of(2, [(0, 1), (0, 1)])
    refused: list[tuple[list[Topology], list[Fanout], bool, str]] = [
        ([topology], [1, 1], False, "one for each layer"),
        ([], [], False, "one for each layer"),
        ([topology, small], [1, 1], False, "views of one graph"),
        ([topology], [0], False, "at least 1"),
        ([topology], [(1, -2, 1)], False, "at least 1"),
        ([topology], [(1, 1)], False, "a number for each relation"),
        ([plain], [(1, 1)], False, "a number for each relation"),
        ([topology], [(1, 1, 1)], True, "one number for each layer"),
        ([plain], [1], True, "no weights"),
        ([replace(small, weight=torch.tensor([-1.0]))], [1], True, "weights from -1"),
        ([replace(small, weight=torch.tensor([float("nan")]))], [1], True, "weights from nan"),
        ([replace(small, weight=torch.tensor([float("inf")]))], [1], True, "weights from inf"),
        ([replace(twice, relation=torch.tensor([-1, -1], dtype=torch.int8))], [(1,)], False, "at the end of a row"),
    ]
    for views, fanout, weighted, needed in refused:
        with pytest.raises(InputError, match=needed):
            NeighborSampler(views, fanout, 0, weighted=weighted)


def test_what_a_sampler_cannot_do_is_refused(topology: Topology) -> None:
    plain = topology_of(400, [(0, 1)])
    infinite = replace(topology, weight=topology.degree.new_full((topology.num_edges,), float("inf")).float())
    refused: list[tuple[Topology, Fanout, bool, str, str]] = [
        (topology, 2, False, "labour", "labor"),
        *((topology, (1, 1, 1), False, sampler, "cannot draw by relation") for sampler in SAMPLERS[1:]),
        (topology, 2, True, FASTGCN, "weighted=False"),
        (topology, -1, True, FASTGCN, "weighted=False"),
        (infinite, 2, False, FASTGCN, "finite weights"),
        (plain, 2, True, LABOR, "no weights"),
        (plain, 2, True, WITH_REPLACEMENT, "no weights"),
    ]
    for view, fanout, weighted, sampler, needed in refused:
        with pytest.raises(InputError, match=needed):
            NeighborSampler([view], [fanout], 0, weighted=weighted, sampler=sampler)
