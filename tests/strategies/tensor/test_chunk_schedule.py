"""Chunks of both directions: what they read, what they make, and who owns it."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.graph.topology import Topology
from outgrow.strategies.tensor.chunk_schedule import (
    AggregationChunk,
    ChunkGroups,
    assign_owners,
    chunk_ends,
    first_chunk_reading,
    make_schedules,
)
from support import destinations_of, random_topology, topologies, topology_of

CPU = torch.device("cpu")
MANY = random_topology(200, 2_000)


def require_course(chunks: list[AggregationChunk], owner: torch.Tensor, own: torch.Tensor, workers: int) -> None:
    """Every node is read and made once; a chunk reads nothing that has not come; rows are those of their owners."""
    num_nodes, come = len(owner), set[int]()
    assert [node for chunk in chunks for node in range(chunk.first, chunk.last)] == list(range(num_nodes))
    for chunk in chunks:
        assert not come & set(chunk.read_group.nodes.tolist())
        come |= set(chunk.read_group.nodes.tolist())
        assert set(chunk.indices.tolist()) <= come
        assert sorted(chunk.output_group.nodes.tolist()) == list(range(chunk.first, chunk.last))
        for party in (chunk.read_group, chunk.output_group):
            assert owner[party.nodes].tolist() == [rank for rank in range(workers) for _ in range(party.sizes[rank])]
            mine = party.nodes[owner[party.nodes] == owner[own[0]]] if len(own) else party.nodes[:0]
            assert own[party.own_rows].tolist() == mine.tolist()
    assert come == set(range(num_nodes))


@given(topology=topologies(), chunks=st.integers(1, 9), workers=st.integers(1, 4), rank=st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_any_graph(topology: Topology, chunks: int, workers: int, rank: int) -> None:
    view = topology.with_self_loops
    owner = assign_owners(view.indptr, view.indices, chunks, workers)
    own = (owner == min(rank, workers - 1)).nonzero()[:, 0]
    lanes = make_schedules(view.block.edges, chunks, ChunkGroups(owner, own, workers, (CPU, CPU)))
    for lane in lanes:
        require_course(lane, owner, own, workers)


def test_chunks_hold_the_edges_of_their_rows() -> None:
    edges, owner = MANY.block.edges, torch.zeros(200, dtype=torch.int32)
    forward, backward = make_schedules(edges, 5, ChunkGroups(owner, MANY.nodes, 1, (CPU, CPU)))
    dst = destinations_of(edges)
    for chunk in forward:
        assert chunk.edge is None
        here = slice(chunk.first_edge, chunk.first_edge + len(chunk.indices))
        assert chunk.indices.tolist() == edges.indices[here].tolist()
        assert chunk.indptr.diff().tolist() == [int((dst == v).sum()) for v in range(chunk.first, chunk.last)]
    for chunk in backward:
        assert chunk.edge is not None
        number = chunk.edge.long()
        assert chunk.indices.tolist() == dst[number].tolist()
        assert edges.indices[number].tolist() == [
            v
            for v, count in zip(range(chunk.first, chunk.last), chunk.indptr.diff().tolist(), strict=True)
            for _ in range(count)
        ]


def test_of_what_a_chunk_is_the_first_to_read_every_worker_owns_an_equal_part() -> None:
    for chunks in (1, 3, 8):
        owner, ends = assign_owners(MANY.indptr, MANY.indices, chunks, 3), chunk_ends(MANY.indptr, chunks)
        reader = first_chunk_reading(MANY.indptr, MANY.indices, ends, 200)
        for number in range(chunks):
            counts = torch.bincount(owner[reader == number], minlength=3)
            assert counts.max() - counts.min() <= 1


def test_the_first_reader_is_the_first() -> None:
    topology = topology_of(6, [(0, 5), (0, 1), (3, 4), (5, 0)])
    ends = [0, 2, 4, 6]
    assert first_chunk_reading(topology.indptr, topology.indices, ends, 6).tolist() == [0, 2, 2, 2, 2, 0]


def test_chunks_have_about_as_many_rows_and_edges() -> None:
    ends = chunk_ends(MANY.indptr, 4)
    cost = [int(MANY.indptr[last] - MANY.indptr[first]) + last - first for first, last in pairwise(ends)]
    assert max(cost) - min(cost) <= 2 * int(MANY.indptr.diff().max() + 1)
    assert chunk_ends(torch.zeros(1, dtype=torch.int64), 4) == [0, 0]
    assert chunk_ends(torch.tensor([0, 1, 1]), 7) == [0, 1, 2]
