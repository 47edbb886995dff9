"""Numbers that are not finite under every strategy: workers agree on the step, the layer and whose nodes they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from outgrow.app.runs.local_workers import TrainingJob
from outgrow.core.errors import TrainingError
from outgrow.graph.store.reader import array_path, write_store
from outgrow.nn import GCN, Model
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from planted import NODES, WIDTH, planted
from pool import run_workers
from suites.sessions import graph_of
from support import disk_folder

WORKERS, NODE = 2, 100
STRATEGIES: dict[str, Strategy] = {
    "full": Full(),
    "sampled": Sampled(),
    "offload": Offload(chunks=3),
    "tensor": TensorParallel(),
    "split": SplitParallel(),
    "migrate": Migrate(),
    "migrate that travels": Migrate(move_model=True),
    "orchestrate": Orchestrate(hot_ratio=0.3),
}


def large_model() -> Model:
    """Its first layer takes numbers near the largest there are beyond it."""
    torch.manual_seed(0)
    model = GCN(WIDTH, 8, 2).double()
    with torch.no_grad():
        model.layers_list()[0].conv.project.weight.mul_(100)
    return model


def errors(place: WorkerContext, stores: Mapping[str, Path]) -> dict[tuple[str, str], str]:
    """What each strategy says of each store."""
    found = {}
    for graph, store in stores.items():
        for name, strategy in STRATEGIES.items():
            batches: dict[str, Any] = {"batch_size": 20, "fanout": (-1, -1)} if strategy.uses_minibatches else {}
            config = TrainConfig(epochs=2, **batches)
            options: dict[str, Any] = {"directory": None, "resume": False, "needs_checkpoints": False}
            job = TrainingJob(store=store, model=large_model(), config=config, strategy=strategy, **options)
            try:
                job(replace(place, send_message=lambda message: None))
                found[graph, name] = "no error"
            except TrainingError as error:
                found[graph, name] = error.what
    return found


@cache
def found() -> list[dict[tuple[str, str], str]]:
    with TemporaryDirectory(dir=disk_folder()) as folder:
        stores = {"nan": Path(folder, "nan"), "large": Path(folder, "large")}
        for name, value in (("nan", math.nan), ("large", 1e308)):
            write_store(graph_of(planted()), stores[name])
            np.load(array_path(stores[name], "features"), mmap_mode="r+")[NODE, 0] = value  # a writer would refuse NaN
        return run_workers(partial(errors, stores=stores), WORKERS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_features(strategy: str) -> None:
    said = {each["nan", strategy] for each in found()}
    assert len(said) == 1
    [what] = said
    assert what.startswith("training diverged in epoch 1")
    assert f"features, is not finite for 1 nodes (node {NODE} is the first), on worker " in what
    assert (", step 1 of 2" in what) == STRATEGIES[strategy].uses_minibatches


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_layer(strategy: str) -> None:
    said = {each["large", strategy] for each in found()}
    assert len(said) == 1
    [what] = said
    assert "the output of layer 1 of 2 is not finite for " in what
    assert "worker" in what


def test_the_worker_is_the_one_that_owns_the_node() -> None:
    """Ranges of nodes with equally many in-edges."""
    assert NODE > NODES // 2
    assert TensorParallel().partition == "range-edges"
    assert "on worker 1 of 2" in found()[0]["nan", "tensor"]
