"""Where the rows of node embeddings are kept: in memory or, where there is too little, in files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from outgrow.core.memory_limits import available_bytes
from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.engine.embeddings.row_sections import MEMORY_SHARE, FileSections, SectionMaker, TensorSections
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings, rows_in_ranges
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.storage.scratch_dir import scratch_directory

IN_FLIGHT = 16
"""Requests at a time: rows of batches lie here and there, and threads that wait for a disk need no processor."""


def embedding_bytes(
    model: Model, optimizer: RowOptimizer, nodes_N: Tensor, num_nodes: int, *, gathers_batches: bool
) -> int:
    """Return the bytes of the vectors of some nodes, with their moments and, for whole graphs, gradients.

    Args:
        model: The model, bound to the types of the graph.
        optimizer: Updates rows.
        nodes_N: ``[N]`` int64, the nodes; those of types without vectors have no bytes.
        num_nodes: Number of nodes of the graph.
        gathers_batches: Whether gradients are those of batches, which are not counted.
    """
    copies = 1 + len(optimizer.state_names) + (not gathers_batches)
    found = 0
    for each in find_embeddings(model).values():
        rows = int((rows_in_ranges(nodes_N, each.embedded_ranges(num_nodes)) >= 0).sum())
        found += copies * rows * each.dim * each.dtype.itemsize
    return found


def choose_sections(
    stack: ExitStack, comm: Comm, needed_bytes: int, *, limit: int | None, scratch_dir: str | None
) -> SectionMaker:
    """Return what makes sections, in memory or in files. All workers together.

    Args:
        stack: Ends the files.
        comm: Communicator of the workers.
        needed_bytes: Bytes of the rows of this worker.
        limit: Limit on the bytes in the memory of the worker; None for what there is.
        scratch_dir: Folder for files; None for the system's temporary folder.
    """
    free = available_bytes() // comm.local_world_size if limit is None else limit
    fits = comm.device.type != "cpu" or needed_bytes <= MEMORY_SHARE * free
    # Agreed on, as other choices are: one worker's files would be another's memory.
    if all(comm.all_gather_object(fits)):
        return TensorSections(comm.device)
    folder = stack.enter_context(scratch_directory(None if scratch_dir is None else Path(scratch_dir), needed_bytes))
    io_pool = IoPool(in_flight=IN_FLIGHT)
    stack.callback(io_pool.close)
    return FileSections(folder, io_pool)
