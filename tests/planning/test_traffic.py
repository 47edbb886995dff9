"""What is estimated to cross links is what the ledger says, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import torch
from tests.suites import test_offload_traffic, test_tensor_traffic, test_traffic

from outgrow.core.ledger import Kind, Link
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.nn import GCN, SAGE, SIGN, Decoupled, DecoupledGAT, Model
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimators.full import choose_first_aggregate, full_traffic
from outgrow.planning.estimators.offload import offload_traffic
from outgrow.planning.estimators.tensor import tensor_traffic
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.traffic import Traffic, WorkerLayout
from outgrow.strategies.offload.reorder import Bandwidths
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from planted import planted
from suites.sessions import Plan, Result, graph_of, train_in_turn
from suites.traffic import Sizes, list_ledger_bytes
from support import disk_folder, in_blocks, sparse_rows
from thread_group import run_in_threads

WORKERS = 3
SIZES = Sizes(epochs=3, evaluations=1, number=8, feature=8)


def graph_at_hand(form: str) -> Graph:
    """The graph that the suites train on: features in double or half precision, some in sparse rows, or in blocks."""
    graph = graph_of(planted())
    assert isinstance(graph.features, torch.Tensor)
    if form == "half":
        return replace(graph, features=graph.features.half())
    if form == "blocks":
        return in_blocks(graph)
    return replace(graph, features=sparse_rows(graph.features, least=0.5)) if form == "sparse" else graph


def is_the_ledger(estimate: Traffic, sizes: Sizes, ledger: Mapping[str, Mapping[str, int]]) -> None:
    """A run of workers on one host has moved what was estimated, besides what they told each other of losses."""
    expected = estimate.run_bytes(sizes.epochs, sizes.evaluations)
    assert expected == {key: count for key, count in list_ledger_bytes(ledger).items() if count}


@pytest.mark.parametrize("sizes", [test_traffic.SHORT, test_traffic.LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", test_traffic.MODELS)
def test_full(name: str, sizes: Sizes) -> None:
    traffic = test_traffic.MODELS[name]
    work = make_workload(graph_at_hand("half" if traffic.half else "double"), test_traffic.model_of(traffic))
    place = WorkerLayout(workers=test_traffic.WORKERS)
    costs = CostModel.from_profile(find_profile("2-core-cpu"), place, sizes.number)
    chosen = choose_first_aggregate(traffic.strategy, work, costs)
    estimate = full_traffic(traffic.strategy, chosen, place)
    is_the_ledger(estimate, sizes, test_traffic.results()[name, sizes].summary["ledger"])


@pytest.mark.parametrize("sizes", [test_tensor_traffic.SHORT, test_tensor_traffic.LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", test_tensor_traffic.MODELS)
def test_tensor(name: str, sizes: Sizes) -> None:
    traffic = test_tensor_traffic.MODELS[name]
    graph = replace(graph_at_hand("half" if traffic.half else "double"), topology=test_tensor_traffic.topology())
    work = make_workload(graph, test_tensor_traffic.model_of(traffic))
    estimate = tensor_traffic(traffic.strategy, work, WorkerLayout(workers=test_tensor_traffic.WORKERS))
    [first, *_] = test_tensor_traffic.seen(sizes)
    is_the_ledger(estimate, sizes, first.results[name].summary["ledger"])


def test_coefficients_of_attention_are_a_number_for_each_edge() -> None:
    """As the suite finds: those of all edges, to all other workers, there and back."""
    graph = replace(graph_at_hand("double"), topology=test_tensor_traffic.topology())
    work = make_workload(graph, DecoupledGAT(8, 16, 2, rounds=2, heads=1).double())
    place = WorkerLayout(workers=WORKERS)
    scores, coefficients = (
        tensor_traffic(TensorParallel(attention=told, chunks=1), work, place).epoch
        for told in ("scores", "coefficients")
    )
    edges = graph.topology.view(self_loops=work.model.views[0]).num_edges
    for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
        more = coefficients[Link.PEER, kind] - scores[Link.PEER, kind]
        assert more == edges * (WORKERS - 1) * 8


OFFLOADED = {
    f"{name}, {label}": (name, options)
    for name in test_offload_traffic.MODELS
    for label, options in {
        "everything": Offload(chunks=3),
        "five chunks as they are": Offload(chunks=5, reorganise=False),
        "vanilla": Offload(chunks=3, sharing=False, reuse=False, cache=False),
        "reuse alone": Offload(chunks=4, sharing=False),
        "sharing alone": Offload(chunks=4, reuse=False, partition="hash"),
        "rows in bfloat16": Offload(chunks=3, storage_precision="bfloat16"),
        "rows in int8": Offload(chunks=3, storage_precision="int8"),
    }.items()
}
OTHERS: dict[str, Callable[[], Model]] = {
    "decoupled": lambda: Decoupled(8, 16, 2, rounds=2),
    "restarts": lambda: Decoupled(8, 16, 2, rounds=3, alpha=0.2),
    "propagated features": lambda: SIGN(8, 16, 2),
    "residual gcn": lambda: GCN(8, 8, 2, layers=3, residual=True),
    "sparse sage": lambda: SAGE(8, 4, 2, sparse_input=True),
    "blocks sage": lambda: SAGE(8, 4, 2, sparse_input=True),
    "sparse gcn": lambda: GCN(8, 8, 2, layers=3, sparse_input=True),
}
OFFLOADED |= {name: (name, Offload(chunks=3)) for name in OTHERS}
QUICK = [
    case
    for case in OFFLOADED
    if case in OTHERS or case.endswith("everything") or case.startswith(("gcn aggregates first", "gat"))
]
RATES = Bandwidths(host=1e9, device=5e9, reuse=2e10)


def offloaded(name: str) -> Model:
    """In float64, unless the features are in half precision."""
    torch.manual_seed(0)
    if name in OTHERS:
        return OTHERS[name]().double()
    kinds = test_offload_traffic.MODELS[name]
    return kinds.build() if kinds.half else kinds.build().double()


def form_of(name: str) -> str:
    """How the features are stored that a model is trained on."""
    if name in OTHERS:
        return name.split()[0] if name.startswith(("sparse", "blocks")) else "double"
    return "half" if test_offload_traffic.MODELS[name].half else "double"


@cache
def offload_runs(*, quick: bool) -> dict[str, Result]:
    """Runs of three workers, with the rates of which the estimates are told: those of quick tests, or the others."""
    with TemporaryDirectory(dir=disk_folder()) as name:
        folder = Path(name)
        for form in ("double", "half", "sparse", "blocks"):
            write_store(graph_at_hand(form), folder / form)
        plans = {
            case: Plan(
                folder / form_of(model),
                offloaded(model),
                TrainConfig(epochs=SIZES.epochs, eval_every=2),
                replace(strategy, scratch_dir=str(disk_folder())),
            )
            for case, (model, strategy) in OFFLOADED.items()
            if (case in QUICK) is quick
        }
        with patch("outgrow.strategies.offload.execution.DISK_BANDWIDTHS", RATES):
            return run_in_threads(partial(train_in_turn, plans=plans), WORKERS)[0]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in OFFLOADED]
)
def test_offload(case: str) -> None:
    name, strategy = OFFLOADED[case]
    work = make_workload(graph_at_hand(form_of(name)), offloaded(name))
    summary = offload_runs(quick=case in QUICK)[case].summary
    kept = summary["found"]["waves_kept"]
    estimate = offload_traffic(strategy, work, WorkerLayout(workers=WORKERS), RATES, cached_waves=kept)
    is_the_ledger(estimate, SIZES, summary["ledger"])
