"""A run that is saved under one strategy goes on under any other, on another number of workers, to the same curve."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import outgrow as og
from outgrow.app.strategy_registry import STRATEGIES
from outgrow.graph.store.reader import write_store
from planted import model_of, planted
from suites.handover import EPOCHS, HOT, SAVED, TASKS, Begun, Handover, hand_over
from suites.sessions import Result, graph_of, largest_step

CLOSE = 1e-8
BEST = {"whole": 4, "batches": 6, "within": 5}
"""The best epoch of each exact task: one before the handover, one after it, and one in which it takes place."""
MIXED = ("mixed", "mixed within")
CHANGES = ((2, 3), (2, 1), (1, 2))
"""Numbers of workers before and after."""
MORE_CHANGES = (*CHANGES, (2, 2), (1, 4), (3, 2), (4, 3))


class Found(NamedTuple):
    """What came of handovers, and the folder of their files."""

    results: dict[Handover, Result]
    folder: Path

    def of(self, task: str) -> dict[Handover, Result]:
        return {each: result for each, result in self.results.items() if each.begun.task == task}

    def val_scores(self, handover: Handover) -> list[tuple[int, float]]:
        return val_scores(self.folder / handover.name)


def val_scores(folder: Path) -> list[tuple[int, float]]:
    """Each epoch and its score, as files of a run have them."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["val_score"]) for line in lines]


def pairs(task: str) -> list[tuple[str, str]]:
    """Who begins and who ends."""
    every = product(TASKS[task].ways, repeat=2)
    return [pair for pair in every if task in BEST or HOT in pair]


def handovers(task: str, chosen: Iterable[tuple[tuple[str, str], tuple[int, int]]]) -> list[Handover]:
    return [Handover(Begun(task, before, first), after, then) for (before, after), (first, then) in chosen]


SOME = [each for task in TASKS for each in handovers(task, zip(pairs(task), cycle(CHANGES), strict=False))]
EVERY = [each for task in TASKS for each in handovers(task, product(pairs(task), MORE_CHANGES))]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("handover") / "planted.store"
    write_store(graph_of(planted()), folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SOME, marks=pytest.mark.timeout(900)),
        pytest.param(EVERY, marks=(pytest.mark.slow, pytest.mark.timeout(3600))),
    ],
    ids=["some", "every"],
)
def found(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("runs")
    return Found(hand_over(request.param, store, folder), folder)


def test_every_strategy_takes_part() -> None:
    assert TASKS["whole"].ways.keys() == STRATEGIES.keys()
    sampling = {name for name, strategy in STRATEGIES.items() if strategy.uses_minibatches}
    assert TASKS["batches"].ways.keys() == TASKS["within"].ways.keys() == sampling


@pytest.mark.parametrize("name", BEST)
def test_it_ends_as_a_run_that_was_left_alone(name: str, found: Found, store: Path, tmp_path: Path) -> None:
    task, results = TASKS[name], found.of(name)
    strategy = og.Full() if name == "whole" else og.Sampled()
    options: dict[str, Any] = {"config": task.config, "strategy": strategy, "progress": False}
    alone = og.train(og.load(store), model_of(task.kind, seed=1), out=tmp_path / "alone", **options)
    assert alone.summary["best_epoch"] == BEST[name]
    assert {(each.begun.way, each.way) for each in results} == {*product(task.ways, repeat=2)}
    steps = {each: largest_step(result.summary["loss"], alone.loss) for each, result in results.items()}
    assert not {each: step for each, step in steps.items() if not step < CLOSE}
    for handover, result in results.items():
        assert len(result.val_scores) == EPOCHS - SAVED, handover  # the others were not trained again
        assert found.val_scores(handover) == val_scores(tmp_path / "alone"), handover
        for key in ("best_epoch", "val_accuracy", "test_accuracy"):
            assert result.summary[key] == alone.summary[key], (handover, key)
        assert result.summary["strategy"] == task.ways[handover.way].name
        assert result.summary["workers"] == handover.workers
        assert result.summary["exact"] is True
        if handover.way != "offload":  # rows of all nodes are more than it holds
            torch.testing.assert_close(result.logits, alone.logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MIXED)
def test_hot_nodes_come_and_go(name: str, found: Found) -> None:
    results = found.of(name)
    curves: dict[Begun, list[list[float]]] = {}
    for handover, result in results.items():
        loss = result.summary["loss"]
        assert len(loss) == EPOCHS, handover
        assert all(map(math.isfinite, loss)), handover
        assert len(result.val_scores) == EPOCHS - SAVED, handover
        assert [epoch for epoch, _ in found.val_scores(handover)] == [*range(1, EPOCHS + 1)], handover
        if handover.way == HOT:
            assert result.summary["exact"] is False, handover
        else:
            curves.setdefault(handover.begun, []).append(loss)
    assert any(len(same) > 1 for same in curves.values())
    for begun, (first, *others) in curves.items():  # from there on all but hot nodes give one curve
        assert begun.way == HOT
        assert all(largest_step(other, first) < CLOSE for other in others), begun


@pytest.mark.parametrize("name", MIXED)
def test_a_run_that_had_hot_nodes_does_not_claim_to_be_exact(name: str, found: Found) -> None:
    exact = {each: result.summary["exact"] for each, result in found.of(name).items()}
    assert not any(exact.values())
