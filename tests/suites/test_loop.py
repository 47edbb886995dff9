"""A run with a schedule, clipping, accumulation and averages is the same under all strategies, on any workers."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

import outgrow as og
from outgrow.graph.store.reader import write_store
from planted import model_of, planted
from suites.handover import LOOP_TASKS, Begun, Handover, hand_over
from suites.loop_ways import EPOCHS, MUTANTS, WAYS, plans
from suites.sessions import Result, graph_of, largest_step, train_in_turn
from thread_group import run_in_threads

CLOSE, VISIBLE = 1e-8, 1e-5
PAIRS = {
    "whole in a loop": (("full", 2, "offload", 3), ("offload", 2, "tensor", 1), ("tensor", 1, "full", 2)),
    "within a loop": (("sampled", 2, "split", 3), ("split", 2, "migrate", 1), ("orchestrate", 1, "sampled", 2)),
}
SOME = [
    Handover(Begun(task, way, first), after, then) for task, pairs in PAIRS.items() for way, first, after, then in pairs
]
EVERY = [
    Handover(Begun(task, way, first), after, then)
    for task, each in LOOP_TASKS.items()
    for way in each.ways
    for after in each.ways
    for first, then in ((2, 3), (2, 1), (1, 2), (3, 4))
]


@cache
def alone(name: str, folder: Path) -> og.Run:
    """The run in a way on one worker, by the simplest strategy of its kind."""
    config, _ = WAYS[name]
    strategy = "full" if config.batch_size is None else "sampled"
    return og.train(og.load(folder), model_of("sage", seed=1), strategy=strategy, config=config, progress=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loop") / "planted.store"
    write_store(graph_of(planted()), folder)
    return folder


def difference(name: str, result: Result, folder: Path) -> float:
    """How far a run is from the one on one worker: its losses, and the scores of averaged weights."""
    run = alone(name, folder)
    scores = abs(result.summary["val_accuracy"] - run.val_accuracy)
    return max(largest_step(result.summary["loss"], run.loss), scores)


@pytest.mark.parametrize("workers", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_strategy_gives_one_run(workers: int, store: Path) -> None:
    results = run_in_threads(partial(train_in_turn, plans=plans(store)), workers)[0]
    assert results.keys() == WAYS.keys()
    for name, result in results.items():
        assert difference(name, result, store) < CLOSE, name
        assert result.summary["best_epoch"] == alone(name, store).summary["best_epoch"], name


@pytest.mark.parametrize(
    "chosen",
    [SOME, pytest.param(EVERY, marks=(pytest.mark.slow, pytest.mark.timeout(3600)))],
    ids=["some", "every"],
)
def test_a_run_goes_on_elsewhere(chosen: list[Handover], store: Path, tmp_path: Path) -> None:
    """Within an epoch too, in the middle of an optimizer step."""
    results = hand_over(chosen, store, tmp_path)
    for handover, result in results.items():
        config = LOOP_TASKS[handover.begun.task].config
        strategy = "full" if config.batch_size is None else "sampled"
        run = _left_alone(handover.begun.task, strategy, store)
        assert len(result.summary["loss"]) == EPOCHS, handover
        assert largest_step(result.summary["loss"], run.loss) < CLOSE, handover
        assert result.summary["val_accuracy"] == run.val_accuracy, handover
        assert result.summary["best_epoch"] == run.summary["best_epoch"], handover


@cache
def _left_alone(task: str, strategy: str, folder: Path) -> og.Run:
    chosen = LOOP_TASKS[task]
    model = model_of(chosen.kind, seed=1)
    return og.train(og.load(folder), model, strategy=strategy, config=chosen.config, progress=False)


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, store: Path) -> None:
    chosen = {way: plan for way, plan in plans(store).items() if way in ("full", "sampled")}
    for way in chosen:
        alone(way, store)
    with MUTANTS[name]() as hits:
        results = run_in_threads(partial(train_in_turn, plans=chosen), 2)[0]
    assert hits.count > 0
    assert max(difference(way, result, store) for way, result in results.items()) > VISIBLE
