"""Content of ``config.json``, and the graph and model rebuilt from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outgrow.app.model_registry import adds_vectors, build_model, model_options, reads_relations, reads_types
from outgrow.app.node_task import graph_for_model
from outgrow.app.runs.python_model import PYTHON, load_python_model
from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.store.fingerprint import changed_parts, fingerprint_graph
from outgrow.graph.store.reader import is_store, matches_store
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig


def training_record(config: TrainConfig, strategy: Strategy, workers: Workers) -> dict[str, Any]:
    """Return the part of ``config.json`` that says how a run is trained."""
    return {
        "train": config.as_record(),
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


def record_source(graph: Graph) -> dict[str, Any]:
    """Return the part of ``config.json`` that says where the graph of a run of `og.train` can be loaded from."""
    if graph.store is not None and matches_store(graph):
        return {"graph": str(graph.store), "graph_in_memory": False}
    # A data set is recorded by its name; what was changed or made in memory may have the same name.
    return {"graph": graph.name, "graph_in_memory": True}


def load_recorded_graph(record: Mapping[str, Any], data_dir: Path | None) -> Graph:
    """Load the graph of a recorded run; ``data_dir`` overrides the recorded one.

    Raises:
        InputError: The graph was in memory, and is no data set as it can be loaded; or it cannot be loaded.
    """
    if record.get("graph_in_memory"):
        return _load_same_data_set(record, data_dir)
    # Runs of `og.train` and of older versions have recorded no folder.
    recorded = record.get("data_dir")
    folder = data_dir or (Path(recorded) if recorded else None)
    graph = datasets.load_graph(record["graph"], data_dir=folder, options=read_load_options(record))
    split = record.get("split")
    return graph if split is None else graph.select_split(split)


def read_load_options(record: Mapping[str, Any]) -> TableOptions:
    """Return how the graph of a recorded run is read; runs of older versions recorded no options."""
    return TableOptions(**record.get("load_options", {}))


def _load_same_data_set(record: Mapping[str, Any], data_dir: Path | None) -> Graph:
    name = record["graph"]
    found = None
    with suppress(InputError):
        found = datasets.load_graph(name, data_dir=data_dir)
    if found is None or changed_parts(record.get("data") or {}, fingerprint_graph(found)):
        raise InputError(
            f"the graph of the run, {name!r}, was in memory",
            needed="a store, or a data set by its name, so that another process can load the graph",
            got="no such data set" if found is None else "a data set of that name with other contents",
            repair="write it with og.save_graph, and train on og.load of that store; or predict with --graph STORE",
        )
    return found


@dataclass(frozen=True, kw_only=True)
class RecordedModel:
    """Model of a recorded run.

    Attributes:
        name: Its name on the command line, or `PYTHON`.
        options: Its options on the command line; none for a model that was made in Python.
        made: The model, with the parameters that it started with, if it was made in Python.
    """

    name: str
    options: dict[str, object]
    made: Model | None

    @property
    def known_options(self) -> dict[str, Any]:
        """Options that the command line knows for the model, and their types."""
        return {} if self.made is not None else model_options(self.name)

    @property
    def predicts_links(self) -> bool:
        """Whether the model has a decoder."""
        return "decoder" in self.options if self.made is None else self.made.decoder is not None

    @property
    def reads_features(self) -> bool:
        """Whether the model cannot do without features of nodes."""
        return not adds_vectors(self.name, self.options) if self.made is None else self.made.reads_features

    @property
    def reads_relations(self) -> bool:
        """Whether relations of edges matter to the model."""
        return reads_relations(self.name, self.options) if self.made is None else self.made.reads_relations

    @property
    def reads_types(self) -> bool:
        """Whether what reads the features finds the columns of types itself."""
        return reads_types(self.name, self.options) if self.made is None else self.made.first_reader.reads_types

    def build(self, graph: Graph, seed: int, task: NodeTask | None = None) -> Model:
        """Return the model as the run started with it."""
        return build_seeded_model(self.name, graph, self.options, seed, task) if self.made is None else self.made


def read_model_record(record: Mapping[str, Any], path: Path) -> RecordedModel:
    """Return the model of a recorded run.

    Raises:
        InputError: The model was made in Python, and cannot be made again or, by an older version, was not kept.
    """
    recorded = record["model"]
    if recorded is None:
        raise InputError(
            f"the model of the run in {path} was built in Python",
            needed="a run of this version, which keeps how its model is made",
            got="a run of og.train of an older version",
            repair="use og.train(..., resume=True) or og.predict with the same model",
        )
    made = load_python_model(recorded, path) if recorded["name"] == PYTHON else None
    return RecordedModel(name=recorded["name"], options=dict(recorded["options"]), made=made)


def build_seeded_model(
    name: str, graph: Graph, settings: Mapping[str, object], seed: int, task: NodeTask | None = None
) -> Model:
    """Build a model by name for a task of nodes, or without one, with parameters initialised from the seed."""
    # Constructors draw the parameters: with the seed set here, each start of the run begins with the same.
    torch.manual_seed(seed)
    return build_model(name, graph if task is None else graph_for_model(graph, task), settings)
