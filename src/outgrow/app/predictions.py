"""Predictions and embeddings of every node, and the files that they are written to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outgrow.app.compatibility import (
    validate_argument_types,
    validate_model_fits_graph,
    warn_of_unread_weights,
)
from outgrow.app.runs.data import align_with_model
from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write
from outgrow.engine.inference import infer_full_graph
from outgrow.graph.graph import Graph
from outgrow.graph.store.writer import ArrayWriter
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.nn.tasks import MultiLabel, SingleLabel
from outgrow.ops import memory_pool
from outgrow.runtime.system.sigbus import explain_bus_errors

if TYPE_CHECKING:
    import pyarrow as pa


_CHUNK_BYTES = 64 << 20
WHAT = ("classes", "probabilities", "logits", "embeddings")
"""Outputs that can be written for every node."""


def compute_embeddings(graph: Graph, model: Model) -> Tensor:
    """Return ``[V, H]`` embeddings of every node; see `outgrow.app.api.embed`."""
    graph = _validate_inputs(graph, model)
    stages = model.layers_list()
    if model.decoder is not None:
        return _infer_rows(graph, model, stages)
    if len(stages) == 1:
        raise InputError(
            "the model has no embeddings",
            needed="at least 2 layers: embeddings are the input of the last one",
            got="1 layer, which takes the features themselves",
            repair="train a model with more layers, or ask for its logits",
        )
    return _infer_rows(graph, model, stages[:-1])


def compute_logits(graph: Graph, model: Model, embeddings: Tensor | None = None) -> Tensor:
    """Return ``[V, C]`` logits of every node, from its embeddings if given; see `outgrow.app.api.predict`."""
    graph = _validate_inputs(graph, model)
    assert graph.features is not None
    if model.decoder is not None:
        raise InputError(
            "link models have no per-node predictions",
            needed="a model without a decoder, or embeddings, which the decoder takes",
            got=f"a model with the decoder {type(model.decoder).__name__}",
            repair="ask for embeddings: `outgrow predict RUN --what embeddings`, or og.embed(graph, model)",
        )
    # The file of the features may be truncated while it is mapped: reading it then raises SIGBUS.
    with explain_bus_errors(), graph.files.check_sizes_on_exit(), model.evaluating():
        if embeddings is None:
            logits = infer_full_graph(model, graph.topology, graph.features)
        else:
            # Only the last layer is left to compute.
            logits = infer_full_graph(model, graph.topology, embeddings, layers=model.layers_list()[-1:])
    # The pool keeps buffers of whole layers, which the caller has no use for.
    memory_pool.release_idle_memory()
    return logits


def _infer_rows(graph: Graph, model: Model, layers: Sequence[Layer]) -> Tensor:
    assert graph.features is not None
    with explain_bus_errors(), graph.files.check_sizes_on_exit(), model.evaluating():
        rows = infer_full_graph(model, graph.topology, graph.features, layers=layers)
    memory_pool.release_idle_memory()
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Outputs of a model for every node.

    Attributes:
        logits: ``[V, C]``; None if they were not computed.
        embeddings: ``[V, H]``; None if they were not computed.
        class_names: Names of the classes; may be empty.
        multi_label: Whether a node may have several labels.
    """

    logits: Tensor | None = None
    embeddings: Tensor | None = None
    class_names: tuple[str, ...] = ()
    multi_label: bool = False

    def select_rows(self, what: str, first: int, last: int) -> Tensor:
        """Return the output for the nodes ``first`` to ``last - 1``.

        Args:
            what: One of `WHAT`: classes are ``[n]`` int64 or, if multi-label, ``[n, C]`` uint8 zeros and
                ones; probabilities and logits are ``[n, C]``; embeddings are ``[n, H]``.
            first: First node.
            last: End of the range, exclusive.
        """
        values = self.embeddings if what == "embeddings" else self.logits
        assert values is not None
        rows = values[first:last]
        if what == "classes":
            return (MultiLabel() if self.multi_label else SingleLabel()).predict(rows)
        if what == "probabilities":
            return rows.sigmoid() if self.multi_label else rows.softmax(1)
        return rows

    def chunk_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of nodes, end exclusive, that need about 64 MiB each to be written."""
        known = [values for values in (self.logits, self.embeddings) if values is not None]
        # Each value exists up to three times: as output, as probability and in the table that is written.
        step = max(1, _CHUNK_BYTES // sum(3 * values[:1].nbytes + 1 for values in known))
        for first in range(0, len(known[0]), step):
            yield first, min(first + step, len(known[0]))


def validate_output_path(out: Path) -> None:
    """Check that predictions can be written to a file, before anything is computed.

    Raises:
        InputError: Its name has an unknown ending, or its directory is missing or read-only.
    """
    folder = out.resolve().parent
    repair = "give another --out, such as predictions.parquet"
    if out.is_dir():
        needed, got = "the name of a file", "a directory"
    elif not folder.is_dir():
        needed, got = "a file in a directory that exists", f"no directory {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        needed, got = "a writable directory", f"no permission to write to {folder}"
    elif out.suffix not in (".parquet", ".npy"):
        needed, got = "a name that ends in .parquet or .npy", f"the ending {out.suffix!r}" if out.suffix else "none"
    else:
        return
    raise InputError(f"cannot write {out}", needed=needed, got=got, repair=repair)


def write_predictions(predictions: Predictions, what: str, out: Path) -> None:
    """Write predictions in chunks, atomically, as parquet or npy according to the ending of the file.

    Args:
        predictions: Predictions with what ``what`` needs; for parquet also with logits, unless the model
            predicts links.
        what: One of `WHAT`. An npy file holds an array of it; a parquet file a column of lists, next to the
            columns of the classes.
        out: File to write or replace.

    Raises:
        InputError: The file cannot be written.
    """
    write = _write_array if out.suffix == ".npy" else _write_table
    with convert_write_errors(out), atomic_write(out) as temporary:
        write(predictions, what, temporary)


def _write_array(predictions: Predictions, what: str, path: Path) -> None:
    sample = predictions.select_rows(what, 0, 1).numpy()
    with closing(ArrayWriter(path, sample.dtype, sample.shape[1:])) as array:
        for first, last in predictions.chunk_ranges():
            array.append_rows(predictions.select_rows(what, first, last).numpy())
        array.finish_array()


def _write_table(predictions: Predictions, what: str, path: Path) -> None:
    from pyarrow import parquet

    tables = (_make_table(predictions, what, first, last) for first, last in predictions.chunk_ranges())
    # The writer needs the schema, which the first chunk determines.
    head = next(tables)
    with parquet.ParquetWriter(path, head.schema) as file:
        for table in chain([head], tables):
            file.write_table(table)


def _make_table(predictions: Predictions, what: str, first: int, last: int) -> pa.Table:
    import pyarrow as pa

    columns = {"node": pa.array(torch.arange(first, last).numpy())}
    if predictions.logits is not None:
        columns |= _class_columns(predictions, first, last)
    if what != "classes":
        rows = predictions.select_rows(what, first, last)
        name = "embedding" if what == "embeddings" else what
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(rows.flatten().numpy()), rows.shape[1])
    return pa.table(columns)


def _class_columns(predictions: Predictions, first: int, last: int) -> dict[str, Any]:
    """Return the columns of labels, class names and probabilities."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    probability = predictions.select_rows("probabilities", first, last)
    names = predictions.class_names
    if predictions.multi_label:
        names = names or tuple(str(i) for i in range(probability.shape[1]))
        columns |= {name: pa.array(probability[:, i].numpy()) for i, name in enumerate(names)}
    else:
        label = predictions.select_rows("classes", first, last)
        columns["label"] = pa.array(label.numpy())
        if names:
            columns["class"] = pa.array(names, pa.string()).take(columns["label"])
        columns["probability"] = pa.array(probability.gather(1, label[:, None])[:, 0].numpy())
    return columns


def _validate_inputs(graph: Graph, model: Model) -> Graph:
    """Return the graph, with its relations and columns in the order that the model was trained with."""
    validate_argument_types(graph, model)
    if graph.features is None:
        raise InputError(
            f"graph {graph.name!r} has no features", needed="features", got="none", repair="add features to the graph"
        )
    graph = align_with_model(graph, model)
    validate_model_fits_graph(graph, model)
    warn_of_unread_weights(graph, model)
    return graph
