"""A run does not depend on the number of workers, on who owns which node, or on what is overlapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.graph.store.reader import write_store
from outgrow.strategies.full import Full
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig
from planted import model_of, planted
from pool import run_workers
from suites.invariance import BATCHES, CONFIG, EVERY, KINDS, SAME_BITS, SOME, TWICE, WAYS, plans
from suites.sessions import Plan, Result, graph_of, largest_step, train_in_turn

CLOSE, CLOSE_IN_SINGLE = 1e-8, 1e-5
SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("invariance") / "planted.store"
    write_store(graph_of(planted()), folder)
    return folder


@pytest.fixture(scope="module")
def alone(store: Path) -> Callable[[str, TrainConfig], og.Run]:
    """The run of a kind of model on one worker."""
    graph = og.load(store)
    return cache(lambda kind, config: og.train(graph, model_of(kind, seed=1), config=config, progress=False))


@pytest.mark.parametrize("workers", [2, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 3, 4))])
@pytest.mark.parametrize(
    ("chosen", "epochs"), [(SOME, 10), pytest.param(EVERY, CONFIG.epochs, marks=SLOW)], ids=["some", "every"]
)
def test_curves_accuracies_and_logits(
    chosen: list[tuple[str, str]],
    epochs: int,
    workers: int,
    store: Path,
    alone: Callable[[str, TrainConfig], og.Run],
) -> None:
    results, *others = run_workers(partial(train_in_turn, plans=plans(store, chosen, epochs)), workers)
    again = {name: first for first, name in TWICE.items()}
    assert results.keys() == {*chosen, *again}
    assert not any(others)
    for name, result in results.items():
        kind, way = again.get(name, name)
        run = alone(kind, replace(WAYS[way].config, epochs=epochs))
        assert run.summary["strategy"] == ("full" if WAYS[way].config == CONFIG else "sampled")
        assert result.summary["workers"] == workers
        assert result.summary["exact"] is True
        assert len(run.loss) == epochs
        assert largest_step(result.summary["loss"], run.loss) < CLOSE, (kind, way)
        for key in ("val_accuracy", "test_accuracy", "best_epoch"):
            assert result.summary[key] == run.summary[key], (kind, way)
        assert run.logits is not None
        if WAYS[way].strategy.name == "offload":  # rows of all nodes are more than it holds
            assert result.logits is None
            continue
        torch.testing.assert_close(result.logits, run.logits, rtol=1e-6, atol=1e-6)
    for name, first in again.items():
        require_same_bits(results[name], results[first])
        assert torch.equal(results[name].logits, results[first].logits)
    for one, other in ([results.get((kind, way)) for way in SAME_BITS] for kind in KINDS):
        if one is not None and other is not None:
            require_same_bits(one, other)


def require_same_bits(one: Result, other: Result) -> None:
    assert one.summary["loss"] == other.summary["loss"]
    assert one.val_scores == other.val_scores


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("config", [pytest.param(CONFIG, marks=pytest.mark.slow), BATCHES], ids=["whole", "batches"])
def test_a_run_goes_on_with_other_workers(
    config: TrainConfig, store: Path, alone: Callable[[str, TrainConfig], og.Run], tmp_path: Path
) -> None:
    graph, model = og.load(store), model_of("gat", seed=1)
    for workers, epochs in ((1, 7), (2, 19), (3, CONFIG.epochs)):
        options: dict[str, Any] = {"config": config, "epochs": epochs, "workers": workers, "resume": workers > 1}
        run = og.train(graph, model, out=tmp_path / "run", progress=False, **options)
        assert run.summary["workers"] == workers
        assert len(run.loss) == epochs
    assert largest_step(run.loss, alone("gat", config).loss) < CLOSE
    assert run.test_accuracy == alone("gat", config).test_accuracy
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == CONFIG.epochs


def test_a_run_goes_on_in_chunks_and_back(
    store: Path, alone: Callable[[str, TrainConfig], og.Run], tmp_path: Path, disk: Path
) -> None:
    graph, model = og.load(store), model_of("gat", seed=1)
    chunked, runs = og.Offload(chunks=3, scratch_dir=str(disk)), []
    for strategy, epochs in (("full", 7), (chunked, 19), (Full(), CONFIG.epochs)):
        options: dict[str, Any] = {"config": CONFIG, "epochs": epochs, "strategy": strategy, "resume": bool(runs)}
        runs.append(og.train(graph, model, out=tmp_path / "run", progress=False, **options))
    assert [run.summary["strategy"] for run in runs] == ["full", "offload", "full"]
    assert largest_step(runs[-1].loss, alone("gat", CONFIG).loss) < CLOSE
    assert runs[-1].test_accuracy == alone("gat", CONFIG).test_accuracy


def plans_in_single_precision(
    graph: og.Graph, store: Path, *cases: tuple[str, str], batches: bool = False
) -> dict[tuple[str, str], Plan]:
    """Some 20 steps of named models, each under a partition method."""
    write_store(graph, store)
    found = {}
    for name, partition in cases:
        torch.manual_seed(3)
        model = build_model(name, graph, {"hidden": 16, "dropout": 0.3})
        if batches:
            size = -(-len(graph.split.train) // 3)
            config = TrainConfig(epochs=7, eval_every=7, batch_size=size, fanout=(10, 10))
            found[name, partition] = Plan(store, model, config, Sampled(partition=partition))
        else:
            found[name, partition] = Plan(
                store, model, TrainConfig(epochs=20, eval_every=10), Full(partition=partition)
            )
    return found


def require_one_curve(chosen: dict[tuple[str, str], Plan], *workers: int) -> None:
    """These numbers of workers give what one gives, as far as single precision goes."""
    by_number: list[dict[tuple[str, str], Result]] = [
        run_workers(partial(train_in_turn, plans=chosen), number)[0] for number in (1, *workers)
    ]
    expected, *others = by_number
    for key, right in expected.items():
        for result in (results[key] for results in others):
            assert largest_step(result.summary["loss"], right.summary["loss"]) < CLOSE_IN_SINGLE, key
            for name in ("val_accuracy", "test_accuracy"):
                assert result.summary[name] == pytest.approx(right.summary[name], abs=2e-3)


@pytest.mark.slow
def test_wordnet_in_single_precision(tmp_path: Path) -> None:
    require_one_curve(plans_in_single_precision(og.load("wordnet"), tmp_path / "wordnet", ("gcn", "range")), 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batches", [False, True], ids=["whole", "batches"])
@pytest.mark.parametrize("name", ["cora", "wordnet", "debian"])
def test_real_graphs_in_single_precision(name: str, batches: bool, data_dir: Path, tmp_path: Path) -> None:
    cases = ("gcn", "metis"), ("sage", "hash"), ("gat", "range")
    chosen = plans_in_single_precision(og.load(name, data_dir=data_dir), tmp_path / name, *cases, batches=batches)
    require_one_curve(chosen, 2, 3, 4)
