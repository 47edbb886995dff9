"""Mini-batches do not depend on the number of workers: every sampled edge and every feature on a ring is checked."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from outgrow.core.ledger import Kind, Link
from outgrow.runtime.distributed.comm import SingleProcessComm
from pool import run_workers
from suites.ring import BATCHES, CASES, EPOCHS, FEATURES, NEAR, NODES, SHARED_HOST, Record, owner_of, record, records_of

KINDS = ("sage", "gcn")
WORKERS = [1, 2, pytest.param(3, marks=pytest.mark.slow), 4]
ROW_BYTES, ID_BYTES = 16, 8


@cache
def everything(workers: int) -> list[dict[str, Record]]:
    """What each worker saw: one task for each number of workers."""
    return (
        [{name: record(SingleProcessComm(), *case) for name, case in CASES.items()}]
        if workers == 1
        else run_workers(records_of, workers)
    )


def records(workers: int, case: str) -> list[Record]:
    """What each worker saw in one case."""
    return [seen[case] for seen in everything(workers)]


def together(found: list[Record], index: int) -> tuple[list[int], list[set[tuple[int, int]]]]:
    """The seeds and the edges of all workers in one step."""
    each = [worker.seen[index] for worker in found]
    edges = [set().union(*layer) for layer in zip(*(seen.edges for seen in each), strict=True)]
    return sorted(v for seen in each for v in seen.seeds), edges


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_is_the_same_on_any_number_of_workers(workers: int, kind: str) -> None:
    found, [alone] = records(workers, kind), records(1, kind)
    steps = [seen.step for seen in alone.seen]
    assert steps == [(epoch, step) for epoch in range(1, EPOCHS + 1) for step in range(3)]
    for index, step in enumerate(steps):
        assert all(worker.seen[index].step == step for worker in found)
        seeds, edges = together(found, index)
        assert seeds == sorted(alone.seen[index].seeds)
        assert edges == alone.seen[index].edges


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_edges_are_those_of_the_ring_and_as_many_as_asked_for(workers: int, kind: str) -> None:
    assert BATCHES.fanout is not None
    near = range(kind == "sage", NEAR + 1)  # a self-loop is a neighbour at distance 0
    for seen in (seen for worker in records(workers, kind) for seen in worker.seen):
        reached = {*seen.seeds}
        for fanout, edges in zip(BATCHES.fanout, reversed(seen.edges), strict=True):
            assert {dst for _, dst in edges} == reached
            assert len(edges) == fanout * len(reached)
            assert all((dst - src) % NODES in near for src, dst in edges)
            reached |= {src for src, _ in edges}
        assert {*seen.rows} == reached
        assert len(seen.rows) == len(reached)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_every_row_of_the_input_is_that_of_its_node(workers: int, kind: str) -> None:
    for seen in (seen for worker in records(workers, kind) for seen in worker.seen):
        assert torch.equal(seen.features, FEATURES[seen.rows])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_the_ledger_counts_what_a_walk_over_the_batches_counts(workers: int, kind: str) -> None:
    for rank, worker in enumerate(records(workers, kind)):
        remote = sum(owner_of(v, workers) != rank for seen in worker.seen for v in seen.rows)
        answered = sum(
            owner_of(v, workers) == rank
            for other, record in enumerate(records(workers, kind))
            if other != rank
            for seen in record.seen
            for v in seen.rows
        )
        assert worker.counters["remote_rows"] == remote
        assert worker.counters["rows_loaded"] == sum(len(seen.rows) for seen in worker.seen)
        assert worker.counters["sampled_edges"] == sum(len(edges) for seen in worker.seen for edges in seen.edges)
        assert worker.crossed.get((Link.NETWORK, Kind.FEATURES), 0) == answered * ROW_BYTES
        # Each message but the last of an epoch tells how many rows the next request is for.
        told = (len(worker.seen) - EPOCHS) * (workers - 1)
        assert worker.crossed.get((Link.NETWORK, Kind.IDS), 0) == (remote + told) * ID_BYTES
        assert (remote > 0) == (workers > 1)
        assert worker.seen[0].seeds


@pytest.mark.parametrize("case", ["cache by degree", "cache by presampling"])
@pytest.mark.parametrize("workers", [2, 4])
def test_caches_change_what_travels_and_nothing_else(workers: int, case: str) -> None:
    for cached, bare in zip(records(workers, case), records(workers, "sage"), strict=True):
        assert same(cached, bare)
        hits, misses = cached.counters["cache_hits"], cached.counters["cache_misses"]
        assert hits > 0
        assert hits + misses == bare.counters["remote_rows"]
        assert cached.counters["remote_rows"] == misses


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_of_one_host_read_rows_themselves(workers: int) -> None:
    for shared, apart in zip(records(workers, SHARED_HOST), records(workers, "sage"), strict=True):
        assert same(shared, apart)
        assert shared.counters["remote_rows"] == apart.counters["local_peer_rows"] == 0
        assert shared.counters["local_peer_rows"] == apart.counters["remote_rows"] > 0
        assert {kind for _, kind in shared.crossed} == {Kind.PARAMETERS, Kind.METRICS}  # gradients and losses


@pytest.mark.parametrize("case", ["one thread", "four threads"])
@pytest.mark.parametrize("workers", [1, 2])
def test_threads_and_how_far_they_are_ahead_change_nothing(workers: int, case: str) -> None:
    assert all(map(same, records(workers, case), records(workers, "sage")))


def same(one: Record, other: Record) -> bool:
    """Whether two workers saw the same."""
    rows = zip(one.seen, other.seen, strict=True)
    return all(a[:4] == b[:4] and torch.equal(a.features, b.features) for a, b in rows)
