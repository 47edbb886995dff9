"""What a model says of every node, and the files that it is written to."""

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

from outgrow.app.compatibility import validate_argument_types, validate_model_fits_graph
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
"""What can be written of every node."""


def compute_embeddings(graph: Graph, model: Model) -> Tensor:
    """``[V, H]`` output of the last but one layer for every node, of the last one in a model of links; see `embed`."""
    _validate_inputs(graph, model)
    stages = model.layers_list()
    if model.decoder is not None:
        return _infer_rows(graph, model, stages)
    if len(stages) == 1:
        raise InputError(
            "the model has no embeddings",
            needed="at least 2 layers: embeddings are what the last layer takes from the one before",
            got="1 layer, which takes the features themselves",
            repair="train a model with more layers, or ask for its logits",
        )
    return _infer_rows(graph, model, stages[:-1])


def compute_logits(graph: Graph, model: Model, embeddings: Tensor | None = None) -> Tensor:
    """``[V, C]`` logits of every node, from its embeddings where these are known; see `outgrow.app.api.predict`."""
    _validate_inputs(graph, model)
    assert graph.features is not None
    if model.decoder is not None:
        raise InputError(
            "a model of links says nothing of nodes alone",
            needed="a model without a decoder, or embeddings, which the decoder takes",
            got=f"a model with the decoder {type(model.decoder).__name__}",
            repair="ask for embeddings: `outgrow predict RUN --what embeddings`, or og.embed(graph, model)",
        )
    with explain_bus_errors(), graph.files.check_sizes_on_exit():
        if embeddings is None:
            logits = infer_full_graph(model, graph.topology, graph.features)
        else:
            logits = infer_full_graph(model, graph.topology, embeddings, layers=model.layers_list()[-1:])
    memory_pool.release_idle_memory()
    return logits


def _infer_rows(graph: Graph, model: Model, layers: Sequence[Layer]) -> Tensor:
    assert graph.features is not None
    with explain_bus_errors(), graph.files.check_sizes_on_exit():
        rows = infer_full_graph(model, graph.topology, graph.features, layers=layers)
    memory_pool.release_idle_memory()
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """What a model says of every node.

    Attributes:
        logits: ``[V, C]``; None if they were not computed.
        embeddings: ``[V, H]``; None if they were not computed.
        class_names: Name of each class, or empty.
        multi_label: Whether a node may have several labels.
    """

    logits: Tensor | None = None
    embeddings: Tensor | None = None
    class_names: tuple[str, ...] = ()
    multi_label: bool = False

    def select_rows(self, what: str, first: int, last: int) -> Tensor:
        """What is said of the nodes ``first`` to ``last - 1``.

        Args:
            what: One of `WHAT`: classes are ``[n]`` int64, or ``[n, C]`` uint8 zeros and ones with several labels per
                node; probabilities and logits ``[n, C]``; embeddings ``[n, H]``.
            first: The first node.
            last: The node after the last.
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
        """The first node, and the one after the last, of chunks that need some 64 MiB to be written."""
        known = [values for values in (self.logits, self.embeddings) if values is not None]
        step = max(1, _CHUNK_BYTES // sum(3 * values[:1].nbytes + 1 for values in known))
        for first in range(0, len(known[0]), step):
            yield first, min(first + step, len(known[0]))


def validate_output_path(out: Path) -> None:
    """Refuse a file that could not be written, before anything is computed.

    Raises:
        InputError: Its name is of no known form, or it cannot be in that place.
    """
    folder, repair = out.resolve().parent, "give another --out, such as predictions.parquet"
    if out.is_dir():
        needed, got = "the name of a file", "a directory"
    elif not folder.is_dir():
        needed, got = "a file in a directory that exists", f"no directory {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        needed, got = "a directory that can be written to", f"no permission to write to {folder}"
    elif out.suffix not in (".parquet", ".npy"):
        needed, got = "a name that ends in .parquet or .npy", f"the ending {out.suffix!r}" if out.suffix else "none"
    else:
        return
    raise InputError(f"cannot write {out}", needed=needed, got=got, repair=repair)


def write_predictions(predictions: Predictions, what: str, out: Path) -> None:
    """Write predictions in chunks, as parquet or npy by the file's name; the file appears whole or not at all.

    Args:
        predictions: With the logits where it is parquet, or where ``what`` needs them; with embeddings if asked for.
        what: One of `WHAT`. In npy, an array of these; in parquet a column of lists beside those of the classes.
        out: The file; one that is there is replaced.

    Raises:
        InputError: It cannot be written.
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
    """Labels, names of classes and probabilities, column by column."""
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


def _validate_inputs(graph: Graph, model: Model) -> None:
    validate_argument_types(graph, model)
    if graph.features is None:
        raise InputError(
            f"graph {graph.name!r} has no features", needed="features", got="none", repair="add features to the graph"
        )
    validate_model_fits_graph(graph, model)
