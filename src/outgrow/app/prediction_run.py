"""From a request to a file of predictions: rows go to the disk as they are computed, and the file appears complete."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import torch

from outgrow.app.node_names import NodeNames
from outgrow.app.node_outputs import allocate_table, compute_output_tables, iterate_outputs
from outgrow.app.output_request import Nodes, OutputRequest, embedding_depth, logit_depth, make_output_request
from outgrow.app.output_workers import OutputFile, fill_output_files
from outgrow.app.predictions import (
    PredictionFormat,
    PredictionRows,
    count_group_rows,
    validate_output_path,
    write_predictions,
)
from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.arguments import check_arguments
from outgrow.core.files import atomic_write
from outgrow.graph.graph import Graph
from outgrow.graph.store.manifest import ArrayEntry
from outgrow.nn.model import Model
from outgrow.runtime.storage.tempdir_reaper import temporary_directory


def write_prediction_file(request: OutputRequest, form: PredictionFormat, out: Path) -> None:
    """Compute outputs of nodes and write them to a file, which appears complete or not at all.

    Nothing is held but chunks, and tables of rows that fit into memory. One worker writes rows of a request in
    ascending order as they are computed. Several write the rows of an array to their places in the file; those of a
    parquet file, and those of nodes in another order, to a table beside it, of which the file is made.

    Args:
        request: What is computed, and by how many workers.
        form: What the file holds.
        out: File to write or replace, ``.parquet`` or ``.npy``.

    Raises:
        InputError: The model has no such output, or the file cannot be written.
        WorkerError: A worker has died.
    """
    names = NodeNames(request.graph)
    depths = _find_depths(request, form, is_table=out.suffix != ".npy")
    with _hidden_folder(out) as folder:
        written = folder / out.name
        if out.suffix == ".npy":
            _require_room(request, form, depths[0], out)
        if request.nodes.order is not None or (request.workers.number > 1 and out.suffix != ".npy"):
            write_predictions(form, names, _read_tables(request, form, depths, folder), written, out)
        elif request.workers.number > 1:
            _write_array_by_workers(request, form, depths[0], written, out)
        else:
            write_predictions(form, names, _compute_rows(request, form, depths, folder), written, out)
        # It is written already: above, errors of what computes the rows are not taken for those of the file.
        with convert_write_errors(out), atomic_write(out, temporary=written):
            pass


@check_arguments(unchecked=("graph", "model", "nodes"))
def save_embeddings(
    graph: Graph,
    model: Model,
    out: str | Path,
    nodes: Nodes = None,
    *,
    device: str = "auto",
    workers: int = 1,
    memory: str | None = None,
) -> None:
    """Write embeddings of nodes to a file, in blocks, so that there may be more of them than fit into memory.

    A ``.parquet`` file has the columns ``node`` (the number), ``id`` and ``type`` where the graph has these, and
    ``embedding``, a list of ``H`` numbers; an ``.npy`` file an array ``[n, H]``. It appears complete or not at all.

    Args:
        graph: Graph with what the model reads.
        model: Model with at least two layers or a decoder.
        out: File to write or replace.
        nodes: Nodes: see `embed`, as are ``device``, ``workers`` and ``memory``.
        device: What each worker computes on.
        workers: Number of worker processes on this host.
        memory: Limit on the memory of a worker.

    Raises:
        InputError: The file cannot be written, or see `embed`.
        WorkerError: A worker has died.
    """
    path = Path(out)
    validate_output_path(path)
    request = make_output_request(graph, model, nodes, device=device, workers=workers, memory=memory)
    write_prediction_file(request, PredictionFormat(what="embeddings", has_labels=False), path)


@contextmanager
def _hidden_folder(out: Path) -> Iterator[Path]:
    """Create a folder beside a file, removed when the context ends or when this process does, even by SIGKILL."""
    with ExitStack() as stack:
        with convert_write_errors(out):
            folder = stack.enter_context(temporary_directory(f".{out.name}.", out.parent))
        yield folder


def _find_depths(request: OutputRequest, form: PredictionFormat, *, is_table: bool) -> list[int]:
    """Return how many layers give what a file holds, ascending: embeddings are alone but in tables of classes."""
    if form.what != "embeddings":
        return [logit_depth(request.model)]
    embeddings = embedding_depth(request.model)
    needs_logits = is_table and form.has_labels and request.model.decoder is None
    return [embeddings, logit_depth(request.model)] if needs_logits else [embeddings]


def _compute_rows(
    request: OutputRequest, form: PredictionFormat, depths: list[int], folder: Path
) -> Generator[PredictionRows]:
    """Yield rows as this process computes them; of two layers, once the last one is computed."""
    below = allocate_table(request, depths[0], folder) if len(depths) == 2 else None
    with closing(iterate_outputs(request, depths)) as outputs:
        for depth, first, rows in outputs:
            last = first + len(rows)
            if depth != depths[-1]:
                assert below is not None
                below[first:last] = rows
                continue
            nodes = request.nodes.ids_of_rows(first, last)
            if below is not None:
                yield PredictionRows(nodes, logits=rows, embeddings=below[first:last])
            elif form.what == "embeddings":
                yield PredictionRows(nodes, embeddings=rows)
            else:
                yield PredictionRows(nodes, logits=rows)


def _read_tables(
    request: OutputRequest, form: PredictionFormat, depths: list[int], folder: Path
) -> Generator[PredictionRows]:
    """Compute all rows, then yield them in the order of the request."""
    tables = compute_output_tables(request, depths, folder)
    logits = None if form.what == "embeddings" and len(depths) == 1 else tables[-1]
    embeddings = tables[0] if form.what == "embeddings" else None
    nodes, num_rows = request.nodes, request.nodes.num_rows
    columns = PredictionRows(torch.empty(0, dtype=torch.int64), logits, embeddings)
    step = count_group_rows(columns)
    for first in range(0, max(1, num_rows), step):
        last = min(first + step, num_rows)
        yield PredictionRows(
            nodes.ids_of_rows(first, last),
            *(None if table is None else nodes.select_rows(table, first, last) for table in columns[1:]),
        )


def _write_array_by_workers(request: OutputRequest, form: PredictionFormat, depth: int, path: Path, out: Path) -> None:
    num_rows, width = request.output_shape(depth)
    # What one row is converted to shows shape and type of all.
    sample = form.convert_outputs(torch.zeros(1, width, dtype=request.model.dtype))
    entry = ArrayEntry(
        shape=(num_rows, *sample.shape[1:]), dtype=sample.numpy().dtype.newbyteorder("<").str, size=0, sha256=""
    )
    file = OutputFile(
        depth,
        path,
        (num_rows, sample.numel()),
        sample.dtype,
        header=entry.encode_header(),
        convert=form.convert_outputs,
    )
    with convert_write_errors(out):
        file.create()
    fill_output_files(request, [file])


def _require_room(request: OutputRequest, form: PredictionFormat, depth: int, out: Path) -> None:
    """Check that a disk has room for an array, before hours of computation; what has none for it later says so."""
    width = request.output_shape(depth)[1]
    row_bytes = form.convert_outputs(torch.zeros(1, width, dtype=request.model.dtype)).nbytes
    needed = request.nodes.num_rows * row_bytes
    with convert_write_errors(out):
        free = shutil.disk_usage(out.parent).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes are needed, {free:,} are free")
