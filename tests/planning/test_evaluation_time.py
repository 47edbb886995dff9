"""Seconds of an evaluation: forward alone, of what the run evaluates, and counted in the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import outgrow as og
from outgrow.app.plan.question import PlanSite, query_for_known_graph
from outgrow.engine.shard import FullGraphShard
from outgrow.inference.needed_rows import find_needed_rows
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.needed_rows import NeededShares, evaluated_edge_bytes, evaluated_shares
from outgrow.planning.planner import PlannerQuery, cost_model_for, make_plan
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig

BATCHES = {"batch_size": 1024, "fanout": (10, 10)}


def _query(**options: Any) -> PlannerQuery:
    config = TrainConfig().with_options(**options)
    machine = find_profile("2-core-cpu")
    # Of epochs that keep no aggregate, so that an evaluation does a part of what they do.
    model = {"layers": 2, "hidden": 64, "input_dropout": 0.5}
    return query_for_known_graph("arxiv", "sage", model, config, PlanSite(machine, [WorkerLayout(workers=2)]))


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (Full(), {}),
        (TensorParallel(), {}),
        (Offload(chunks=4), {}),
        (Sampled(), BATCHES),
        (SplitParallel(), BATCHES),
        (Sampled(), {**BATCHES, "eval": "sampled"}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_what_is_evaluated_takes_time(strategy: Strategy, options: dict[str, Any]) -> None:
    query = _query(**options)
    found = estimate_strategy(strategy, query.work, cost_model_for(query, query.layouts[0]))
    assert found.evaluation_seconds > 0
    if not strategy.uses_minibatches:
        assert 0.15 < found.evaluation_seconds / found.epoch_seconds < 0.6
    unscored = replace(query.work, evaluation=("none", "none"))
    assert estimate_strategy(strategy, unscored, cost_model_for(query, query.layouts[0])).evaluation == ()


def test_evaluations_count_in_the_choice() -> None:
    often, rarely = _query(), _query(eval_every=10)
    for query, share in ((often, 1.0), (rarely, 0.1)):
        chosen = make_plan(query).chosen_candidate
        assert chosen is not None
        assert chosen.estimate is not None
        expected = chosen.estimate.epoch_seconds + share * chosen.estimate.evaluation_seconds
        assert chosen.seconds == pytest.approx(expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_plans_expect_the_rows_and_edges_that_full_computes(workers: int) -> None:
    graph = og.load("papers100M@0.0005")
    graph = replace(graph, split=replace(graph.split, val=graph.split.val[:50]))
    model = og.nn.SAGE(graph.num_features, 16, graph.num_classes, layers=3, input_dropout=0.5)
    work = make_workload(graph, model)
    shares = evaluated_shares(work, workers)
    needed = find_needed_rows(model, FullGraphShard(graph.topology), graph.split.val.sort().values)
    assert needed is not None
    if workers > 1:
        assert [each.rows < 1 for each in shares] == [False, False, True]
        assert shares[-1].rows == pytest.approx(50 / graph.num_nodes)
        return
    held = 0
    assert any(rows is not None for rows in needed.layers[:-1])
    for rows, share in zip(needed.layers, shares, strict=True):
        if rows is None:
            assert share == NeededShares()
            continue
        edges = rows.block.edges
        assert share.rows * graph.num_nodes == pytest.approx(edges.num_dst)
        assert share.edges * graph.num_edges == pytest.approx(edges.num_edges)
        assert share.sources * graph.num_nodes == pytest.approx(edges.num_src)
        assert rows.block.edge_ids is not None
        held += edges.indices.nbytes + rows.block.edge_ids.nbytes
    # Weights of edges are held too, as soon as a layer has computed them.
    assert held <= evaluated_edge_bytes(work, 1, graph.num_edges) <= 2 * held
