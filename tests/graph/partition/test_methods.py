"""Methods: every node once, no part empty, as even as was asked, and the same again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import random_topology, topology_of

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.partition.methods import (
    METHODS,
    ChunkedPartitioner,
    HashPartitioner,
    MetisPartitioner,
    RangePartitioner,
    make_partitioner,
)
from outgrow.graph.partition.partition import balanced_range_ends
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.topology import Topology

QUICK = ("range", "range-edges", "hash", "fennel")


def chunked_by_range(chunks: int) -> ChunkedPartitioner:
    return ChunkedPartitioner(chunks=chunks, first=RangePartitioner())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Topology, int]:
    num_nodes = draw(st.integers(1, 60))
    topology = random_topology(num_nodes, draw(st.integers(0, 200)), seed=draw(st.integers(0, 9)))
    return topology, draw(st.integers(1, num_nodes))


@settings(deadline=None)
@given(graphs(), st.sampled_from(QUICK))
def test_every_node_is_in_one_part_and_no_part_is_empty(graph: tuple[Topology, int], name: str) -> None:
    topology, num_parts = graph
    made = METHODS[name].partition_nodes(topology, num_parts)
    assert made.part.dtype == torch.int16
    assert sorted(v for p in range(num_parts) for v in made.nodes_of_part(p).tolist()) == list(
        range(topology.num_nodes)
    )
    assert int(made.part_sizes.min()) > 0


@settings(deadline=None)
@given(graphs())
def test_ranges_are_contiguous_and_even(graph: tuple[Topology, int]) -> None:
    topology, num_parts = graph
    by_nodes, by_edges = (
        RangePartitioner().partition_nodes(topology, num_parts),
        RangePartitioner(balance="edges").partition_nodes(topology, num_parts),
    )
    for made in (by_nodes, by_edges):
        assert bool((made.part[1:] >= made.part[:-1]).all())
    assert int(by_nodes.part_sizes.max()) - int(by_nodes.part_sizes.min()) <= 1
    heaviest = int(topology.indptr.diff().max())
    assert max(measure_quality(topology, by_edges).edges) <= topology.num_edges / num_parts + heaviest


def test_ranges_by_edges_follow_the_edges() -> None:
    topology = topology_of(6, [(0, 0)] * 6 + [(0, 4), (0, 5), (0, 3)])
    assert RangePartitioner(balance="edges").partition_nodes(topology, 2).part.tolist() == [0, 1, 1, 1, 1, 1]
    assert RangePartitioner(balance="nodes").partition_nodes(topology, 2).part.tolist() == [0, 0, 0, 1, 1, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.data())
def test_range_ends_are_the_nearest_ones(costs: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(costs)))
    before = np.concatenate(([0], np.cumsum(costs)))
    ends = balanced_range_ends(before, count)
    assert ends[0] == 0
    assert ends[-1] == len(costs)
    assert (np.diff(ends) >= 1).all()
    assert np.diff(before[ends]).max() <= before[-1] / count + max(costs)
    if count == 2 and len(costs) > 1:
        inner = np.abs(before[1:-1] - before[-1] // 2)
        assert abs(before[ends[1]] - before[-1] // 2) == inner.min()


@settings(deadline=None)
@given(graphs(), st.integers(0, 3))
def test_hash_deals_out_evenly(graph: tuple[Topology, int], seed: int) -> None:
    topology, num_parts = graph
    made = HashPartitioner(seed=seed).partition_nodes(topology, num_parts)
    assert int(made.part_sizes.max()) - int(made.part_sizes.min()) <= 1
    assert torch.equal(made.part, HashPartitioner(seed=seed).partition_nodes(topology, num_parts).part)


def test_hash_depends_on_its_seed_and_not_on_the_order() -> None:
    topology = random_topology(400, 1000)
    one, other = (
        HashPartitioner(seed=1).partition_nodes(topology, 4).part,
        HashPartitioner(seed=2).partition_nodes(topology, 4).part,
    )
    assert 0.6 < (one != other).double().mean() < 0.9
    assert 0.6 < (one[1:] != one[:-1]).double().mean() < 0.9


@settings(deadline=None)
@given(graphs(), st.integers(1, 5))
def test_chunks_are_contiguous_ranges_of_parts_with_even_computation(graph: tuple[Topology, int], chunks: int) -> None:
    topology, num_parts = graph
    method = ChunkedPartitioner(chunks=chunks, first=HashPartitioner())
    made = method.partition_nodes(topology, num_parts)
    assert made.num_chunks == chunks
    assert torch.equal(made.part, HashPartitioner().partition_nodes(topology, num_parts).part)
    assert made.chunk is not None
    cost = topology.indptr.diff() + 1
    for part in range(num_parts):
        nodes = made.nodes_of_part(part)
        chunk = made.chunk[nodes]
        assert bool((chunk[1:] >= chunk[:-1]).all())
        used = min(chunks, len(nodes))
        assert chunk.unique().tolist() == list(range(used))
        most = max(int(cost[made.chunks_as_parts.nodes_of_part(part * chunks + c)].sum()) for c in range(chunks))
        assert most <= int(cost[nodes].sum()) / used + int(cost[nodes].max())


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(("num_nodes", "num_parts"), [(3, 4), (3, 0), (3, -1), (0, 1), (0, 0)])
def test_more_parts_than_nodes_are_refused(name: str, num_nodes: int, num_parts: int) -> None:
    with pytest.raises(InputError, match="as many parts") as caught:
        METHODS[name].partition_nodes(topology_of(num_nodes, []), num_parts)
    assert caught.value.got == f"{num_parts} parts"


def test_metis_refuses_too_many_parts_before_it_starts() -> None:
    with pytest.raises(InputError, match="as many parts"):
        MetisPartitioner().partition_nodes(topology_of(3, []), 4)


def test_names_and_options() -> None:
    assert make_partitioner("metis-edges") == MetisPartitioner(balance="edges")
    assert make_partitioner("metis", {"balance": "both", "seed": 3}) == MetisPartitioner(balance="both", seed=3)
    assert make_partitioner("two-level", {"chunks": 7}).cache_key.startswith(
        "two-level-chunks=7-first=metis-balance=both"
    )
    assert len({method.cache_key for method in METHODS.values()}) == len(METHODS)


def test_the_label_leaves_out_what_does_not_change_the_partition() -> None:
    assert MetisPartitioner(memory_bytes=1 << 40).cache_key == MetisPartitioner().cache_key
    assert MetisPartitioner(seed=1).cache_key != MetisPartitioner().cache_key
    assert chunked_by_range(3).cache_key == "two-level-chunks=3-first=range-balance=nodes"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mettis", {}, "did you mean metis"),
        ("metis", {"balanse": "edges"}, "did you mean balance"),
        ("metis", {"balance": "edge"}, "did you mean edges"),
        ("range", {"balance": "both"}, "one of edges, nodes"),
        ("metis", {"imbalance": 0.0}, "0.001"),
        ("metis", {"imbalance": float("nan")}, "nan"),
        ("metis", {"seed": -1}, "-1"),
        ("metis", {"seed": "x"}, "whole number"),
        ("two-level", {"chunks": 0}, "chunks"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_partitioner(name, options)
    assert words in str(caught.value)


def test_on_real_data_metis_cuts_less_than_ranges_and_these_less_than_hash() -> None:
    topology = og.load("wordnet").topology
    metis, ranges, hashed = (
        measure_quality(topology, METHODS[name].partition_nodes(topology, 4)) for name in ("metis", "range", "hash")
    )
    assert 3 * metis.edge_cut < ranges.edge_cut
    assert 2 * ranges.edge_cut < hashed.edge_cut
    assert metis.replication_factor < 1.2 < ranges.replication_factor < hashed.replication_factor
    assert metis.node_balance <= 1.031
