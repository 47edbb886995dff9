"""The parts of a batch that workers draw together: put side by side they are the batch that one would draw."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.graph.sampling.edge_sampler import FASTGCN, NEIGHBOR, SAMPLERS, WITH_REPLACEMENT
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.strategies.split.sampler import SampledSplitBlock, SplitSampler
from strategies.split.split_batches import RELATIONS, WAYS, Case, assert_equal, case_of, together
from support import destinations_of, topologies, topology_of, with_relations


def edges_of(block: Block) -> list[tuple[int, int, int]]:
    """Id, source and destination of each edge."""
    assert block.edge_ids is not None
    src, dst = block.src_nodes[block.edges.indices.long()], block.dst_nodes[destinations_of(block.edges)]
    return list(zip(block.edge_ids.tolist(), src.tolist(), dst.tolist(), strict=True))


def check_edges(parts: list[SampledSplitBlock], whole: Block, owner: Tensor) -> None:
    """Workers have the edges of the whole block, each on the owner of its destination."""
    found = [edges_of(hop.block) for hop in parts]
    assert sorted(chain.from_iterable(found)) == sorted(edges_of(whole))
    for rank, (hop, edges) in enumerate(zip(parts, found, strict=True)):
        assert all(owner[dst] == rank for _, _, dst in edges)
        assert hop.num_local_edges == sum(int(owner[src]) == rank for _, src, _ in edges)
    for name in ("own", "dst_nodes"):
        nodes = torch.cat([hop.own_nodes if name == "own" else hop.block.dst_nodes for hop in parts])
        theirs = whole.src_nodes if name == "own" else whole.dst_nodes
        assert nodes.sort().values.tolist() == theirs.sort().values.tolist()


def check_order(parts: list[SampledSplitBlock], owner: Tensor) -> None:
    """Destinations, other own nodes, then those of others by owner: each node once."""
    for rank, hop in enumerate(parts):
        nodes, num_dst = hop.block.src_nodes, hop.block.edges.num_dst
        assert len(nodes) == len(set(nodes.tolist())) == hop.block.edges.num_src == hop.num_owned + sum(hop.recv_counts)
        assert torch.equal(hop.block.dst_nodes, nodes[:num_dst])
        assert num_dst <= hop.num_owned
        assert torch.equal(hop.own_nodes, nodes[: hop.num_owned])
        owners = [rank] * hop.num_owned + [peer for peer, count in enumerate(hop.recv_counts) for _ in range(count)]
        assert owner[nodes].tolist() == owners
        assert hop.recv_counts[rank] == 0


def check_wishes(parts: list[SampledSplitBlock]) -> None:
    """A worker is asked for what the others want of it, in the order in which these will have it."""
    wanted = [torch.split(hop.block.src_nodes[hop.num_owned :], list(hop.recv_counts)) for hop in parts]
    for rank, hop in enumerate(parts):
        assert hop.send_index.dtype == torch.int64
        assert hop.own_nodes[hop.send_index].tolist() == torch.cat([of_peer[rank] for of_peer in wanted]).tolist()
        assert hop.send_counts == tuple(len(of_peer[rank]) for of_peer in wanted)


def by_edge(block: Block, values: Tensor | None, missing: float) -> dict[int, float]:
    """What is said of each edge, by its id."""
    assert block.edge_ids is not None
    ids = block.edge_ids.tolist()
    return dict(zip(ids, [missing] * len(ids) if values is None else values.tolist(), strict=True))


def check_fields(parts: list[SampledSplitBlock], whole: Block, view: Topology, *, always_cut: bool) -> None:
    """What a part says of an edge or a node is what the whole block says, or the graph."""
    for hop in parts:
        block = hop.block
        assert block.edge_ids is not None
        assert block.edges.indices.dtype == torch.int32
        assert torch.equal(view.indices[block.edge_ids].long(), block.src_nodes[block.edges.indices.long()])
        assert torch.equal(block.src_degree, view.degree[block.src_nodes])
        assert torch.equal(block.dst_degree, view.degree[block.dst_nodes])
        for name in ("relation", "weight"):
            given, ours = getattr(view, name), getattr(block.edges, name)
            assert (given is None) == (ours is None)
            assert given is None or torch.equal(ours, given[block.edge_ids])
        is_cut = always_cut or block.edges.num_edges < int(view.indptr.diff()[block.dst_nodes].sum())
        assert (block.sample_weight is not None) == is_cut
        assert (block.relation_degree is not None) == (is_cut and view.relation is not None)
        shares = by_edge(whole, whole.sample_weight, 1.0)
        assert by_edge(block, block.sample_weight, 1.0).items() <= shares.items()
        if block.relation_degree is not None:
            degrees = by_edge(whole, whole.relation_degree, float("nan"))
            assert by_edge(block, block.relation_degree, 0).items() <= degrees.items()


def check(case: Case) -> None:
    """Some batches after each other."""
    samplers = case.samplers()
    whole = NeighborSampler(case.views, case.fanout, case.seed, **case.sampling_options)
    for step, seeds in enumerate(case.batches):
        found, blocks = together(samplers, seeds, 2, step), whole.sample_blocks(seeds, 2, step)
        for hops in found:
            assert len(hops) == len(case.views)
            for hop, following in pairwise(hops):
                assert torch.equal(hop.block.dst_nodes, following.own_nodes)
        for rank, hops in enumerate(found):
            assert torch.equal(hops[-1].block.dst_nodes, seeds[case.owner[seeds] == rank])
        for layer, block in enumerate(blocks):
            parts = [hops[layer] for hops in found]
            check_edges(parts, block, case.owner)
            check_order(parts, case.owner)
            check_wishes(parts)
            always_cut = case.sampler in (WITH_REPLACEMENT, FASTGCN) and case.fanout[-1 - layer] != -1
            check_fields(parts, block, case.views[layer], always_cut=always_cut)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    topology, size, sampler = draw(topologies()), draw(st.integers(1, 4)), draw(st.sampled_from(SAMPLERS))
    ways = ("none", "some") if sampler == FASTGCN else ("none", "some", "drawn")
    typed, weights = draw(st.booleans()), draw(st.sampled_from(ways))
    if typed:
        topology = with_relations(topology, RELATIONS)
    if weights != "none":
        few = st.sampled_from((0.0, 0.25, 1.0, 3.0))
        weight = draw(st.lists(few, min_size=topology.num_edges, max_size=topology.num_edges))
        topology = replace(topology, weight=torch.tensor(weight, dtype=torch.float32))
    if draw(st.booleans()):
        topology = replace(topology, indices=topology.indices.long())
    views = [topology.with_self_loops if draw(st.booleans()) else topology for _ in range(draw(st.integers(1, 3)))]
    number = st.sampled_from((-1, 1, 2, 3, 5))
    one = number | st.tuples(*[number] * RELATIONS) if typed and weights != "drawn" and sampler == NEIGHBOR else number
    fanout = draw(st.lists(one, min_size=len(views), max_size=len(views)))
    node = st.integers(0, topology.num_nodes - 1)
    batches = [torch.tensor(draw(st.lists(node, unique=True)), dtype=torch.int64) for _ in range(3)]
    owners = st.lists(st.integers(0, size - 1), min_size=topology.num_nodes, max_size=topology.num_nodes)
    owner = torch.tensor(draw(owners), dtype=draw(st.sampled_from((torch.int8, torch.int16, torch.int64))))
    return Case(views, fanout, weights == "drawn", owner, size, batches, draw(st.integers(0, 2**64 - 1)), sampler)


@given(cases())
@settings(deadline=None, max_examples=250)
def test_parts_of_batches_of_small_graphs(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_parts_of_batches_of_a_larger_graph(way: str, size: int) -> None:
    check(case_of(way, size))


@pytest.mark.parametrize("size", [2, 4])
def test_workers_that_own_one_node_or_none(size: int) -> None:
    check(case_of("uniform", size, "one node"))


def require_fresh(used: Sequence[SplitSampler], case: Case, batches: Sequence[Tensor]) -> None:
    """Samplers that have drawn before draw what fresh ones do; and what they have given before stays as it was."""
    held = [together(used, seeds, 1, step) for step, seeds in enumerate(batches)]
    for step, seeds in enumerate(batches):
        for one, other in zip(held[step], together(case.samplers(), seeds, 1, step), strict=True):
            assert_equal(one, other)


@pytest.mark.parametrize("way", WAYS)
def test_batches_leave_nothing_to_the_next_one(way: str) -> None:
    case = case_of(way, 3)
    require_fresh(case.samplers(), case, case.batches * 2)


def test_numbers_begin_anew_before_they_overflow() -> None:
    case = case_of("uniform", 3)
    used = case.samplers()
    for sampler in used:
        sampler._numbers._base = 2**31 - 1 - 400
    require_fresh(used, case, case.batches)
    assert all(sampler._numbers._base < 30_000 for sampler in used)


def test_a_single_worker_needs_no_owner() -> None:
    case = case_of("uniform", 1)
    alone = SplitSampler(case.views, case.fanout, case.seed, owner=None, rank=0, size=1)
    for step, seeds in enumerate(case.batches):
        assert_equal(*(together([each], seeds, 1, step)[0] for each in (alone, case.samplers()[0])))


@pytest.mark.parametrize(("seeds", "refused"), [([0, 3, 0], "0 at position 2"), ([400], "400 at"), ([-1], "-1 at")])
def test_seeds_are_nodes_and_come_once(seeds: list[int], refused: str) -> None:
    sampler = case_of("uniform", 3).samplers()[0]
    with pytest.raises(InputError, match=refused):
        next(sampler.sample_hops(torch.tensor(seeds), 0, 0))


@pytest.mark.parametrize("is_refused", [True, False])
def test_batches_that_are_not_finished_leave_nothing(is_refused: bool) -> None:
    case = case_of("uniform", 1)
    (used,) = case.samplers()
    talk = used.sample_hops(torch.tensor([0, 3, 0] if is_refused else [0, 3]), 0, 0)
    with pytest.raises(InputError) if is_refused else closing(talk):
        next(talk)
    require_fresh([used], case, case.batches)


def test_what_cannot_be_sampled_is_refused() -> None:
    topology, other = topology_of(3, [(0, 1)]), topology_of(2, [(0, 1)])
    owner = torch.zeros(3, dtype=torch.int8)
    for views, fanout, needed in (([topology], [1, 1], "one for each"), ([topology, other], [1, 1], "of one graph")):
        with pytest.raises(InputError, match=needed):
            SplitSampler(views, fanout, 0, owner=owner, rank=0, size=1)
    with pytest.raises(InputError, match="no weights"):
        SplitSampler([topology], [1], 0, owner=owner, rank=0, size=1, weighted=True)


def test_where_rows_lie_is_kept_on_the_way_to_a_device() -> None:
    (hop, *_) = together(case_of("uniform", 2).samplers(), torch.arange(9), 0, 0)[1]
    moved = hop.to(torch.device("cpu"))
    assert moved.block is hop.block
    assert moved.send_index is hop.send_index
