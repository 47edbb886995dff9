"""A strategy that needs more memory than a host or its container has is refused before anything starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.auto_strategy import ClusterSpec, select_strategy
from outgrow.app.memory_check import fit_prefetch, validate_memory
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.core.errors import InputError
from outgrow.planning.estimators.registry import KNOWN, estimate_strategy
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.planner import ROOM, cost_model_for
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.base import Execution, Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig

BATCHES: dict[str, Any] = {"batch_size": 512, "fanout": (5, 5)}


@pytest.fixture(scope="module")
def graph() -> og.Graph:
    return og.load("products@0.002")


def model_of(graph: og.Graph, hidden: int = 2048) -> og.nn.Model:
    torch.manual_seed(0)
    return og.nn.SAGE(graph.num_features, hidden, graph.num_classes)


def ask(graph: og.Graph, strategy: Strategy, workers: int, model: og.nn.Model | None = None) -> None:
    config = TrainConfig(**(BATCHES if strategy.uses_minibatches else {}))
    validate_memory(strategy, graph, model or model_of(graph), config, workers=workers, device="cpu")


def estimated(graph: og.Graph, strategy: Strategy, workers: int) -> int:
    place, profile = WorkerLayout(workers=workers, hosts=1), find_profile("2-core-cpu")
    config = TrainConfig(**(BATCHES if strategy.uses_minibatches else {}))
    asked = query_for_graph(graph, model_of(graph), config, PlanSite(profile, [place]))
    return workers * estimate_strategy(strategy, asked.work, cost_model_for(asked, place)).peak_bytes


def has(monkeypatch: pytest.MonkeyPatch, room: float, held: int = 0) -> None:
    monkeypatch.setattr("outgrow.app.memory_check.available_bytes", lambda: round(room))
    monkeypatch.setattr("outgrow.app.memory_check.resident_bytes", lambda: held)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [kind for kind in KNOWN if kind is not og.Offload], ids=lambda kind: kind.name)
def test_refused_at_seven_tenths_but_not_at_all(
    graph: og.Graph, kind: type[Strategy], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offload without a limit takes what there is."""
    strategy = kind()
    whole = estimated(graph, strategy, workers)
    has(monkeypatch, whole)
    ask(graph, strategy, workers)
    has(monkeypatch, 0.7 * whole)
    with pytest.raises(InputError, match=f"strategy {strategy.name} needs more memory") as caught:
        ask(graph, strategy, workers)
    assert ("for each of" in caught.value.needed) == (workers > 1)


def test_a_limit_that_is_more_than_there_is(graph: og.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies fill a limit as far as they can use it, whatever there is."""
    limited = og.Offload(memory="300MiB")
    has(monkeypatch, 0.7 * (300 << 20))
    with pytest.raises(InputError, match="strategy offload needs more memory"):
        ask(graph, limited, 1)
    has(monkeypatch, 300 << 20)
    ask(graph, limited, 1)


def test_what_the_user_holds_is_no_room(graph: og.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimated(graph, Full(), 1)
    for held in (0, 10 << 30):
        has(monkeypatch, 0.1 * whole, held)
        with pytest.raises(InputError, match="strategy full needs more memory"):
            ask(graph, Full(), 1)
    has(monkeypatch, whole, 10 << 30)
    ask(graph, Full(), 1)


def test_auto_asks_too_where_it_does_not_compare(graph: og.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.app.auto_strategy.COUNTED_EDGES", 10)
    crew, config = ClusterSpec(1, 1, "cpu", "300MiB"), TrainConfig()
    has(monkeypatch, 300 << 20)
    assert select_strategy("auto", {}, graph, model_of(graph), config, crew)[0].name == "offload"
    has(monkeypatch, 200 << 20)
    with pytest.raises(InputError, match="strategy offload needs more memory"):
        select_strategy("auto", {}, graph, model_of(graph), config, crew)


def test_what_is_far_from_the_limit_is_not_counted(graph: og.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("outgrow.app.memory_check.estimate_strategy", counted)
    has(monkeypatch, 1 << 40)
    ask(graph, Full(), 2)
    has(monkeypatch, 1 << 28)
    with pytest.raises(AssertionError):
        ask(graph, Full(), 2)


class OfSomebody(Strategy):
    name, exact = "somebody's", True

    def prepare(self, problem: Problem) -> Execution:
        raise NotImplementedError


def test_of_some_nothing_is_known(graph: og.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, 1 << 20)
    ask(graph, OfSomebody(), 1)
    edges = model_of(graph, 8).with_decoder(og.nn.EdgeMLP(graph.num_classes, 1))
    ask(graph, Full(), 1, edges)
    with pytest.raises(InputError):
        ask(graph, Full(), 1, model_of(graph, 8).with_decoder(og.nn.Dot()))
    with pytest.raises(InputError):
        ask(graph, Full(), 1)
    monkeypatch.setattr("outgrow.app.memory_check.torchrun_world_size", lambda: 2)
    ask(graph, Full(), 1)


def test_the_command(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("--model", "gcn", "--hidden", 16, "--epochs", 2, "--strategy", "full")
    assert outgrow("train", npz, *small, "--out", "run").code == 0
    has(monkeypatch, 100 << 20)
    refused = outgrow("train", npz, *small, "--out", "other")
    assert refused.code == 2
    assert "strategy full needs more memory than there is" in refused.err
    assert "Traceback" not in refused.err
    assert not Path("other").exists()
    before = Path("run/config.json").read_text()
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 3).code == 2
    assert Path("run/config.json").read_text() == before
    assert json.loads(before)["train"]["epochs"] == 2


UNEVALUATED = TrainConfig(batch_size=32, fanout=(5, 5), eval="none")


def fitted(graph: og.Graph, strategy: Strategy, config: TrainConfig = UNEVALUATED) -> Strategy:
    layout = WorkerLayout(workers=1)
    return fit_prefetch(strategy, graph, model_of(graph, 64), config, layout=layout, device="cpu")


@pytest.mark.parametrize("kind", [og.Sampled, og.Migrate, og.SplitParallel])
def test_as_many_batches_are_ahead_as_the_limit_permits(graph: og.Graph, kind: Any) -> None:
    place = WorkerLayout(workers=1)
    asked = query_for_graph(
        graph, model_of(graph, 64), UNEVALUATED, PlanSite(find_profile("2-core-cpu"), [place], "1GiB")
    )
    for ahead in range(kind.fewest_prefetched, 4):
        needed = estimate_strategy(
            kind(prefetch=ahead, memory="1GiB"), asked.work, cost_model_for(asked, place)
        ).peak_bytes
        limit = round(needed / ROOM) + (16 << 10)
        assert fitted(graph, kind(memory=f"{limit}B")).options()["prefetch"] == ahead
    assert fitted(graph, kind(memory="1GiB")).options()["prefetch"] == 4


def test_a_limit_that_no_batch_keeps_to_is_refused_with_repairs(graph: og.Graph) -> None:
    evaluated = TrainConfig(**BATCHES)
    for strategy in (og.Sampled(memory="245MiB"), og.Orchestrate(memory="245MiB")):
        with pytest.raises(InputError, match="more memory than its limit") as caught:
            fitted(graph, strategy, evaluated)
        least = re.search(r"--memory (\d+)MiB", caught.value.repair)
        assert least is not None
        fitted(graph, og.Sampled(memory=f"{least[1]}MiB"), evaluated)
        with pytest.raises(InputError):
            fitted(graph, og.Sampled(memory=f"{round(0.9 * int(least[1]))}MiB"), evaluated)


def test_strategies_without_a_limit_stay_as_they_are(graph: og.Graph) -> None:
    for strategy in (og.Sampled(), og.Full(), og.Offload(memory="300MiB"), og.SplitParallel(prefetch=9)):
        assert fitted(graph, strategy) is strategy


def test_a_run_keeps_to_its_limit(tmp_path: Path) -> None:
    graph = og.load("products@0.01")
    limit = 420 << 20
    config: dict[str, Any] = {"batch_size": 256, "fanout": (5, 5), "epochs": 2, "progress": False}
    model = og.nn.SAGE(graph.num_features, 32, graph.num_classes)
    found = og.train(graph, model, strategy=og.Sampled(memory=f"{limit}B"), workers=2, **config)
    assert 0 < found.summary["peak_bytes"]["device"] <= limit
    again = og.train(graph, og.nn.SAGE(graph.num_features, 32, graph.num_classes), workers=2, **config)
    assert found.summary["epochs"] == again.summary["epochs"]
