"""Waves as records: what is taken out of them, and the way to bytes and back."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.strategies.offload.wave import EVICTED, LOADED, RowList, Wave, pack_wave, unpack_wave

COUNTS = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


def held_of(counts: tuple[int, ...], seed: int) -> RowList:
    random, size = np.random.default_rng(seed), sum(counts)
    row, node = (torch.from_numpy(random.integers(0, 99, size)) for _ in range(2))
    at = torch.from_numpy(random.permutation(size).astype(np.int32))
    return RowList(counts, row, node, at, torch.from_numpy(random.integers(0, 8, size, dtype=np.uint8)))


def wave_of(
    loads: RowList, remote: RowList, sent: RowList, *, weight: Tensor | None = None, relation: Tensor | None = None
):
    indices = torch.tensor([4, 0, 4], dtype=torch.int32)
    edges = Edges(indptr=torch.tensor([0, 1, 1, 3]), indices=indices, num_src=5, relation=relation, weight=weight)
    return Wave(loads, remote, sent, 7, 10, torch.tensor([20, 21, 40]), edges)


def rows_of(held: RowList) -> list[tuple[int, ...]]:
    """Owner, row, node, place and turn of each."""
    owners = np.repeat(np.arange(len(held.counts)), held.counts).tolist()
    return list(zip(owners, *(part.tolist() for part in held[1:]), strict=True))


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


@given(COUNTS, st.integers(0, 50))
def test_those_of_one_worker(counts: tuple[int, ...], seed: int) -> None:
    held = held_of(counts, seed)
    for owner in range(len(counts)):
        part = held.of_owner(owner)
        assert part.counts == (counts[owner],)
        assert [(owner, *row[1:]) for row in rows_of(part)] == [row for row in rows_of(held) if row[0] == owner]


@given(COUNTS, st.integers(0, 50), st.sampled_from([LOADED, EVICTED]))
def test_those_of_one_turn(counts: tuple[int, ...], seed: int, turn: int) -> None:
    held = held_of(counts, seed)
    only = held.filter_event(turn)
    assert len(only.counts) == len(counts)
    assert rows_of(only) == [row for row in rows_of(held) if row[-1] & turn]
    assert rows_of(only.filter_event(turn)) == rows_of(only)


def test_a_route_counts_what_turns() -> None:
    """To each worker what arrives at it, and back what leaves."""
    sent, remote = held_of((3, 0, 2), 1), held_of((0, 4, 1), 2)
    sent.event.copy_(torch.tensor([LOADED, EVICTED, LOADED | EVICTED, LOADED, 0], dtype=torch.uint8))
    remote.event.copy_(torch.tensor([EVICTED, EVICTED, 0, LOADED, LOADED], dtype=torch.uint8))
    wave = wave_of(held_of((5,), 0), remote, sent)
    assert wave.split_sizes_at(LOADED) == ((2, 0, 1), (0, 1, 1))
    assert wave.split_sizes_at(EVICTED) == ((0, 2, 0), (2, 0, 0))


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("relation", [None, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("weight", [None, torch.float32])
def test_there_and_back(weight: torch.dtype | None, relation: torch.dtype | None, empty: bool) -> None:
    counts = itertools.repeat((0, 0)) if empty else iter([(3, 2), (0, 7), (70, 1)])
    wave = wave_of(
        *(held_of(next(counts), seed) for seed in range(3)),
        weight=None if weight is None else torch.tensor([0.5, 1.5, 2.5], dtype=weight),
        relation=None if relation is None else torch.tensor([2, -1, 0], dtype=relation),
    )
    form, given_bytes = pack_wave(wave)
    assert given_bytes.dtype == torch.uint8
    assert len(given_bytes) == form.num_bytes
    again = unpack_wave(form, given_bytes)
    assert (again.first, again.last, again.edges.num_src) == (7, 10, 5)
    for one, other in ((getattr(wave, name), getattr(again, name)) for name in ("loads", "remote", "sent")):
        assert one.counts == other.counts
        assert all(map(same, one[1:], other[1:]))
    assert same(wave.start, again.start)
    for name in ("indptr", "indices", "relation", "weight"):
        assert same(getattr(wave.edges, name), getattr(again.edges, name)), name


def test_a_wave_without_edges_and_rows_that_lie_anywhere() -> None:
    none = Edges(indptr=torch.zeros(1, dtype=torch.int64), indices=torch.empty(0, dtype=torch.int32), num_src=3)
    held = held_of((4, 0), 5)
    strided = held._replace(row=torch.arange(8)[::2])
    wave = Wave(strided, held, held, 2, 2, torch.empty(0, dtype=torch.int64), none)
    again = unpack_wave(*pack_wave(wave))
    assert rows_of(again.loads) == rows_of(strided)
    assert again.edges.num_edges == again.edges.num_dst == 0
    assert (again.first, again.last, again.edges.num_src) == (2, 2, 3)


def test_what_was_unpacked_lies_in_the_bytes() -> None:
    """So that what was read is not held twice."""
    form, given_bytes = pack_wave(wave_of(*(held_of((3, 2), seed) for seed in range(3))))
    wave = unpack_wave(form, given_bytes)
    parts = [*wave.loads[1:], *wave.remote[1:], *wave.sent[1:], wave.start, wave.edges.indptr, wave.edges.indices]
    assert {part.untyped_storage().data_ptr() for part in parts} == {given_bytes.untyped_storage().data_ptr()}
    assert all(part.storage_offset() * part.itemsize % 64 == 0 for part in parts)


def test_places_in_the_buffer_may_grow_after_a_wave_was_packed() -> None:
    form, given_bytes = pack_wave(wave_of(*(held_of((1,), seed) for seed in range(3))))
    assert unpack_wave(form._replace(num_src=9), given_bytes).edges.num_src == 9


def test_a_block_of_a_range_and_one_of_scattered_nodes() -> None:
    wave = wave_of(*(held_of((0,), seed) for seed in range(3)))
    src_nodes, src_degree = torch.arange(5) + 30, torch.arange(5).double()
    dst_degree = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    scattered = wave.make_block(torch.tensor([3, 5, 9]), src_nodes, src_degree, dst_degree)
    assert scattered.edges is wave.edges
    assert scattered.first_edge == 0
    assert same(scattered.edge_ids, torch.tensor([20, 40, 41]))
    assert same(scattered.src_nodes, src_nodes)
    assert same(scattered.src_degree, src_degree)
    assert same(scattered.dst_nodes, torch.tensor([3, 5, 9]))
    assert same(scattered.dst_degree, dst_degree)
    joined = replace(wave, start=torch.tensor([20, 21, 21]), edges=replace(wave.edges))
    following = joined.make_block(torch.tensor([3, 4, 5]), src_nodes, src_degree, dst_degree)
    assert following.edge_ids is None
    assert following.first_edge == 20
