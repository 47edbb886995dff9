"""Content of ``config.json``, and the graph and model rebuilt from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from outgrow.app.model_registry import build_model
from outgrow.app.node_task import graph_for_model
from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import is_store
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig


def training_record(config: TrainConfig, strategy: Strategy, workers: Workers) -> dict[str, Any]:
    """Return the part of ``config.json`` that says how a run is trained."""
    return {
        "train": asdict(config),
        "strategy": {"name": strategy.name, "options": strategy.options()},
        "workers": workers.number,
    }


def absolute_source(graph: str) -> str:
    """Return the graph as ``config.json`` names it: a data set by name, a file by its absolute path.

    A run can thus be resumed from any directory.
    """
    path = Path(graph).expanduser()
    # A name of a data set wins over a file that happens to have the same name, as when a graph is loaded.
    is_path = is_store(path) or (graph not in datasets.datasets() and path.exists())
    return str(path.resolve()) if is_path else graph


def load_recorded_graph(record: Mapping[str, Any], data_dir: Path | None) -> Graph:
    """Load the graph of a recorded run; ``data_dir`` overrides the recorded one."""
    # Runs of `og.train` and of older versions have recorded no folder.
    recorded = record.get("data_dir")
    return datasets.load_graph(record["graph"], data_dir=data_dir or (Path(recorded) if recorded else None))


def read_model_record(record: Mapping[str, Any], path: Path) -> tuple[str, dict[str, object]]:
    """Return name and options of the model of a recorded run.

    Raises:
        InputError: The model was built in Python and has no name.
    """
    if record["model"] is None:
        raise InputError(
            f"the model of the run in {path} was built in Python",
            needed="a run started by `outgrow train`, whose model has a name",
            got="a run started by og.train",
            repair="use og.train(..., resume=True) or og.predict with the same model",
        )
    return record["model"]["name"], dict(record["model"]["options"])


def build_seeded_model(
    name: str, graph: Graph, settings: Mapping[str, object], seed: int, task: NodeTask | None = None
) -> Model:
    """Build a model by name for a task of nodes, or without one, with parameters initialised from the seed."""
    # Constructors draw the parameters: with the seed set here, each start of the run begins with the same.
    torch.manual_seed(seed)
    return build_model(name, graph if task is None else graph_for_model(graph, task), settings)
