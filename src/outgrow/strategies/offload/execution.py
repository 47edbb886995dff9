"""Training in chunks: waves of a problem on one worker, again in more of them if a device refuses memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes, parse_bytes
from outgrow.core.user_warnings import warn_about_memory
from outgrow.engine.layer_plan import LayerPlan
from outgrow.engine.objective import LinkTargets, StepObjective
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.ops import memory_pool
from outgrow.ops.rng import fold_in
from outgrow.ops.rows.row_encoding import RowEncoding
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.storage.scratch_dir import scratch_directory
from outgrow.strategies.base import Problem, Step
from outgrow.strategies.offload.chunking import MAX_CHUNKS, ChunkPlan, ChunkPlanner, choose_cached_waves
from outgrow.strategies.offload.memory import table_bytes
from outgrow.strategies.offload.memory_votes import PeerOutOfMemoryError
from outgrow.strategies.offload.passes import OffloadEpoch
from outgrow.strategies.offload.reorder import DISK_BANDWIDTHS, PINNED_BANDWIDTHS
from outgrow.strategies.offload.storage import OffloadStorage
from outgrow.strategies.offload.table_plan import list_tables
from outgrow.strategies.offload.wave_plan import TransferOptions

_MIB = 1 << 20
_REFUSALS = (torch.OutOfMemoryError, PeerOutOfMemoryError)
_DISK_COUNTERS = ("disk_read_bytes", "disk_written_bytes", "disk_reads")


class OffloadOptions(Protocol):
    """Options of the strategy that training in chunks depends on; see `outgrow.strategies.offload.strategy.Offload`."""

    @property
    def memory(self) -> str | None:
        """The most that the device tier may hold; None for what the machine has."""

    @property
    def host_memory(self) -> str | None:
        """The most memory that is pinned; None for half of what is left."""

    @property
    def chunks(self) -> int | None:
        """Chunks of each worker; None for as few as fit."""

    @property
    def scratch_dir(self) -> str | None:
        """Folder on a disk; None for that of temporary files."""

    @property
    def sharing(self) -> bool:
        """Whether a row that several workers need is brought from HOST once."""

    @property
    def reorganise(self) -> bool:
        """Whether an order of the chunks is looked for."""

    @property
    def storage_precision(self) -> str:
        """How rows are stored on a disk."""

    @property
    def transfer_options(self) -> TransferOptions:
        """How rows move."""


class MemoryBounds(NamedTuple):
    """Memory of a worker: what it has resident whatever the chunks, and the most that it may have."""

    base_bytes: int
    max_bytes: int


class ChunkedExecution:
    """Waves of chunks."""

    in_memory = False

    def __init__(
        self,
        problem: Problem,
        options: OffloadOptions,
        layer_plans: list[LayerPlan],
        limit: MemoryBounds,
        began: float,
    ) -> None:
        self.problem = problem
        self._options = options
        self._layer_plans = layer_plans
        self._limit = limit
        self._num_retries = 0
        self._build(options.chunks, began)

    def _build(self, num_chunks: int | None, began: float) -> None:
        """Cut into chunks, as few as fit if none are given, make all tables, and compute what is constant."""
        while True:
            self._make_tables(num_chunks, began)
            try:
                try:
                    self.offload_epoch.prepare_constants()
                    self.state.votes.check()
                    return
                except _REFUSALS as error:
                    num_chunks = self._choose_more_chunks(error)
            except BaseException:
                self.close()
                raise
            began = time.perf_counter()
            self._leave_tables()

    def _leave_tables(self) -> None:
        # Only once the error is gone, as it keeps what was computed with, and the threads that loaded it.
        gc.collect()
        self.close()

    def _make_tables(self, num_chunks: int | None, began: float) -> None:
        problem, options, limit = self.problem, self._options, self._limit
        self._io_pool = IoPool()
        counters = problem.shard.comm.ledger.counters
        self._counted_before = {name: counters[name] for name in _DISK_COUNTERS}
        with ExitStack() as stack:
            stack.callback(self._io_pool.close)
            cutter, scratch = self._open_storage(stack, options, self._layer_plans, limit)
            chunking = cutter.fewest_chunks(limit.max_bytes) if num_chunks is None else cutter.plan_chunks(num_chunks)
            self._num_chunks = chunking.num_chunks
            self._validate_memory(options, chunking, limit)
            own = len(problem.shard.owned_nodes)
            loaded = chunking.wave_sizes.loaded_rows
            sizes = cutter.number_bytes, _feature_row_bytes(problem), cutter.precision
            tables = list_tables(self._layer_plans, own, loaded, *sizes)
            needed = scratch.pin_tables(tables, self._pinnable_bytes(options), stack)
            if len(scratch.pinned_tables) < len(tables):
                copies = scratch.plan_feature_copies(cutter, chunking, problem)
                needed = scratch.reserve_disk(needed, max(0, chunking.peak_bytes - limit.base_bytes), copies)
            spare = limit.max_bytes - chunking.peak_bytes
            kept = choose_cached_waves(
                chunking.num_chunks,
                chunking.wave_sizes,
                layer_plans=self._layer_plans,
                views=len(cutter.graphs),
                spare=spare if not self._num_retries else 0,
            )
            self.state = scratch.build_state(
                cutter, chunking, problem, num_cached=kept, retries=self._retries(cutter.shard.comm.size)
            )
            stack.callback(self.state.close)
            self.offload_epoch = OffloadEpoch(self.state)
            self._record_facts(chunking, limit, kept, time.perf_counter() - began)
            problem.run_facts.update(
                scratch_bytes=needed,
                direct=scratch.direct_io,
                pinned=sorted(scratch.pinned_tables),
                feature_copy_bytes=scratch.feature_copies.num_bytes,
                out_of_memory_retries=self._num_retries,
            )
            self._stack = stack.pop_all()

    def _retries(self, num_workers: int) -> bool:
        """Whether a step is repeated in more chunks where a device refuses memory that nobody has limited."""
        # Workers exchange rows within the loss of links, where none could leave alone.
        return self._options.memory is None and (num_workers == 1 or not isinstance(self.problem.targets, LinkTargets))

    def _choose_more_chunks(self, error: RuntimeError) -> int:
        """Return twice as many chunks, once all workers have left a step. All workers together.

        Raises:
            RuntimeError: The given error, if memory is limited or chunks cannot be smaller.
        """
        comm = self.problem.shard.comm
        if not self._retries(comm.size):
            raise error
        if not isinstance(error, PeerOutOfMemoryError):
            self.state.votes.report_failure()
        most = min(MAX_CHUNKS, max(comm.all_gather_object(len(self.problem.shard.owned_nodes))))
        chunks: int = min(2 * self._num_chunks, most)
        if chunks == self._num_chunks:
            raise error
        self._num_retries += 1
        if comm.is_rank_zero:
            warn_about_memory(
                f"a device is out of memory with {self._num_chunks:,} chunks: beginning the step again with {chunks:,}"
            )
        return chunks

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`."""
        for number in range(first, self.problem.num_steps):
            yield self._run_step(epoch, number)

    def _run_step(self, epoch: int, number: int) -> Step:
        problem = self.problem
        comm = problem.shard.comm
        objective = problem.objective.for_step(problem.seed, epoch, number)
        if not objective.num_targets:
            return Step(loss=0.0, num_seeds=0)
        key = fold_in(problem.seed, epoch, number)
        loss = self._compute_gradients(objective, key)
        comm.all_reduce_gradients(problem.model)
        self._count_disk()
        return Step(loss=comm.all_reduce(loss).item(), num_seeds=objective.num_targets)

    def _compute_gradients(self, objective: StepObjective, key: int) -> Tensor:
        """Return the loss of the worker's nodes; repeat all in more chunks if a device refuses memory."""
        if not self.state.votes.retries:
            return self._compute_gradients_once(objective, key)
        parameters = list(self.problem.model.parameters())
        before = [None if each.grad is None else each.grad.clone() for each in parameters]
        while True:
            try:
                return self._compute_gradients_once(objective, key)
            except _REFUSALS as error:
                num_chunks = self._choose_more_chunks(error)
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = None if grad is None else grad.clone()
            self._leave_tables()
            self._build(num_chunks, time.perf_counter())

    def _compute_gradients_once(self, objective: StepObjective, key: int) -> Tensor:
        self.state.zero_gradients()
        with self.state.hide_edges(objective.hidden):
            self.offload_epoch.forward(key)
            loss = self.offload_epoch.backward(objective, key)
        self.state.votes.check()
        return loss

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        return self.offload_epoch.inference()

    def close(self) -> None:
        """See `Execution.close`."""
        self._count_disk()
        self._stack.close()
        memory_pool.release_idle_memory()

    def _open_storage(
        self, stack: ExitStack, options: OffloadOptions, layer_plans: list[LayerPlan], limit: MemoryBounds
    ) -> tuple[ChunkPlanner, OffloadStorage]:
        problem = self.problem
        share = self.problem.shard
        encoding = RowEncoding(problem.model.dtype, options.storage_precision)
        num_nodes = share.topology.num_nodes
        on_disk = share.comm.device.type == "cpu"  # beside a GPU there may be memory enough
        needed = (
            table_bytes(layer_plans, num_nodes, num_nodes, encoding.dtype.itemsize, encoding.precision)
            if on_disk
            else 0
        )
        parent = None if options.scratch_dir is None else Path(options.scratch_dir)
        folder = stack.enter_context(scratch_directory(parent, needed))
        views = sorted({each.layer.spec.self_loops for each in layer_plans})
        cutter = ChunkPlanner(
            shard=share,
            graphs={self_loops: ChunkGraph(share.topology, self_loops=self_loops) for self_loops in views},
            layer_plans=layer_plans,
            transfer_options=options.transfer_options,
            reorganise=options.reorganise,
            bandwidths=DISK_BANDWIDTHS if on_disk else PINNED_BANDWIDTHS,
            number_bytes=encoding.dtype.itemsize,
            precision=encoding.precision,
            base_bytes=limit.base_bytes,
            edge_bytes=problem.hidden_edge_bytes,
        )
        return cutter, OffloadStorage(share, folder, self._io_pool, encoding, sharing=options.sharing)

    def _pinnable_bytes(self, options: OffloadOptions) -> int:
        if options.host_memory is not None:
            return parse_bytes(options.host_memory)
        return available_bytes() // (2 * self.problem.shard.comm.local_world_size)

    @staticmethod
    def _validate_memory(options: OffloadOptions, chunk_plan: ChunkPlan, limit: MemoryBounds) -> None:
        """Chunks that were asked for must fit into memory that was asked for."""
        if options.memory is None or chunk_plan.peak_bytes <= limit.max_bytes:
            return
        needed = -(-chunk_plan.peak_bytes // _MIB)
        raise InputError(
            f"{chunk_plan.num_chunks:,} chunks do not fit into the memory",
            needed=f"{needed:,} MiB for each worker",
            got=options.memory,
            repair=f"give --memory {needed}MiB, or leave chunks out: it takes as many as fit",
        )

    def _record_facts(self, chunk_plan: ChunkPlan, limit: MemoryBounds, num_cached: int, seconds: float) -> None:
        order = chunk_plan.order
        layer = self.problem.model.layers_list()[0]
        needs = chunk_plan.requirements[layer.spec.self_loops]
        self.problem.run_facts.update(
            chunks=chunk_plan.num_chunks,
            memory_bytes=limit.max_bytes,
            estimated_bytes=chunk_plan.peak_bytes,
            waves_kept=num_cached,
            replication=order.range_volumes.vanilla / max(1, self.problem.shard.topology.num_nodes),
            rows_given=vars(order.range_volumes),
            rows_chosen=vars(order.chosen_volumes),
            layer_seconds_estimated=order.seconds,
            preprocessing_seconds=seconds,
            wave_rows=[len(nodes) for nodes in needs.loads],
            wave_rows_arriving=self.state.wave_file(layer).load_index.counts.sum(1).tolist(),
        )

    def _count_disk(self) -> None:
        """What was read and written physically."""
        counters, disk = self.problem.shard.comm.ledger.counters, self._io_pool
        for name, count in zip(_DISK_COUNTERS, (disk.read_bytes, disk.written_bytes, disk.read_requests), strict=True):
            counters[name] = self._counted_before[name] + count


def _feature_row_bytes(problem: Problem) -> int:
    """Return the bytes of a row of features if they are dense, else 0."""
    features = problem.features
    if not isinstance(features, Tensor):
        return 0
    return features.shape[1] * max(features.itemsize, problem.number_bytes)
