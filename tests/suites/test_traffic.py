"""The ledger of `full` is the formula, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch

from outgrow.core.ledger import Kind
from outgrow.graph.partition.methods import METHODS
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, GCN, GIN, SAGE, Model
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from planted import planted
from suites.sessions import Plan, Result, graph_of, train_in_turn
from suites.traffic import Sizes, Widths, bytes_of_run, bytes_per_epoch
from thread_group import run_in_threads

WORKERS, CLASSES = 3, 2
SHORT, LONG = Sizes(epochs=2, evaluations=1, number=8, feature=8), Sizes(epochs=7, evaluations=3, number=8, feature=8)


class Traffic(NamedTuple):
    """A model of 8 features and 2 classes, and the widths of what its layers exchange."""

    build: Callable[[], Model]
    widths: Widths
    partition: str = "hash"
    half: bool = False
    first_aggregate: str = "auto"

    @property
    def strategy(self) -> Full:
        return Full(partition=self.partition, first_aggregate=self.first_aggregate)


def _widths(features: int, *layers: int) -> Widths:
    return Widths(features=features, layers=layers, classes=CLASSES)


MODELS = {
    "gcn aggregates first": Traffic(lambda: GCN(8, 16, 2), _widths(8, 2)),
    "gcn projects first": Traffic(lambda: GCN(8, 4, 2), _widths(0, 4, 2), "metis", first_aggregate="each-step"),
    "gcn sums features once": Traffic(lambda: GCN(8, 4, 2), _widths(8, 2), "metis", first_aggregate="once"),
    "gcn with dropout of the input": Traffic(lambda: GCN(8, 16, 2, input_dropout=0.5), _widths(8, 2)),
    "sage of three layers": Traffic(lambda: SAGE(8, 16, 2, layers=3), _widths(8, 16, 2), "range"),
    "gat sends columns and scores": Traffic(lambda: GAT(8, 6, 2, heads=2, out_heads=3), _widths(0, 6 + 2, 3 * 2 + 3)),
    "gin": Traffic(lambda: GIN(8, 16, 2), _widths(8, 2), "metis"),
    "gin projects first": Traffic(lambda: GIN(8, 4, 2), _widths(0, 4, 2), "metis", first_aggregate="each-step"),
    "gin sums features once": Traffic(lambda: GIN(8, 4, 2), _widths(8, 2), "metis", first_aggregate="once"),
    "half precision": Traffic(lambda: GCN(8, 16, 2), _widths(8, 2), half=True),
}


def sizes_of(traffic: Traffic, sizes: Sizes) -> Sizes:
    """In half precision features have 2 bytes and parameters 4."""
    return Sizes(epochs=sizes.epochs, evaluations=sizes.evaluations, number=4, feature=2) if traffic.half else sizes


def model_of(traffic: Traffic) -> Model:
    """In float64, unless the features are in half precision."""
    torch.manual_seed(0)
    return traffic.build() if traffic.half else traffic.build().double()


def plan_of(traffic: Traffic, sizes: Sizes, folder: Path) -> Plan:
    """A run of some epochs, evaluated after every second."""
    config = TrainConfig(epochs=sizes.epochs, eval_every=2)
    store = folder / ("half" if traffic.half else "double")
    return Plan(store, model_of(traffic), config, traffic.strategy)


@cache
def results() -> dict[tuple[str, Sizes], Result]:
    """A short and a long run of every model."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        graph = graph_of(planted())
        assert isinstance(graph.features, torch.Tensor)
        write_store(graph, folder / "double")
        write_store(replace(graph, features=graph.features.half()), folder / "half")
        chosen = {(n, s): plan_of(t, s, folder) for n, t in MODELS.items() for s in (SHORT, LONG)}
        return run_in_threads(partial(train_in_turn, plans=chosen), WORKERS)[0]


@pytest.mark.parametrize("sizes", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", MODELS)
def test_all_bytes_of_a_run(name: str, sizes: Sizes) -> None:
    traffic, topology = MODELS[name], planted().topology
    parts = METHODS[traffic.partition].partition_nodes(topology, WORKERS)
    found = results()[name, sizes].summary["ledger"]
    expected = bytes_of_run(topology, parts, model_of(traffic), traffic.widths, sizes_of(traffic, sizes))
    assert found["peer"] == {kind.value: count for kind, count in expected.items() if count}
    assert not any(table for link, table in found.items() if link != "peer")
    assert measure_quality(topology, parts).halo > (10,) * WORKERS


@pytest.mark.parametrize("name", MODELS)
def test_what_an_epoch_adds(name: str) -> None:
    traffic, topology = MODELS[name], planted().topology
    halo = sum(measure_quality(topology, METHODS[traffic.partition].partition_nodes(topology, WORKERS)).halo)
    short, long = (results()[name, sizes].summary["ledger"]["peer"] for sizes in (SHORT, LONG))
    number = sizes_of(traffic, SHORT).number
    plain, evaluated = (bytes_per_epoch(halo, traffic.widths, number, evaluated=each) for each in (False, True))
    for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
        assert long[kind] - short[kind] == 3 * plain[kind] + 2 * evaluated[kind]
    for kind in (Kind.FEATURES, Kind.IDS, Kind.TOPOLOGY):
        assert long.get(kind) == short.get(kind)
