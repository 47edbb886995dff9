"""``outgrow predict``: the predictions of a run for every node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outgrow.core.errors import InputError
from outgrow.runtime.threads import importing

if TYPE_CHECKING:
    from torch import Tensor

    from outgrow.graph.graph import Graph


def predict(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    graph: Annotated[
        str | None, typer.Option(help="Another graph of the same features and classes.", show_default="the run's")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
) -> None:
    """Write the predicted class of every node, and its probability, with the best model of a run.

    Columns: node, label, class (where classes have names), probability. With several labels per node, one column of
    probabilities for each class instead.
    """
    with importing():
        from outgrow.app.api import predict as infer_all
        from outgrow.app.models import build_model
        from outgrow.app.plan import load_recorded, recorded_model
        from outgrow.app.rundir import RunDirectory
        from outgrow.graph import datasets

    _require_writable(out)
    directory = RunDirectory.open(run)
    name, options = recorded_model(directory.config, run)
    loaded = datasets.load(graph, data_dir=data_dir) if graph else load_recorded(directory.config, data_dir)
    recorded = directory.config["model"]
    loaded = replace(loaded, num_classes=recorded["classes"], class_names=tuple(recorded["class_names"]))
    _require_features(loaded)
    model = build_model(name, loaded, options)
    directory.load_best(model)
    write_predictions(loaded, infer_all(loaded, model), out, several_labels=recorded["several_labels"])
    print(f"{loaded.num_nodes:,} predictions written to {out}", file=sys.stderr)


def write_predictions(graph: Graph, logits: Tensor, out: Path, *, several_labels: bool) -> None:
    """Write predictions as parquet; the file appears whole or not at all.

    Raises:
        InputError: It cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    from outgrow.app.rundir import writing

    columns: dict[str, Any] = {"node": pa.array(range(graph.num_nodes), pa.int64())}
    names = graph.class_names or tuple(str(i) for i in range(graph.num_classes))
    if several_labels:
        probability = logits.sigmoid()
        columns.update({name: pa.array(probability[:, i].numpy()) for i, name in enumerate(names)})
    else:
        probability, label = logits.softmax(1).max(1)
        columns["label"] = pa.array(label.numpy())
        if graph.class_names:
            columns["class"] = pa.array([names[i] for i in label.tolist()])
        columns["probability"] = pa.array(probability.numpy())
    partial = out.with_name(f".{out.name}.partial")
    with writing(out):
        try:
            parquet.write_table(pa.table(columns), partial)
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)


def _require_features(graph: Graph) -> None:
    if graph.num_features == 0:
        raise InputError(
            f"the model of the run does not fit {graph.name!r}",
            needed="features, as many as the graph of the run has",
            got="none",
            repair="give a graph with features",
        )


def _require_writable(out: Path) -> None:
    folder = out.resolve().parent
    if out.is_dir() or not folder.is_dir():
        raise InputError(
            f"cannot write {out}",
            needed="the name of a file in a directory that exists",
            got="a directory" if out.is_dir() else f"no directory {folder}",
            repair="give another --out, such as predictions.parquet",
        )
