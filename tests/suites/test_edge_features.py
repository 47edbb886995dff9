"""A run of layers that read features of edges does not depend on the strategy, the number of workers or of chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, GINE, Model
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig
from planted import WIDTH, planted
from suites.invariance import BATCHES, CONFIG, WAYS, Way
from suites.sessions import Plan, Result, graph_of, largest_step, train_in_turn
from support import disk_folder, with_edge_features
from thread_group import run_in_threads

EPOCHS, COLUMNS, CLOSE = 5, 3, 1e-8
MODELS: Mapping[str, Callable[[int], Model]] = {
    "gat": lambda count: GAT(WIDTH, 8, 2, heads=2, out_heads=1, dropout=0.3, attention_dropout=0.3, edge_dim=count),
    "gine": lambda count: GINE(WIDTH, 8, 2, dropout=0.3, edge_dim=count),
}
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
    for count in (1, 7)
}
EVERY = {**{name: WAYS[name] for name in CHOSEN}, **CHUNKED}
FORMS = {"numbers": torch.float64, "codes": torch.int8}
CODED = ("offload without sharing", "sampled hash")
CASES = [
    *(("numbers", kind, way) for kind in MODELS for way in EVERY),
    *(("codes", kind, way) for kind in MODELS for way in CODED),
]


def config_of(way: Way) -> TrainConfig:
    return replace(way.config, epochs=EPOCHS)


def trained(ways: Mapping[tuple[str, str, str], Way], workers: int) -> dict[tuple[str, str, str], Result]:
    """Runs by form of the features, kind of model, and way."""
    with TemporaryDirectory(dir=disk_folder()) as name:
        counts = {}
        for form, dtype in FORMS.items():
            graph = graph_of(planted())
            graph = replace(graph, topology=with_edge_features(graph.topology, COLUMNS, dtype))
            counts[form] = graph.num_edge_features
            write_store(graph, Path(name) / form)
        plans = {}
        for case, way in ways.items():
            torch.manual_seed(1)
            model = MODELS[case[1]](counts[case[0]]).double()
            plans[case] = Plan(Path(name) / case[0], model, config_of(way), way.strategy)
        return run_in_threads(partial(train_in_turn, plans=plans), workers)[0]


@cache
def alone() -> dict[tuple[str, str, str], Result]:
    """Runs of one worker on all nodes at once, and on batches."""
    ways = {"whole": Way(Full()), "batches": Way(Sampled(), BATCHES)}
    return trained({(form, kind, name): way for form in FORMS for kind in MODELS for name, way in ways.items()}, 1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [2, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 3, 4))])
def test_runs_with_features_of_edges(workers: int) -> None:
    found = trained({(form, kind, way): EVERY[way] for form, kind, way in CASES}, workers)
    for (form, kind, way), result in found.items():
        expected = alone()[form, kind, "whole" if EVERY[way].config == CONFIG else "batches"]
        assert result.summary["exact"] is True
        assert largest_step(result.summary["loss"], expected.summary["loss"]) < CLOSE, (form, kind, way)
        assert result.summary["test_accuracy"] == expected.summary["test_accuracy"], (form, kind, way)
