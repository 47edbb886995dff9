"""`load_run`: a run that has ended, opened from its directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outgrow.app.report.data import read_run
from outgrow.app.runs.config import load_recorded_graph, read_model_record
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.python_model import PYTHON
from outgrow.app.runs.result import Run
from outgrow.core.arguments import check_arguments
from outgrow.core.graph_schema import GraphSchema
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
    model = load_best_model(directory, None if data_dir is None else Path(data_dir))
    return Run(model=model, logits=None, summary=dict(found.summary), directory=folder)


def load_best_model(directory: RunDirectory, data_dir: Path | None, graph: Graph | None = None) -> Model:
    """Return the model of the best epoch of a run, in evaluation mode.

    Args:
        directory: Directory of the run.
        data_dir: Folder to look in first for the files of a named data set.
        graph: Graph of the model; None for that of the run.
    """
    config = directory.config
    made = read_model_record(config, directory.path)
    recorded = config["model"]
    model = made.made
    if model is None or recorded["name"] != PYTHON:
        loaded = graph or load_recorded_graph(config, data_dir)
        # The model has the classes of the run's graph; another graph may have no labels, or other names.
        names = tuple(recorded["class_names"])
        model = made.build(replace(loaded, num_classes=recorded["classes"], class_names=names), 0)
    directory.load_best(model)
    model.schema = GraphSchema.from_record(config.get("graph_schema"))
    return model.eval()
