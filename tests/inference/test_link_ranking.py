"""Ranks of links against a filtered ranking by loops, on one worker and on several."""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import product
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.ranking_mutants import MUTANTS
from inference.ranking_worlds import ROUNDED, WIDTH, WORLDS, World, naive, worlds
from outgrow.engine.shard import PartitionShard
from outgrow.inference import link_ranking, query_scores
from outgrow.inference.scored_rows import StorageRows
from outgrow.nn import DistMult
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.runtime.storage.row_storage import InMemoryRows
from pool import run_workers
from support import topology_of


@given(
    world=worlds(),
    chunk_bytes=st.sampled_from([1, 200, 64 << 20]),
    queries=st.sampled_from([1, 3, 1024]),
    stored=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_ranks_are_those_of_loops(world: World, chunk_bytes: int, queries: int, *, stored: bool) -> None:
    rows = StorageRows(torch.arange(len(world.out)), InMemoryRows(world.out)) if stored else world.out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_ranking, "QUERIES", queries)
        for module in (link_ranking, query_scores):
            patch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        found = world.ranking().rank_links(rows)
    assert found.rank.dtype == torch.float64
    assert found.rank.tolist() == naive(world)


@pytest.mark.parametrize("name", WORLDS)
def test_ranks_of_many_links_are_those_of_loops(name: str) -> None:
    world = WORLDS[name]
    expected = naive(world)
    assert world.ranking().rank_links(world.out).rank.tolist() == expected
    assert any(rank % 1 for rank in expected)


@pytest.mark.parametrize("name", ROUNDED)
def test_nodes_that_are_alike_tie_however_products_are_rounded(name: str) -> None:
    world = ROUNDED[name]
    expected = naive(world)
    assert world.ranking().rank_links(world.out).rank.tolist() == expected
    assert any(rank % 1 for rank in expected)


DEALS = {
    "scattered": lambda size: torch.arange(60) * 7 % 60 % size,
    "ranges": lambda size: torch.arange(60) * size // 60,
    "almost all on one": lambda size: torch.where(torch.arange(60) == 30, 0, size - 1),
}
Found = dict[tuple[str, str, int], Tensor]


def on_worker(place: WorkerContext, chunks: tuple[int, ...]) -> Found:
    """The ranks that a worker has, by world, deal and size of chunks."""
    found = {}
    for chunk_bytes, (name, world) in product(chunks, (WORLDS | ROUNDED).items()):
        topology = topology_of(60, [])
        for deal, owner in DEALS.items():
            share = PartitionShard(topology, owner(place.comm.size), place.comm)
            with patch.object(link_ranking, "CHUNK_BYTES", chunk_bytes):
                found[name, deal, chunk_bytes] = world.on_part(share).rank
    return found


@cache
def by_workers(workers: int) -> list[Found]:
    return run_workers(partial(on_worker, chunks=(2000, 64 << 20)), workers)


def differing(workers: int, name: str, world: World) -> list[tuple[str, str, int]]:
    """Where some worker does not find the ranks that one alone finds."""
    alone = world.ranking().rank_links(world.out).rank
    found = [(key, ranks) for seen in by_workers(workers) for key, ranks in seen.items() if key[0] == name]
    assert len(found) == workers * len(DEALS) * 2
    return [key for key, ranks in found if not torch.equal(ranks, alone)]


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_together_find_the_ranks_of_one(workers: int, name: str) -> None:
    assert differing(workers, name, WORLDS[name]) == []


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_agree_on_ties_however_products_are_rounded(workers: int, name: str) -> None:
    assert differing(workers, name, ROUNDED[name]) == []


def test_nothing_asked_is_no_figure() -> None:
    world = WORLDS["relations of types"]._replace(asked=[])
    figures = world.ranking().rank_links(world.out).compute_metrics()
    assert all(math.isnan(value) for value in figures.values())


def test_what_is_known_is_no_competitor_whatever_its_part() -> None:
    """Nodes 1 and 2 score above the answer 3, of which 1 is a known tail of node 0."""
    out = torch.tensor([[1.0, 0, 0, 0], [9, 0, 0, 0], [8, 0, 0, 0], [7, 0, 0, 0]], dtype=torch.float64)
    world = World((0, 4), [(0, 0, 1), (0, 0, 3)], [(0, 0, 3)], 1, True, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistMult, "link_queries", lambda self, x, relation, **options: x)
        tail, head = world.ranking().rank_links(out).rank.tolist()
    assert (tail, head) == (2.0, 3.0)


def test_a_model_that_gives_no_numbers_is_last() -> None:
    world = World(
        ends=(0, 9),
        known=[(0, 0, 1)],
        asked=[(0, 0, 1)],
        relations=0,
        directed=True,
        out=torch.full((9, WIDTH), torch.nan, dtype=torch.float64),
    )
    assert world.ranking().rank_links(world.out).rank.tolist() == [8, 8]


@cache
def ranks_of_transe() -> list[float]:
    return naive(WORLDS["transe"])


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    world = WORLDS["transe"]
    with MUTANTS[name]():
        assert world.ranking().rank_links(world.out).rank.tolist() != ranks_of_transe()
