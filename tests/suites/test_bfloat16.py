"""Products and features in bfloat16 under every strategy: nearly the losses of full precision, and no worse a model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, GCN, SAGE, Model
from outgrow.training.config import BFLOAT16, TrainConfig
from planted import WIDTH, planted
from suites.sessions import Plan, Result, graph_of, largest_step, train_in_turn
from suites.test_diverged import STRATEGIES
from support import disk_folder
from thread_group import run_in_threads

WORKERS = 2
MODELS = {"gcn": GCN, "sage": SAGE, "gat": GAT}
BATCHES: dict[str, Any] = {"batch_size": 20, "fanout": (-1, -1)}
QUICK_CASES = [
    *((strategy, model) for strategy, model in zip(STRATEGIES, cycle(("gcn", "sage")), strict=False)),
    ("full", "gat"),
    ("split", "gat"),
]
MORE_CASES = [(strategy, model) for strategy in STRATEGIES for model in ("gcn", "sage")]
MORE_CASES = [case for case in MORE_CASES if case not in QUICK_CASES]
HALF_CASES = [(strategy, "sage") for strategy in STRATEGIES] + [("full", "gat"), ("offload", "gcn")]


def model_of(name: str) -> Model:
    torch.manual_seed(0)
    return MODELS[name](WIDTH, 16, 2)


def stores(folder: Path) -> dict[str, Path]:
    """The same graph three times: its features, these in bfloat16, and what is left of them there in their own type."""
    graph = graph_of(planted())
    assert isinstance(graph.features, torch.Tensor)
    narrow = graph.features.bfloat16()
    for name, features in {"full": graph.features, "narrow": narrow, "rounded": narrow.double()}.items():
        write_store(replace(graph, features=features), folder / name)
    return {name: folder / name for name in ("full", "narrow", "rounded")}


def trained(cases: list[tuple[str, str]], ways: list[tuple[str, str]]) -> dict[tuple[str, str, str, str], Result]:
    """By strategy, model, features and precision."""
    with TemporaryDirectory(dir=disk_folder()) as folder:
        made, plans = stores(Path(folder)), {}
        for (strategy, model), (features, precision) in product(cases, ways):
            batches = BATCHES if STRATEGIES[strategy].uses_minibatches else {}
            config = TrainConfig(epochs=15, lr=0.02, precision=precision, **batches)
            way = strategy, model, features, precision
            plans[way] = Plan(made[features], model_of(model), config, STRATEGIES[strategy])
        [found, *_] = run_in_threads(partial(train_in_turn, plans=plans), WORKERS)
        return found


@cache
def by_precision(*, quick: bool) -> dict[tuple[str, str, str, str], Result]:
    return trained(QUICK_CASES if quick else MORE_CASES, [("full", "full"), ("full", BFLOAT16)])


@cache
def by_features() -> dict[tuple[str, str, str, str], Result]:
    return trained(HALF_CASES, [(name, "full") for name in ("full", "narrow", "rounded")])


@pytest.mark.parametrize(
    ("strategy", "model"), [*QUICK_CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)]
)
def test_products_in_bfloat16(strategy: str, model: str) -> None:
    found = by_precision(quick=(strategy, model) in QUICK_CASES)
    full, narrow = (found[strategy, model, "full", precision].summary for precision in ("full", BFLOAT16))
    require_as_good(narrow, full)
    assert not narrow["exact"]


@pytest.mark.parametrize(("strategy", "model"), HALF_CASES)
def test_features_in_bfloat16(strategy: str, model: str) -> None:
    """Sums and products are no narrower for them: what they stand for, in a wider type, gives the same losses."""
    names = "full", "narrow", "rounded"
    full, narrow, rounded = (by_features()[strategy, model, name, "full"].summary for name in names)
    require_as_good(narrow, full)
    assert narrow["exact"] == full["exact"]
    assert largest_step(narrow["loss"], rounded["loss"]) < 1e-5


def require_as_good(narrow: dict[str, Any], full: dict[str, Any]) -> None:
    assert narrow["loss"] != full["loss"]
    assert largest_step(narrow["loss"], full["loss"]) < 0.02
    assert abs(narrow["test_accuracy"] - full["test_accuracy"]) <= 0.05  # 2 of 40 nodes
    assert narrow["loss"][-1] < 0.7 * narrow["loss"][0]
