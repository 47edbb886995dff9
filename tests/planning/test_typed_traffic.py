"""What is estimated of models with modules per type is what the ledger says: widths and rows are counted by type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import torch
from tests.planning.test_traffic import RATES, SIZES, is_the_ledger

import outgrow as og
from outgrow.graph.graph import Graph, Split
from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, HGT, SAGE, HeteroEncoder, Model, TypedRGCN, to_hetero
from outgrow.planning.estimators.full import full_traffic
from outgrow.planning.estimators.offload import offload_traffic
from outgrow.planning.estimators.split import split_traffic
from outgrow.planning.estimators.wave_traffic import PassTraffic
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.traffic import Traffic, WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.training.config import TrainConfig
from suites.sessions import Plan, Result, train_in_turn
from suites.typed import BORDERS, EDGE_TYPES, NAMES, typed_topology
from support import disk_folder, normal
from thread_group import run_in_threads

WORKERS, COLUMNS, CLASSES = 3, 8, 2
FULL = Full(partition="hash")
OFFLOAD = Offload(chunks=2, partition="hash")
ALONE = Offload(chunks=4, partition="hash", reuse=False, cache=False)
SPLIT = SplitParallel(partition="hash")
STRATEGIES: dict[str, Strategy] = {"full": FULL, "offload": OFFLOAD, "no reuse": ALONE, "split": SPLIT}


@cache
def typed_graph() -> Graph:
    """Types of different sizes, of which one has few out-relations; without types and edge types that have nothing."""
    kept = [at for at in range(len(NAMES)) if BORDERS[at] < BORDERS[at + 1]]
    nodes = torch.arange(BORDERS[-1])
    return Graph(
        name="typed",
        topology=typed_topology(40),
        features=normal(len(nodes), COLUMNS),
        labels=nodes % CLASSES,
        split=Split(train=nodes[14:30], val=nodes[30:33], test=nodes[:0]),
        num_classes=CLASSES,
        relation_names=tuple(f"{source}__{name}__{target}" for source, name, target in EDGE_TYPES[:-1]),
        node_types=tuple(
            og.NodeType(name=NAMES[at], first=BORDERS[at], last=BORDERS[at + 1], num_columns=0) for at in kept
        ),
    )


def encoded_sage() -> Model:
    """Hidden rows of all types are the input of the first layer, which sends projections of them."""
    types = typed_graph().types
    encoder = HeteroEncoder(dict.fromkeys(types.names, COLUMNS), 12, shared_columns=True)
    plain = Model(SAGE(12, 4, CLASSES, layers=2).layers_list(), encoder=encoder)
    return to_hetero(plain, typed_graph())


MODELS: dict[str, Callable[[], Model]] = {
    "projections": lambda: to_hetero(SAGE(COLUMNS, 2, CLASSES, layers=2), typed_graph()),
    "input": lambda: to_hetero(SAGE(COLUMNS, COLUMNS, CLASSES, layers=2), typed_graph()),
    "attention": lambda: to_hetero(GAT(COLUMNS, 6, CLASSES, layers=2, heads=2), typed_graph()),
    "encoder": encoded_sage,
    "hgt": lambda: HGT(COLUMNS, 6, CLASSES, types=typed_graph().types, heads=2, layers=2),
    "rgcn": lambda: TypedRGCN(COLUMNS, 6, CLASSES, types=typed_graph().types, layers=2),
}
CASES = [(strategy, model) for strategy in STRATEGIES for model in MODELS]


def model_of(name: str) -> Model:
    torch.manual_seed(0)
    return MODELS[name]().double()


def config_of(strategy: str) -> TrainConfig:
    config = TrainConfig(epochs=SIZES.epochs, eval_every=2, seed=5)
    # All in-edges of all nodes: no draw differs from one epoch to the next.
    return replace(config, batch_size=16, fanout=(-1, -1), eval="layerwise") if strategy == "split" else config


@cache
def runs() -> dict[tuple[str, str], Result]:
    with TemporaryDirectory(dir=disk_folder()) as name:
        folder = Path(name)
        write_store(typed_graph(), folder / "typed")
        plans = {}
        for strategy, model in CASES:
            chosen = STRATEGIES[strategy]
            if isinstance(chosen, Offload):
                chosen = replace(chosen, scratch_dir=str(disk_folder()))
            plans[strategy, model] = Plan(folder / "typed", model_of(model), config_of(strategy), chosen)
        with patch("outgrow.strategies.offload.execution.DISK_BANDWIDTHS", RATES):
            return run_in_threads(partial(train_in_turn, plans=plans), WORKERS)[0]


def work_of(strategy: str, model: str) -> Workload:
    return make_workload(typed_graph(), model_of(model), config_of(strategy).batch_config, seed=5)


def estimate_of(strategy: str, model: str, found: Mapping[str, int]) -> Traffic:
    work, layout = work_of(strategy, model), WorkerLayout(workers=WORKERS)
    chosen = STRATEGIES[strategy]
    if isinstance(chosen, Offload):
        return offload_traffic(chosen, work, layout, RATES, cached_waves=found["waves_kept"])
    return split_traffic(SPLIT, work, layout) if strategy == "split" else full_traffic(FULL, work, layout)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_typed_rows(strategy: str, model: str) -> None:
    summary = runs()[strategy, model].summary
    is_the_ledger(estimate_of(strategy, model, summary["found"]), SIZES, summary["ledger"])


def write_used_columns() -> AbstractContextManager[object]:
    """On HOST a row is as wide as what its type uses."""
    write = PassTraffic._write_bytes
    mean = {layer.source_width: layer.sent_width for layer in work_of("offload", "projections").model.layers}
    return patch.object(PassTraffic, "_write_bytes", lambda self, width: write(self, round(mean.get(width, width))))


def send_whole_rows() -> AbstractContextManager[object]:
    """Rows cross between workers with all columns."""
    return patch(
        "outgrow.planning.estimators.wave_traffic.count_sent_numbers", lambda layer, rows, _: rows * layer.source_width
    )


def count_first_type_only() -> AbstractContextManager[object]:
    """All rows that a batch sends are as wide as those of the first type."""
    return patch(
        "outgrow.planning.estimators.split.count_sent_numbers",
        lambda layer, rows, _: rows * max(layer.type_widths[:1], default=layer.source_width),
    )


def leave_targets_out() -> AbstractContextManager[object]:
    """What layers read of their destinations is neither written nor read."""
    return patch.object(PassTraffic, "_target_width", staticmethod(lambda layer: 0))


MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str, str]] = {
    "used_columns_on_host": (write_used_columns, "offload", "projections"),
    "whole_rows_in_waves": (send_whole_rows, "offload", "projections"),
    "one_width_in_batches": (count_first_type_only, "split", "projections"),
    "targets_left_out": (leave_targets_out, "offload", "hgt"),
}
"""By name, what is wrong, and the run whose ledger shows it."""


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    broken, strategy, model = MUTANTS[mutant]
    summary = runs()[strategy, model].summary
    with broken(), pytest.raises(AssertionError):
        is_the_ledger(estimate_of(strategy, model, summary["found"]), SIZES, summary["ledger"])
