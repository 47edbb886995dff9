"""`load_run`: a run that has ended, opened from its directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from outgrow.app.report.data import read_run
from outgrow.app.runs.config import RecordedModel, load_recorded_graph, read_model_record
from outgrow.app.runs.data import align_with_record, require_same_nodes
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.result import Run
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_schema import GraphSchema
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model


@check_arguments()
def load_run(path: str | Path, *, data_dir: str | Path | None = None) -> Run:
    """Open a run that has ended, of `train` or of ``outgrow train``.

    A model that is no model of `outgrow.nn` is unpickled, which runs code: open runs of your own, or of people whom you
    trust.

    Args:
        path: Directory of the run.
        data_dir: Folder to look in first for the files of a named data set, by which a model of the command line is
            made again.

    Returns:
        The run, with the model of its best epoch in evaluation mode, and without ``logits``: see `predict`.

    Raises:
        InputError: There is no such run, it has not ended, or its model or graph cannot be loaded.
    """
    folder = Path(path)
    found = read_run(folder)
    directory = RunDirectory(folder)
    config = directory.config
    place = None if data_dir is None else Path(data_dir)
    made = read_model_record(config, folder)
    model = load_best_model(directory, made, lambda: load_recorded_graph(config, place))
    return Run(model=model, logits=None, summary=dict(found.summary), directory=folder)


def load_run_for_prediction(directory: RunDirectory, graph: str | None, data_dir: Path | None) -> tuple[Graph, Model]:
    """Return the graph to predict on, as the best model of a run knows relations and columns, and that model.

    Args:
        directory: Directory of the run.
        graph: Another graph than the run's: a data set, a store or a file; None for the run's.
        data_dir: Folder to look in first for the files of a named data set.

    Raises:
        InputError: The graph or the model cannot be loaded, or do not fit.
    """
    config = directory.config
    made = read_model_record(config, directory.path)
    loaded = datasets.load_graph(graph, data_dir=data_dir) if graph else load_recorded_graph(config, data_dir)
    if made.reads_features:
        _require_features(loaded)
    loaded = align_with_record(loaded, config, reads_relations=made.reads_relations, reads_types=made.reads_types)
    model = load_best_model(directory, made, lambda: loaded)
    require_same_nodes(loaded, model, config)
    return loaded, model


def _require_features(graph: Graph) -> None:
    if graph.num_features == 0:
        raise InputError(
            f"the model of the run does not fit {graph.name!r}",
            needed="features, as many as the graph of the run has",
            got="none",
            repair="give a graph with features",
        )


def load_best_model(directory: RunDirectory, made: RecordedModel, load_graph: Callable[[], Graph]) -> Model:
    """Return the model of the best epoch of a run, in evaluation mode.

    Args:
        directory: Directory of the run.
        made: The model as the run started with it.
        load_graph: Returns the graph that a model of the command line is made for; others need none.
    """
    config = directory.config
    recorded = config["model"]
    model = made.made
    if model is None:
        # The model has the classes of the run's graph; another graph may have no labels, or other names. Only the
        # model is built from that: a graph that is changed no longer comes from its store, and workers would copy it.
        names = tuple(recorded["class_names"])
        model = made.build(replace(load_graph(), num_classes=recorded["classes"], class_names=names), 0)
    directory.load_best(model)
    model.schema = GraphSchema.from_record(config.get("graph_schema"))
    # Runs of older versions recorded none: they drew of all in-edges.
    model.temporal_strategy = config["train"].get("temporal_strategy")
    return model.eval()
