"""``outgrow predict``: writes the predictions of a run for every node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outgrow.app.cli.options import DEVICE
from outgrow.app.messages import log_message
from outgrow.core.validation import validate_choice
from outgrow.runtime.system.environment import gc_paused_import, torchrun_world_size

if TYPE_CHECKING:
    from outgrow.app.predictions import PredictionFormat
    from outgrow.app.runs.directory import RunDirectory
    from outgrow.graph.graph import Graph
    from outgrow.nn.model import Model


def predict(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    out: Annotated[Path, typer.Option(help="File to write: .parquet for a table, .npy for an array.")],
    what: Annotated[
        str | None,
        typer.Option(
            help="classes, probabilities, logits, or embeddings: what the last layer, or a decoder, takes; of a "
            "regression values, logits (the same, as lists) or embeddings.",
            show_default="classes, or values of a regression",
        ),
    ] = None,
    graph: Annotated[
        str | None, typer.Option(help="Another graph of the same features and classes.", show_default="the run's")
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="File of nodes: .txt, one id in a line (a number if the graph has no ids), .parquet with a column id "
            "or node (numbers), or .npy of numbers or of ids that are texts.",
            show_default="all nodes",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes on this host that compute, each some of the nodes; not under torchrun.")
    ] = 1,
    device: Annotated[str, DEVICE] = "auto",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Most memory of one worker, such as 2GiB, on its GPU if it has one; mapped files do not count.",
            show_default="half of what is left",
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
) -> None:
    """Write what the best model of a run says of every node, or of some.

    A table has the columns node, id (where the graph has ids), type (where nodes have types), label, class (where
    classes have names) and probability; with several labels per node, one column of probabilities for each class
    instead. Probabilities, logits or embeddings are one more column, of lists.

    Rows are in the order of the nodes. An array has a row for each: its class (with several labels, zeros and
    ones), or probabilities, logits or embeddings.

    Of a regression a table has the column value, or value_0, value_1, ... of several targets; an array has the numbers.

    Of a run that predicts several node types, label, class, probability and value are those of the type of the node;
    nodes of other types have none. That takes a table; logits are those of all types, one type after the other.

    Of a run that predicts links there are embeddings alone: what its decoder takes of both ends.

    Rows go to the disk as they are computed, so there may be more of them than fit into memory. The file appears
    when it is complete; until then it is in a hidden folder beside it, of which nothing is left after an error.
    """
    with gc_paused_import():
        from outgrow.app.node_files import read_nodes
        from outgrow.app.output_request import make_output_request
        from outgrow.app.prediction_run import write_prediction_file
        from outgrow.app.predictions import WHAT, validate_output_path
        from outgrow.app.runs.directory import RunDirectory
        from outgrow.app.runs.signals import exit_on_ending_signals
        from outgrow.app.runs.workers import torchrun_error

    if torchrun_world_size():
        raise torchrun_error(f"one of {torchrun_world_size()} processes of torchrun")
    # The file is checked before hours of computation, not when the first chunk is written.
    if what is not None:
        validate_choice("--what", what, dict.fromkeys(WHAT))
    validate_output_path(out)
    with exit_on_ending_signals():
        directory = RunDirectory.open(run)
        loaded, model, form = _load_best_model(directory, what, graph, data_dir, out)
        ids = None if nodes is None else read_nodes(nodes, loaded)
        request = make_output_request(loaded, model, ids, device=device, workers=workers, memory=memory)
        write_prediction_file(request, form, out)
    log_message(f"{form.what} of {request.nodes.num_rows:,} nodes written to {out}")


def _load_best_model(
    directory: RunDirectory, what: str | None, graph: str | None, data_dir: Path | None, out: Path
) -> tuple[Graph, Model, PredictionFormat]:
    """Return the graph to predict on, the best model of a run, and what is written of its outputs."""
    from outgrow.app.predictions import PredictionFormat, choose_output
    from outgrow.app.runs.load_run import load_run_for_prediction
    from outgrow.app.type_predictions import choose_typed_output, list_type_outputs
    from outgrow.nn.regression import NodeRegression

    loaded, model = load_run_for_prediction(directory, graph, data_dir)
    recorded = directory.config["model"]
    # Runs of older versions recorded no task: they had classes.
    regression = recorded.get("task") == NodeRegression.kind
    types = list_type_outputs(loaded, recorded.get("targets", ()))
    form = PredictionFormat(
        what=choose_typed_output(what, out) if types else choose_output(what, regression=regression),
        class_names=tuple(recorded["class_names"]),
        multi_label=recorded["several_labels"],
        regression=regression,
        types=types,
    )
    return loaded, model, form
