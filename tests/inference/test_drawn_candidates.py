"""Links are ranked among candidates that are drawn for each query: the same on any worker, and as good as all."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from inference.ranking_worlds import WIDTH, Fact
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.link_triples import LinkTriples
from outgrow.inference import link_ranking
from outgrow.inference.link_ranking import KnownLinks, LinkRanker
from outgrow.inference.link_ranks import LinkRanks
from outgrow.inference.scored_rows import StorageRows, TensorRows
from outgrow.nn import DistMult
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.runtime.storage.row_storage import InMemoryRows
from support import normal, topology_of
from thread_group import run_in_threads

NODES, ENDS, DRAWN = 300, (0, 5, 300), 40
"""Two types of nodes, of which the first has fewer than are drawn."""
OUT = normal(NODES, WIDTH, seed=3, dtype=torch.float32)
LINKS = [(at % 300, at % 2, 5 + at * 7 % 295) for at in range(60)] + [(at + 10, 0, at % 5) for at in range(20)]
KNOWN = LINKS + [(0, 0, node) for node in range(5, 200)]


def triples(facts: list[Fact]) -> LinkTriples:
    head, relation, tail = (torch.tensor(each) for each in zip(*facts, strict=True))
    return LinkTriples(head, tail, relation)


def ranker(share: GraphShard, drawn: int | None = DRAWN) -> LinkRanker:
    torch.manual_seed(0)
    answers = KnownLinks(triples(KNOWN), NODES, directed=True)
    return LinkRanker(share, DistMult(WIDTH, 2), triples(LINKS), answers, torch.tensor(ENDS), num_drawn=drawn)


def alone(drawn: int | None = DRAWN) -> LinkRanks:
    return ranker(FullGraphShard(topology_of(NODES, [])), drawn).rank_links(OUT)


def on_part(place: WorkerContext) -> LinkRanks:
    owner = torch.arange(NODES) * 7 % NODES % place.comm.size
    share = PartitionShard(topology_of(NODES, []), owner, place.comm)
    ranking = ranker(share)
    # Rows of the nodes that the ranking reads, and of no others, are enough.
    nodes = ranking.find_scored_nodes()
    return ranking.rank_links(TensorRows(nodes, OUT[nodes]))


def test_ranks_are_the_same_on_any_number_of_workers() -> None:
    expected = alone()
    for workers in (2, 3):
        for found in run_in_threads(partial(on_part), workers):
            assert torch.equal(found.rank, expected.rank)
            assert found.compute_metrics() == expected.compute_metrics()


def test_ranks_do_not_depend_on_chunks_or_where_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = alone().rank
    monkeypatch.setattr(link_ranking, "QUERIES", 7)
    share = FullGraphShard(topology_of(NODES, []))
    stored = StorageRows(torch.arange(NODES), InMemoryRows(OUT.clone()))
    assert torch.equal(ranker(share).rank_links(stored).rank, expected)


def test_small_types_are_ranked_whole() -> None:
    whole, drawn = alone(None).rank, alone().rank
    # Tails of the last links are of the small type, of which all nodes are candidates.
    assert torch.equal(drawn[60:80], whole[60:80])
    assert not torch.equal(drawn[:60], whole[:60])


def test_known_answers_are_no_candidates() -> None:
    """All but 100 nodes answer the first query, so its rank is at most what those allow."""
    number = torch.tensor([0])
    ranking = ranker(FullGraphShard(topology_of(NODES, [])), 200)
    [(_, asked)] = [each for each in ranking._iterate_queries(0, 5, 300) if 0 in each[0].tolist()]
    drawn = ranking._list_candidates(0, number, asked.select_rows(number), (5, 300))
    assert drawn is not None
    others = drawn[drawn != LINKS[0][2]]
    assert len(others) > 20
    assert not {*others.tolist()} & {tail for head, relation, tail in KNOWN if (head, relation) == (0, 0)}


def test_ranks_are_a_sample_of_all() -> None:
    """Shares of better candidates agree within what draws explain."""
    whole, drawn = alone(None), alone()
    shares = (whole.rank[:60] - 1) / 294
    found = (drawn.rank[:60] - 1) / DRAWN
    assert abs((found - shares).mean().item()) < 4 * 0.5 / math.sqrt(60 * DRAWN)


def test_the_standard_error_is_stated() -> None:
    found = alone()
    reciprocal = (1 / found.rank).view(2, -1).mean(0)
    expected = reciprocal.std().item() / math.sqrt(len(LINKS))
    assert found.compute_metrics()["mrr_standard_error"] == pytest.approx(expected)
    assert found.describe(["a", "b"])["by_relation"]["a"]["mrr_standard_error"] > 0
    assert "mrr_standard_error" not in alone(None).compute_metrics()
