"""Links that a graph comes with are trained beside, and ranked, as they are: by every strategy, on any workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import pytest

import outgrow as og
from pool import run_workers
from suites.held_out import GRAPHS, MUTANTS, WAYS, graph_of, model_of, plans_of, scores_by_loops
from suites.sessions import Plan, Result, train_in_turn
from thread_group import run_in_threads

Key = tuple[str, str]
"""A way and a graph."""
TOLERANCE = 1e-10
several = pytest.mark.parametrize("workers", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])


def results(plans: Mapping[Key, Plan], workers: int) -> dict[Key, Result]:
    return run_in_threads(partial(train_in_turn, plans=plans), workers)[0]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@cache
def expected(stores: Path) -> dict[Key, Result]:
    """Runs on the same edges with nothing to hold out."""
    return results(plans_of(("full",), stores, given=False), 1)


def differences(found: Result, plain: Result, name: str) -> dict[str, float]:
    """How far a run is from what it should be: losses and output, and the scores of its output."""
    graph = graph_of(name)
    assert graph.held_out_links is not None
    model = model_of(name)
    model.load_state_dict(found.state_dict)
    losses = zip(found.summary["loss"], plain.summary["loss"], strict=True)
    wrong = {"loss": max(abs(ours - theirs) for ours, theirs in losses)}
    for part, links in zip(("val", "test"), graph.held_out_links, strict=True):
        # Nothing is removed from the graph, so these are the rows that were ranked.
        marks = scores_by_loops(graph, og.embed(graph, model), links, model)
        wrong[part] = max(abs(marks[key] - found.summary["scores"][part][key]) for key in marks)
    return wrong


@several
def test_losses_and_scores(workers: int, stores: Path) -> None:
    found = results(plans_of(tuple(WAYS), stores), workers)
    assert found.keys() == {(way, name) for way in WAYS for name in GRAPHS}
    for (way, name), result in found.items():
        wrong = differences(result, expected(stores)["full", name], name)
        assert max(wrong.values()) <= TOLERANCE, (way, name, wrong)
        assert result.summary["train"]["val_links"] == 0.05
        assert result.summary["exact"]
        assert 0 < result.summary["scores"]["test"]["mrr"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_processes_have_what_threads_have(workers: int, stores: Path) -> None:
    plans = plans_of(tuple(WAYS), stores)
    for key, result in run_workers(partial(train_in_turn, plans=plans), workers)[0].items():
        wrong = differences(result, expected(stores)["full", key[1]], key[1])
        assert max(wrong.values()) <= TOLERANCE, (key, wrong)


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, stores: Path) -> None:
    plans = plans_of(("full",), stores)
    with MUTANTS[name]() as hits:
        found = results(plans, 1)
    assert hits.count == len(GRAPHS)
    for (_, graph), result in found.items():
        wrong = differences(result, expected(stores)["full", graph], graph)
        assert max(wrong.values()) > 1e-4, (graph, wrong)
