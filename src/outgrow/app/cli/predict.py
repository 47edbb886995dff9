"""``outgrow predict``: writes the predictions of a run for every node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.runtime.system.environment import gc_paused_import

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph


def predict(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    out: Annotated[Path, typer.Option(help="File to write: .parquet for a table, .npy for an array.")],
    what: Annotated[
        str,
        typer.Option(help="classes, probabilities, logits, or embeddings: what the last layer, or a decoder, takes."),
    ] = "classes",
    graph: Annotated[
        str | None, typer.Option(help="Another graph of the same features and classes.", show_default="the run's")
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="File of node ids: .npy, .txt with one id in a line, or .parquet with a column node.",
            show_default="all nodes",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="What to compute on: auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
) -> None:
    """Write what the best model of a run says of every node, or of some.

    A table has the columns node, label, class (where classes have names) and probability; with several labels per
    node, one column of probabilities for each class instead. Probabilities, logits or embeddings are one more column,
    of lists.

    Rows are in the order of the nodes. An array has a row for each: its class (with several labels, zeros and
    ones), or probabilities, logits or embeddings.

    Of a run that predicts links there are embeddings alone: what its decoder takes of both ends.
    """
    with gc_paused_import():
        from outgrow.app.model_registry import build_model, reads_relations
        from outgrow.app.node_files import read_nodes
        from outgrow.app.node_outputs import compute_embeddings, compute_logits, to_ids
        from outgrow.app.predictions import WHAT, Predictions, validate_output_path, write_predictions
        from outgrow.app.runs.config import load_recorded_graph, read_model_record
        from outgrow.app.runs.data import align_with_record
        from outgrow.app.runs.directory import RunDirectory
        from outgrow.graph import datasets

    # The file is checked before hours of computation, not when the first chunk is written.
    validate_choice("--what", what, dict.fromkeys(WHAT))
    validate_output_path(out)
    directory = RunDirectory.open(run)
    name, options = read_model_record(directory.config, run)
    loaded = datasets.load_graph(graph, data_dir=data_dir) if graph else load_recorded_graph(directory.config, data_dir)
    recorded = directory.config["model"]
    # The model has the classes of the run's graph; another graph may have no labels, or other names.
    loaded = replace(loaded, num_classes=recorded["classes"], class_names=tuple(recorded["class_names"]))
    _require_features(loaded)
    loaded = align_with_record(loaded, directory.config, reads_relations=reads_relations(name, options))
    model = build_model(name, loaded, options)
    directory.load_best(model)
    ids = to_ids(None if nodes is None else read_nodes(nodes), loaded.num_nodes)
    asked = None if nodes is None else ids
    embeddings = compute_embeddings(loaded, model, asked, device) if what == "embeddings" else None
    # Parquet has labels next to embeddings.
    needs_logits = what != "embeddings" or (out.suffix != ".npy" and model.decoder is None)
    predictions = Predictions(
        nodes=ids,
        logits=compute_logits(loaded, model, asked, device, embeddings if asked is None else None)
        if needs_logits
        else None,
        embeddings=embeddings,
        class_names=loaded.class_names,
        multi_label=recorded["several_labels"],
    )
    write_predictions(predictions, what, out)
    print(f"{what} of {len(ids):,} nodes written to {out}", file=sys.stderr)


def _require_features(graph: Graph) -> None:
    if graph.num_features == 0:
        raise InputError(
            f"the model of the run does not fit {graph.name!r}",
            needed="features, as many as the graph of the run has",
            got="none",
            repair="give a graph with features",
        )
