"""`config.json`: write it, rebuild graph and model from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from outgrow.app.model_registry import build_model
from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import is_store
from outgrow.nn.model import Model
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig


def training_record(config: TrainConfig, strategy: Strategy, workers: Workers) -> dict[str, Any]:
    """How a run is trained, as it is recorded."""
    return {
        "train": asdict(config),
        "strategy": {"name": strategy.name, "options": strategy.options()},
        "workers": workers.number,
    }


def absolute_source(graph: str) -> str:
    """A graph as it is recorded: the whole path of a file or folder, so that a run goes on from any directory."""
    path = Path(graph).expanduser()
    is_path = is_store(path) or (graph not in datasets.datasets() and path.exists())
    return str(path.resolve()) if is_path else graph


def load_recorded_graph(record: Mapping[str, Any], data_dir: Path | None) -> Graph:
    """The graph of a recorded run."""
    recorded = record.get("data_dir")
    return datasets.load_graph(record["graph"], data_dir=data_dir or (Path(recorded) if recorded else None))


def read_model_record(record: Mapping[str, Any], path: Path) -> tuple[str, dict[str, object]]:
    """Name and options of the model of a recorded run.

    Raises:
        InputError: The run's model was not made by name.
    """
    if record["model"] is None:
        raise InputError(
            f"the model of the run in {path} was built in Python",
            needed="a run started by `outgrow train`, whose model has a name",
            got="a run started by og.train",
            repair="use og.train(..., resume=True) or og.predict with the same model",
        )
    return record["model"]["name"], dict(record["model"]["options"])


def build_seeded_model(name: str, graph: Graph, settings: Mapping[str, object], seed: int) -> Model:
    """A model by its name, with parameters that the seed decides."""
    torch.manual_seed(seed)
    return build_model(name, graph, settings)
