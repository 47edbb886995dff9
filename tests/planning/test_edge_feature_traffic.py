"""Features of edges cross no link between workers; where they or their scores are moved, the ledger is the formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import torch
from tests.planning.test_traffic import RATES, SIZES, graph_at_hand, is_the_ledger

from outgrow.core.ledger import Kind, Link
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, GINE, Model
from outgrow.planning.estimators.full import full_traffic
from outgrow.planning.estimators.offload import offload_traffic
from outgrow.planning.estimators.tensor import tensor_traffic
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.traffic import Traffic, WorkerLayout
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.offload.wave import aligned_bytes
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from suites.sessions import Plan, Result, train_in_turn
from suites.traffic import list_ledger_bytes
from support import disk_folder, with_edge_features
from thread_group import run_in_threads

NARROW, WIDE, HEADS = 1, 7, 2
MODELS: dict[str, Callable[[int], Model]] = {
    "gat": lambda edge_dim: GAT(8, 6, 2, heads=HEADS, out_heads=1, edge_dim=edge_dim),
    "gine": lambda edge_dim: GINE(8, 6, 2, edge_dim=edge_dim, sparse_input=True),
    "gine of features": lambda edge_dim: GINE(8, 6, 2, edge_dim=edge_dim),
}
OFFLOAD, TENSOR = Offload(chunks=3), TensorParallel()
STRATEGIES: dict[str, Strategy] = {
    "full": Full(partition="hash"),
    "sampled": Sampled(partition="hash"),
    "split": SplitParallel(partition="hash"),
    "migrate": Migrate(partition="hash", move_model=True, merge=False),
    "offload": OFFLOAD,
    "tensor": TENSOR,
}
BATCHED = ("sampled", "split", "migrate")
KEPT = ("full", *BATCHED)
"""Strategies that move nothing for the features of edges."""
Case = tuple[str, str, int]
"""Strategy, model, and features of an edge that the model reads."""
CASES: list[Case] = [
    (strategy, model, count)
    for strategy in STRATEGIES
    for model, counts in (("gat", (0, WIDE)), ("gine", (NARROW, WIDE)), ("gine of features", (NARROW, WIDE)))
    for count in counts
]
several = pytest.mark.parametrize(
    "workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (2, 4))]
)


def graph_with(count: int) -> Graph:
    """The graph of the other tests, with so many features of each edge."""
    graph = graph_at_hand("double")
    return replace(graph, topology=with_edge_features(graph.topology, count)) if count else graph


def model_of(name: str, count: int) -> Model:
    torch.manual_seed(0)
    return MODELS[name](count).double()


def config_of(strategy: str) -> TrainConfig:
    config = TrainConfig(epochs=SIZES.epochs, eval_every=2, seed=5)
    return replace(config, batch_size=16, fanout=(3, 4)) if strategy in BATCHED else config


@cache
def runs(workers: int) -> dict[Case, Result]:
    """A run of every strategy and model, with features of edges and without, or with fewer."""
    with TemporaryDirectory(dir=disk_folder()) as name:
        folder = Path(name)
        for count in (0, NARROW, WIDE):
            write_store(graph_with(count), folder / str(count))
        plans = {}
        for case in CASES:
            strategy, model, count = case
            chosen = STRATEGIES[strategy]
            if isinstance(chosen, Offload):
                chosen = replace(chosen, scratch_dir=str(disk_folder()))
            plans[case] = Plan(folder / str(count), model_of(model, count), config_of(strategy), chosen)
        with patch("outgrow.strategies.offload.execution.DISK_BANDWIDTHS", RATES):
            return run_in_threads(partial(train_in_turn, plans=plans), workers)[0]


def moved_by(case: Case, workers: int) -> Counter[tuple[Link, Kind]]:
    """Bytes of a run besides parameters, which differ, and what workers tell each other of losses."""
    found = list_ledger_bytes(runs(workers)[case].summary["ledger"])
    return Counter({key: n for key, n in found.items() if key[1] != Kind.PARAMETERS})


@several
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", KEPT)
def test_features_of_edges_cross_no_link(strategy: str, model: str, workers: int) -> None:
    fewer, more = (moved_by((strategy, model, count), workers) for count in (0 if model == "gat" else NARROW, WIDE))
    assert fewer[Link.PEER, Kind.ACTIVATIONS] > 0
    if strategy == "migrate":  # models travel with the gradients of their parameters, which differ
        fewer[Link.PEER, Kind.GRADIENTS] = more[Link.PEER, Kind.GRADIENTS] = 0
    assert more == fewer


@several
@pytest.mark.parametrize("strategy", ["full", "offload"])
def test_a_first_layer_that_reads_features_sends_no_rows(strategy: str, workers: int) -> None:
    """Though its aggregation has parameters. Both layers of the other model send rows of one width, and back."""
    projecting, reading = (moved_by((strategy, model, WIDE), workers) for model in ("gine", "gine of features"))
    assert projecting[Link.PEER, Kind.GRADIENTS] == 2 * reading[Link.PEER, Kind.GRADIENTS] > 0
    if strategy == "full":
        # Once, before training: no epoch sends any.
        halo = estimate_of("full", "gine of features", WIDE, workers, 0).once[Link.PEER, Kind.FEATURES]
        assert reading[Link.PEER, Kind.FEATURES] == halo > 0


@several
@pytest.mark.parametrize("count", [NARROW, WIDE])
def test_columns_of_tensor_bring_no_features(count: int, workers: int) -> None:
    """A sliced aggregation reads them from what each worker has of the edges."""
    assert moved_by(("tensor", "gine", NARROW), workers) == moved_by(("tensor", "gine", WIDE), workers)


@several
def test_tensor_sends_scores_of_edges(workers: int) -> None:
    """``E K (P - 1)`` numbers in each pass and back, and the ids of edges once, of all edges with self-loops."""
    plain, scored = (moved_by(("tensor", "gat", count), workers) for count in (0, WIDE))
    edges = graph_with(0).topology.with_self_loops.num_edges
    one_pass = edges * (HEADS + 1) * (workers - 1) * SIZES.number
    more = scored - plain
    assert more == {
        (Link.PEER, Kind.ACTIVATIONS): one_pass * (SIZES.epochs + SIZES.evaluations + 1),
        (Link.PEER, Kind.GRADIENTS): one_pass * SIZES.epochs,
        (Link.PEER, Kind.IDS): edges * (workers - 1) * 8,
    }


@several
def test_waves_bring_the_features_of_their_edges(workers: int) -> None:
    """As topology, from HOST to DEVICE and over no other link."""
    fewer, more = (moved_by(("offload", "gine", count), workers) for count in (NARROW, WIDE))
    changed = {key for key in {*fewer, *more} if fewer[key] != more[key]}
    assert changed == {(Link.HOST_TO_DEVICE, Kind.TOPOLOGY)}
    key = Link.HOST_TO_DEVICE, Kind.TOPOLOGY
    edges, columns = graph_with(0).num_edges, WIDE - NARROW
    # All waves stay in memory after they were read once; each is rounded up to a cache line.
    least = edges * columns * SIZES.number
    waves = workers * 3
    assert abs(more[key] - fewer[key] - least) <= waves * (aligned_bytes(1) - 1)


def estimate_of(strategy: str, model: str, count: int, workers: int, kept: int) -> Traffic:
    work = make_workload(graph_with(count), model_of(model, count))
    layout = WorkerLayout(workers=workers)
    if strategy == "offload":
        return offload_traffic(OFFLOAD, work, layout, RATES, cached_waves=kept)
    if strategy == "tensor":
        return tensor_traffic(TENSOR, work, layout)
    return full_traffic(Full(partition="hash"), work, layout)


@several
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", ["full", "offload", "tensor"])
def test_what_is_estimated_is_the_ledger(strategy: str, model: str, workers: int) -> None:
    summary = runs(workers)[strategy, model, WIDE].summary
    kept = summary["found"]["waves_kept"] if strategy == "offload" else 0
    is_the_ledger(estimate_of(strategy, model, WIDE, workers, kept), SIZES, summary["ledger"])


def test_waves_that_are_read_in_every_pass_are_counted_with_features() -> None:
    """No wave is kept: each of its passes reads the features again."""
    fewer, more = (estimate_of("offload", "gine", count, 3, 0) for count in (NARROW, WIDE))
    key = Link.HOST_TO_DEVICE, Kind.TOPOLOGY
    columns = graph_with(0).num_edges * (WIDE - NARROW) * SIZES.number
    # Two layers forward and backward, of which the last takes one pass.
    assert more.epoch[key] - fewer.epoch[key] == pytest.approx(3 * columns, rel=0.02)


def test_models_that_read_no_features_of_edges_move_none() -> None:
    graphs = graph_with(WIDE), graph_with(0)
    with_them, without = (
        offload_traffic(OFFLOAD, make_workload(graph, model_of("gat", 0)), WorkerLayout(workers=3), RATES)
        for graph in graphs
    )
    assert with_them == without
