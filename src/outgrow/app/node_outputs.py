"""Outputs of a model for nodes of a graph as tensors, by this process or by several workers."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from torch import Tensor

from outgrow.app.output_request import OutputRequest, embedding_depth, logit_depth
from outgrow.app.output_workers import OutputFile, fill_output_files
from outgrow.app.worker_device import use_checked_device
from outgrow.engine.shard import FullGraphShard
from outgrow.inference.chunked import InferenceMemory
from outgrow.inference.layer_outputs import OutputRows, compute_layer_outputs, limit_inference_memory
from outgrow.ops import memory_pool
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.distributed.job_files import explain_write_error
from outgrow.runtime.storage.tempdir_reaper import temporary_directory
from outgrow.runtime.system.device import CPU, choose_device
from outgrow.runtime.system.process_memory import allocate_mapped_tensor, explain_scratch_errors, map_tensor_file
from outgrow.runtime.system.sigbus import explain_bus_errors


def compute_embeddings(request: OutputRequest) -> Tensor:
    """Return ``[n, H]`` embeddings of nodes; see `outgrow.app.api.embed`."""
    return _compute_answer(request, embedding_depth(request.model))


def compute_logits(request: OutputRequest) -> Tensor:
    """Return ``[n, C]`` logits of nodes; see `outgrow.app.api.predict`."""
    return _compute_answer(request, logit_depth(request.model))


def _compute_answer(request: OutputRequest, depth: int) -> Tensor:
    (table,) = compute_output_tables(request, [depth])
    order = request.nodes.order
    if order is None:
        return table
    out = _allocate_rows(request, (len(order), table.shape[1]), table.dtype)
    return torch.index_select(table, 0, order, out=out)


def compute_output_tables(request: OutputRequest, depths: Sequence[int], folder: Path | None = None) -> list[Tensor]:
    """Compute the outputs of some layers.

    Args:
        request: What is computed, and by how many workers.
        depths: Numbers of layers, ascending.
        folder: Where files lie whose rows do not fit into memory; None for the system's folder of temporary files.

    Returns:
        For each ``[m, O]``, a row for each node that is computed, in the order of their ids: in memory or, if it is
        too large for that, mapped from a file without a name.

    Raises:
        InputError: A disk is full, or there are too few devices.
        WorkerError: A worker has died.
    """
    if request.workers.number > 1:
        return _compute_by_workers(request, depths, folder)
    tables = {depth: allocate_table(request, depth, folder) for depth in depths}
    with closing(iterate_outputs(request, depths)) as outputs:
        for depth, first, rows in outputs:
            if len(rows) == len(tables[depth]) and rows.nbytes <= _table_bytes(request) and not rows.is_pinned():
                # All of them, in memory already: not twice. Pinned memory is no place to keep them.
                tables[depth] = rows.to(request.model.dtype)
            else:
                tables[depth][first : first + len(rows)] = rows
    return list(tables.values())


def iterate_outputs(request: OutputRequest, depths: Sequence[int]) -> Generator[OutputRows]:
    """Yield the outputs of some layers, computed by this process alone; close it or exhaust it.

    See `compute_layer_outputs`.
    """
    graph, model = request.graph, request.model
    comm = SingleProcessComm()
    use_checked_device(request.workers.device, comm)
    shard = FullGraphShard(graph.topology, comm)
    memory = limit_inference_memory(comm, request.memory_limit)
    # The file of the features may be truncated while it is mapped: reading it then raises SIGBUS.
    with explain_bus_errors(), graph.files.check_sizes_on_exit(), model.evaluating():
        model.to(comm.device)
        try:
            yield from compute_layer_outputs(model, graph, shard, depths, request.nodes.distinct, memory)
        finally:
            model.to(CPU)
            memory_pool.release_idle_memory()


def allocate_table(request: OutputRequest, depth: int, folder: Path | None = None) -> Tensor:
    """Return a table for the output of a layer, in memory or, if it is too large for that, in a file without a name.

    Raises:
        InputError: The disk is full.
    """
    return _allocate_rows(request, request.output_shape(depth), request.model.dtype, folder)


def _allocate_rows(
    request: OutputRequest, shape: tuple[int, int], dtype: torch.dtype, folder: Path | None = None
) -> Tensor:
    if shape[0] * shape[1] * dtype.itemsize <= _table_bytes(request):
        return torch.empty(shape, dtype=dtype)
    return allocate_mapped_tensor(folder or Path(tempfile.gettempdir()), shape, dtype)


def _compute_by_workers(request: OutputRequest, depths: Sequence[int], folder: Path | None) -> list[Tensor]:
    parent, dtype = folder or Path(tempfile.gettempdir()), request.model.dtype
    with ExitStack() as stack:
        with explain_write_error(parent):
            scratch = stack.enter_context(temporary_directory("outgrow-", parent))
        files = [OutputFile(depth, scratch / f"layer-{depth}", request.output_shape(depth), dtype) for depth in depths]
        for file in files:
            with explain_scratch_errors(parent, file.num_bytes):
                file.create()
        fill_output_files(request, files)
        tables = [map_tensor_file(file.path, file.shape, dtype) for file in files]
        # Small ones do not keep their file, which may lie in memory itself.
        limit = _table_bytes(request)
        return [table.clone() if table.nbytes <= limit else table for table in tables]


def _table_bytes(request: OutputRequest) -> int:
    # A limit on a worker that is another process, or on its device, does not bind this one's memory.
    comm = SingleProcessComm()
    here = request.workers.number == 1 and choose_device(request.workers.device, comm).type == "cpu"
    return InferenceMemory.of_worker(comm, request.memory_limit if here else None).table_bytes
