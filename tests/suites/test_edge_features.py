"""A run does not depend on the strategy, the number of workers or of chunks: features of edges, modules per type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, GINE, GATv2, Model, Transformer
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig
from planted import WIDTH, planted
from suites import edge_feature_mutants, typed_mutants, typed_runs
from suites.invariance import BATCHES, CONFIG, WAYS, Way
from suites.sessions import Plan, Result, graph_of, largest_step, train_in_turn
from support import disk_folder, with_edge_features
from thread_group import run_in_threads

EPOCHS, COLUMNS, CLOSE = 5, 3, 1e-8


class Case(NamedTuple):
    """A run: on which of `GRAPHS`, which of `MODELS`, in which of `EVERY`."""

    graph: str
    model: str
    way: str


def planted_with(dtype: torch.dtype) -> Graph:
    graph = graph_of(planted())
    return replace(graph, topology=with_edge_features(graph.topology, COLUMNS, dtype))


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "numbers": partial(planted_with, torch.float64),
    "codes": partial(planted_with, torch.int8),
    "types": typed_runs.typed_graph,
}
ATTENTION = {"heads": 2, "dropout": 0.3, "attention_dropout": 0.3}
MODELS: Mapping[str, Callable[[Graph], Model]] = {
    "gat": lambda graph: GAT(WIDTH, 8, 2, out_heads=1, edge_dim=graph.num_edge_features, **ATTENTION),
    "gine": lambda graph: GINE(WIDTH, 8, 2, dropout=0.3, edge_dim=graph.num_edge_features),
    "gatv2": lambda graph: GATv2(WIDTH, 8, 2, edge_dim=graph.num_edge_features, **ATTENTION),
    "transformer": lambda graph: Transformer(WIDTH, 8, 2, edge_dim=graph.num_edge_features, **ATTENTION),
    **typed_runs.MODELS,
}
WITHOUT_SLICES = ("gatv2", "transformer", *typed_runs.WITHOUT_SLICES)
CHOSEN = (
    "hash",
    "offload without sharing",
    "tensor",
    "sampled hash",
    "split",
    "migrate with travelling models",
    "orchestrate without hot nodes",
)
CHUNKED = {
    f"offload in {count} chunks": Way(Offload(chunks=count, partition="hash", scratch_dir=str(disk_folder())))
    for count in range(1, 8)
}
EVERY = {**{name: WAYS[name] for name in CHOSEN}, **CHUNKED}
ON_NUMBERS = ("gat", "gine", "gatv2", "transformer")


def every_case() -> list[Case]:
    """All ways that may train a model; numbers of chunks change from one model to the next."""
    found = [
        Case(graph, model, way)
        for graph, models in (("numbers", ON_NUMBERS), ("types", tuple(typed_runs.MODELS)))
        for number, model in enumerate(models)
        for way in (*CHOSEN, *(f"offload in {1 + (number + step) % 7} chunks" for step in (0, 3)))
        if way != "tensor" or model not in WITHOUT_SLICES
    ]
    return [*found, *(Case("codes", model, way) for model in ON_NUMBERS for way in ("offload in 2 chunks", "split"))]


SOME = [
    Case("numbers", "gat", "tensor"),
    Case("numbers", "gine", "hash"),
    Case("numbers", "gine", "offload without sharing"),
    Case("numbers", "gatv2", "orchestrate without hot nodes"),
    Case("numbers", "transformer", "migrate with travelling models"),
    Case("codes", "gat", "offload in 7 chunks"),
    Case("codes", "gine", "sampled hash"),
    Case("types", "hetero-sage", "tensor"),
    Case("types", "hetero-sage", "orchestrate without hot nodes"),
    Case("types", "hetero-reading", "hash"),
    Case("types", "hetero-reading", "split"),
    Case("types", "rgcn", "offload in 3 chunks"),
    Case("types", "rgcn-typed", "migrate with travelling models"),
    Case("types", "hgt", "offload without sharing"),
    Case("types", "hgt", "sampled hash"),
]
HALVES = 2


class Runs:
    """Runs on the graphs, whose stores are in a folder; of one worker, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.graphs = {name: make() for name, make in GRAPHS.items()}
        for name, graph in self.graphs.items():
            write_store(graph, folder / name)
        self._alone: dict[tuple[str, str, TrainConfig], Result] = {}

    def plan(self, case: Case, way: Way) -> Plan:
        torch.manual_seed(1)
        model = MODELS[case.model](self.graphs[case.graph]).double()
        return Plan(self.folder / case.graph, model, replace(way.config, epochs=EPOCHS), way.strategy)

    def results(self, cases: Sequence[Case], workers: int) -> dict[Case, Result]:
        plans = {case: self.plan(case, EVERY[case.way]) for case in cases}
        return run_in_threads(partial(train_in_turn, plans=plans), workers)[0]

    def alone(self, case: Case) -> Result:
        """What one worker gives on all nodes at once, or on batches."""
        config = EVERY[case.way].config
        known = case.graph, case.model, config
        if known not in self._alone:
            plan = self.plan(case, Way(Full()) if config == CONFIG else Way(Sampled(), BATCHES))
            [found] = run_in_threads(partial(train_in_turn, plans={case: plan}), 1)
            self._alone[known] = found[case]
        return self._alone[known]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("edge-features"))


def require_one_run(runs: Runs, cases: Sequence[Case], workers: int) -> None:
    for case, result in runs.results(cases, workers).items():
        expected = runs.alone(case)
        assert result.summary["exact"] is True
        assert result.summary["workers"] == workers
        assert largest_step(result.summary["loss"], expected.summary["loss"]) < CLOSE, case
        assert result.summary["test_accuracy"] == expected.summary["test_accuracy"], case


@pytest.mark.timeout(900)
def test_some_runs(runs: Runs) -> None:
    require_one_run(runs, SOME, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_model_in_every_way(runs: Runs, workers: int) -> None:
    """Each case on two of four numbers of workers: one even, one odd."""
    first = workers // HALVES % HALVES
    require_one_run(runs, every_case()[first::HALVES], workers)


@pytest.mark.parametrize("name", WITHOUT_SLICES)
def test_a_model_that_mixes_columns_is_refused_by_tensor(runs: Runs, name: str) -> None:
    graph = "types" if name in typed_runs.MODELS else "numbers"
    with pytest.raises(InputError, match="keeps columns apart"):
        EVERY["tensor"].strategy.validate_model(runs.plan(Case(graph, name, "tensor"), EVERY["tensor"]).model)


MUTANTS = {
    "features_by_place_in_a_run": (
        edge_feature_mutants.features_by_place_in_the_part,
        Case("types", "hetero-reading", "offload in 3 chunks"),
    ),
    "features_by_place_in_batches_of_a_run": (
        edge_feature_mutants.features_by_place_in_the_sample,
        Case("numbers", "transformer", "sampled hash"),
    ),
    "widths_one_short_in_a_run": (typed_mutants.widths_one_short, Case("types", "hetero-reading", "hash")),
}
"""The broken code, and a run that it changes."""


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, runs: Runs) -> None:
    broken, case = MUTANTS[name]
    expected = runs.alone(case)
    with broken() as hits:
        found = runs.results([case], 3)[case]
    assert hits.count
    assert not largest_step(found.summary["loss"], expected.summary["loss"]) < CLOSE
