"""Metrics of ranks, wrong answers beside links, and products that decide in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.ranking_worlds import WIDTH, WORLDS, World, naive
from outgrow.inference.link_ranks import LINK_METRICS, LinkRanks, measure_separation
from outgrow.ops.candidate_scores import count_products, pair_products, row_norms
from support import normal


def ranks_of(values: list[float], score: list[float], wrong: list[float]) -> LinkRanks:
    rank = torch.tensor(values, dtype=torch.float64)
    return LinkRanks(rank, torch.zeros(len(values) // 2, dtype=torch.int64), torch.tensor(score), torch.tensor(wrong))


def test_figures() -> None:
    figures = ranks_of([1.0, 2.5, 4.0, 10.0, 11.0], [], []).compute_metrics()
    assert list(figures) == [*LINK_METRICS] == ["mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "auc", "ap"]
    assert figures["mrr"] == pytest.approx((1 + 1 / 2.5 + 1 / 4 + 1 / 10 + 1 / 11) / 5, rel=1e-14)
    assert (figures["hits@1"], figures["hits@3"], figures["hits@10"]) == (0.2, 0.4, 0.8)
    assert figures["mean_rank"] == 5.7


FEW_SCORES = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(right=FEW_SCORES, wrong=FEW_SCORES)
def test_separation_is_that_of_the_definitions(right: list[int], wrong: list[int]) -> None:
    auc, ap = measure_separation(torch.tensor(right).float(), torch.tensor(wrong).float())
    pairs = [(mine > its) + (mine == its) / 2 for mine in right for its in wrong]
    assert auc == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    # Precision at the threshold of each right answer: the share of right ones among all that are as high.
    above = [[sum(each >= limit for each in part) for part in (right, wrong)] for limit in right]
    assert ap == pytest.approx(sum(r / (r + w) for r, w in above) / len(right), abs=1e-12)


@pytest.mark.parametrize("name", ["relations of types", "undirected", "with the node asked about", "complex"])
def test_wrong_answers_are_of_the_type_of_the_answer_and_no_known_ones(name: str) -> None:
    world = WORLDS[name]
    ranking = world.ranking()
    facts = {*world.known} | (set() if world.directed else {(t, r, h) for h, r, t in world.known})
    assert [len(each) for each in ranking._wrong_answers] == [len(world.asked)] * 2
    for side, wrong in enumerate(ranking._wrong_answers):
        for (head, relation, tail), other in zip(world.asked, wrong.tolist(), strict=True):
            node, answer = (head, tail) if side == 0 else (tail, head)
            kind = max(t for t in range(len(world.ends) - 1) if world.ends[t] <= answer)
            assert world.ends[kind] <= other < world.ends[kind + 1]
            assert ((node, relation, other) if side == 0 else (other, relation, node)) not in facts
            assert world.rank_self or other != node
    assert any(len({*each.tolist()}) > 10 for each in ranking._wrong_answers)
    # They are drawn by the number of a link, so that a ranking of the first ones has the same.
    fewer = world._replace(asked=world.asked[:7]).ranking()
    assert [each.tolist() for each in fewer._wrong_answers] == [each[:7].tolist() for each in ranking._wrong_answers]


def test_where_every_node_is_an_answer_no_wrong_one_is_drawn() -> None:
    known = [(0, 0, 1), (0, 0, 2)]
    out = torch.arange(12.0).view(3, WIDTH)
    found = World((0, 3), known, known, 1, True, out).ranking().rank_links(out)
    assert found.wrong[:2].isnan().all()
    assert found.wrong[2:].isfinite().all()
    assert 0 <= found.compute_metrics()["auc"] <= 1


def test_figures_by_end_and_relation_are_those_of_their_links() -> None:
    world = WORLDS["complex"]
    found = world.ranking().rank_links(world.out)
    described = found.describe(("a", "b", "c", "d"))
    assert described["links"] == len(world.asked)
    assert {name: described[name] for name in LINK_METRICS} == found.compute_metrics()
    count, expected = len(world.asked), torch.tensor(naive(world))
    assert described["by_end"]["tail"]["mrr"] == pytest.approx((1 / expected[:count]).mean().item())
    assert described["by_end"]["head"]["mrr"] == pytest.approx((1 / expected[count:]).mean().item())
    for number, name in enumerate("abcd"):
        here = torch.tensor([fact[1] == number for fact in world.asked])
        part = described["by_relation"][name]
        assert part["links"] == int(here.sum())
        assert part["mean_rank"] == pytest.approx(expected[here.repeat(2)].double().mean().item())
        assert part["by_end"]["head"]["mean_rank"] == pytest.approx(expected[count:][here].double().mean().item())
    assert "by_relation" not in found.describe(())


@pytest.mark.parametrize("width", [1, 3, 8, 200])
def test_products_in_float32_decide_as_those_in_float64(width: int) -> None:
    """Some rows are a queried one's answer but for the last digit, of which float32 knows nothing."""
    queries, rows = normal(7, width), normal(300, width, seed=1).float()
    rows[100:200] = rows[:100]
    rows[200:] = rows[:100] * (1 + 2.0**-23)
    at = torch.arange(7) * 30
    threshold = pair_products(queries, torch.arange(7), rows, at)
    exact = (queries @ rows.double().T).float()
    torch.testing.assert_close(threshold, exact[torch.arange(7), at], rtol=1e-6, atol=1e-7)
    every = pair_products(queries, torch.arange(7).repeat_interleave(300), rows, torch.arange(300).repeat(7)).view(
        7, 300
    )
    expected = torch.stack([(every > threshold[:, None]).sum(1), (every == threshold[:, None]).sum(1)])
    assert torch.equal(count_products(queries, rows, row_norms(rows), threshold), expected)
    rows[5] = torch.nan
    assert torch.equal(
        count_products(queries, rows, row_norms(rows), threshold)[0] > 0, torch.ones(7, dtype=torch.bool)
    )
