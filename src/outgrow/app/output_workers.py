"""Outputs of nodes by several worker processes on this host, which write their rows into files that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from outgrow.app.output_request import OutputRequest
from outgrow.app.runs.workers import GRAPH
from outgrow.app.worker_device import use_checked_device
from outgrow.core.files import reserve_space
from outgrow.engine.shard import GraphShard, make_shard, model_topology
from outgrow.graph.partition.methods import RangePartitioner
from outgrow.graph.store.reader import matches_store, open_store, write_store
from outgrow.inference.layer_outputs import compute_layer_outputs, limit_inference_memory
from outgrow.nn.model import Model
from outgrow.ops.subgraph import are_consecutive
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.system.process_memory import trim_memory

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import WorkerContext


class OutputFile(NamedTuple):
    """A file for the output of a layer: a row for each node that is computed, in the order of their ids.

    Attributes:
        depth: Number of layers up to that one, itself included.
        path: Path of the file, the same for all workers.
        shape: ``(m, W)`` of the rows.
        dtype: Type of the rows.
        header: Bytes before the first row.
        convert: Makes rows of the file ``[k, W]`` or ``[k]`` out of outputs ``[k, O]``; None to write outputs.
    """

    depth: int
    path: Path
    shape: tuple[int, int]
    dtype: torch.dtype
    header: bytes = b""
    convert: Callable[[Tensor], Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return len(self.header) + self.shape[0] * self.shape[1] * self.dtype.itemsize

    def create(self) -> None:
        """Create the file at its full size, with room on the disk for all of it.

        Raises:
            OSError: The disk is full, or the file cannot be written.
        """
        with self.path.open("xb") as file:
            file.write(self.header)
            file.flush()
            reserve_space(file.fileno(), self.num_bytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionJob:
    """Task that every worker process runs.

    Attributes:
        store: Graph store; None for the one in the workers' scratch folder.
        model: The model.
        device: Device that workers compute on.
        nodes: ``[m]`` int64, the nodes to compute, ascending; None for all.
        files: Files to fill, by ascending depth.
        memory_limit: Limit on the bytes in the DEVICE tier of a worker; None for what there is.
    """

    store: Path | None
    model: Model
    device: str
    nodes: Tensor | None
    files: tuple[OutputFile, ...]
    memory_limit: int | None = None

    def __call__(self, context: WorkerContext) -> None:
        """Compute the own nodes, and write their rows to where they belong."""
        model, comm = self.model, context.comm
        use_checked_device(self.device, comm)
        graph = open_store(self.store or context.folder / GRAPH)
        # Not kept in the store: ranges take no time to find. They make the rows of a worker consecutive, too.
        partitioner, first_layer = RangePartitioner(balance="edges"), model.layers_list()[0]
        topology = model_topology(graph.topology, model)
        shard = make_shard(topology, comm, partitioner, None, self_loops=first_layer.spec.self_loops)
        nodes = None if self.nodes is None else shard.filter_owned(self.nodes)
        begin = self._find_first_row(shard)
        trim_memory()  # sharding leaves large temporary arrays behind
        depths = [file.depth for file in self.files]
        with graph.files.check_sizes_on_exit(), model.evaluating(), ExitStack() as stack:
            model.to(comm.device)
            io_pool = IoPool()
            stack.callback(io_pool.close)
            tables = {file.depth: _OpenFile(stack, io_pool, file) for file in self.files}
            memory = limit_inference_memory(comm, self.memory_limit)
            for depth, first, rows in compute_layer_outputs(model, graph, shard, depths, nodes, memory):
                tables[depth].write_outputs(begin + first, rows, memory.chunk_bytes)

    def _find_first_row(self, shard: GraphShard) -> int:
        own = shard.owned_nodes
        assert are_consecutive(own)
        first = int(own[0]) if len(own) else 0
        return first if self.nodes is None else int(torch.searchsorted(self.nodes, first))


def fill_output_files(request: OutputRequest, files: Sequence[OutputFile]) -> None:
    """Create files and have workers fill them. Nothing but these files is left, nor they after an error of theirs.

    Args:
        request: What is computed, and by how many workers.
        files: The files, by ascending depth.

    Raises:
        InputError: A worker cannot use its input.
        WorkerError: A worker has died.
    """
    from outgrow.runtime.distributed.launch import run_workers

    # Labels play no part in what a model computes.
    graph = request.graph.whole
    job = PredictionJob(
        # A graph loaded from a store and not changed since needs no copy: workers map the store itself.
        store=graph.store if matches_store(graph) else None,
        model=request.model,
        device=request.workers.device,
        nodes=request.nodes.distinct,
        files=tuple(files),
        memory_limit=request.memory_limit,
    )
    run_workers(
        job,
        request.workers.number,
        heartbeat_seconds=request.workers.heartbeat_seconds,
        prepare=lambda folder: None if job.store else write_store(graph, folder / GRAPH),
    )


class _OpenFile:
    def __init__(self, stack: ExitStack, io_pool: IoPool, file: OutputFile) -> None:
        self._convert = file.convert
        self._table = RowFile.open_existing(io_pool, file.path, *file.shape, file.dtype, offset=len(file.header))
        stack.callback(self._table.close)

    def write_outputs(self, first: int, rows: Tensor, chunk_bytes: int) -> None:
        # A piece may be a whole layer, of which nothing is to be made at once.
        step = max(1, chunk_bytes // max(1, rows[:1].nbytes))
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            values = part if self._convert is None else self._convert(part)
            self._table.write_range(first + at, values.reshape(len(part), self._table.width).contiguous())
