"""`offload`: full-graph training beyond memory. Node data lives in HOST; chunks of it move to the device, wave by wave.

Wang et al.: HongTu: scalable full-graph GNN training on multiple GPUs, SIGMOD 2023. Each worker cuts its
nodes into chunks of equal computation, and the workers run one chunk each at a time: a wave. A row that
several chunks of a wave need is brought from HOST once, a row that the next wave needs stays where it is, and
chunks are put in an order in which that happens most. Aggregates without parameters are kept for the backward
pass; others are computed again.

On a CPU the device is memory, and HOST is scratch files on a disk. Beside a GPU HOST is pinned memory, from
which the GPU gathers rows itself, or a disk where that is too little.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes, parse_bytes
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.layer_plan import LayerPlan, plan_layers
from outgrow.engine.nodewise import predicts_links_by_node
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.ops import memory_pool
from outgrow.ops.rng import fold_in
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.storage.scratch_dir import scratch_directory
from outgrow.runtime.system.device import free_device_bytes, used_device_bytes
from outgrow.runtime.system.process_memory import return_freed_memory
from outgrow.strategies.base import Execution, FullGraphExecution, Problem, Step, Strategy
from outgrow.strategies.offload.chunking import ChunkPlan, ChunkPlanner, choose_cached_waves, fits_whole
from outgrow.strategies.offload.memory import table_bytes
from outgrow.strategies.offload.nodewise import NodewiseExecution
from outgrow.strategies.offload.passes import OffloadEpoch
from outgrow.strategies.offload.reorder import DISK_BANDWIDTHS, PINNED_BANDWIDTHS
from outgrow.strategies.offload.storage import OffloadStorage
from outgrow.strategies.offload.table_plan import list_tables
from outgrow.strategies.offload.wave_plan import TransferOptions

_MIB = 1 << 20


@renamed_options(scratch="scratch_dir")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Offload(Strategy):
    """Full-graph training in chunks that move between HOST and the device. One step per epoch, but for links.

    Attributes:
        memory: The most that the device tier of one worker may hold, such as ``"2GiB"``: tensors on a GPU; on
            a CPU its memory, that of the interpreter included. None for what the machine has.
        host_memory: The most memory that one worker may pin beside a GPU; what needs more is on a disk. None
            for half of what the machine has left.
        chunks: Chunks of each worker; None for as few as fit into ``memory``.
        partition: How nodes are dealt out to workers: see ``outgrow partition``.
        scratch_dir: Folder on a disk for what does not fit; None for the system's folder of temporary files.
        sharing: Whether a row that several workers need in a wave is brought from HOST once and passed on.
        reuse: Whether rows that the next wave needs stay in place.
        reorganise: Whether chunks are put in an order in which rows are shared and reused most.
        overlap: Whether the next wave's rows are brought, and the last one's written, while a wave is
            computed.
        cache: Whether aggregates without parameters are kept for the backward pass; else they are computed
            again.
    """

    name = "offload"
    exact = True

    memory: str | None = None
    host_memory: str | None = None
    chunks: int | None = None
    partition: str = "metis-both"
    scratch_dir: str | None = None
    sharing: bool = True
    reuse: bool = True
    reorganise: bool = True
    overlap: bool = True
    cache: bool = True

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        for given in (self.memory, self.host_memory):
            if given is not None:
                parse_bytes(given)
        validate_positive(self.name, chunks=self.chunks)

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    @property
    def transfer_options(self) -> TransferOptions:
        """Those of its options that say how rows move."""
        return TransferOptions(sharing=self.sharing, reuse=self.reuse, overlap=self.overlap)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`: in chunks, or all at once where that fits into memory and no chunks are asked for."""
        began = time.perf_counter()
        return_freed_memory()
        comm = problem.shard.comm
        traits = plan_layers(
            problem.model, problem.all_features, cache=self.cache, keeps_constants=not problem.hides_edges
        )
        beside = problem.read_row_bytes  # first, since a goal holds memory from when it is made
        held = used_device_bytes(comm.device)
        base = held + beside
        if self.memory is None:
            budget = held + free_device_bytes(comm.device) // (
                1 if comm.device.type == "cuda" else comm.local_world_size
            )
        else:
            budget = parse_bytes(self.memory)
        if self.computes_read_rows(problem):
            return self._prepare_by_node(problem, base, budget)
        if self.chunks is None and _fits_in_memory(problem, traits, base, budget):
            problem.run_facts.update(chunks=0, memory_bytes=budget)
            return FullGraphExecution(problem)
        return _ChunkedExecution(problem, self, traits, _MemoryBounds(base, budget), began)

    def computes_read_rows(self, problem: Problem) -> bool:
        """See `Strategy.computes_read_rows`: where nothing of a node depends on others, unless chunks are asked for."""
        return self.chunks is None and predicts_links_by_node(problem)

    def _prepare_by_node(self, problem: Problem, needed: int, budget: int) -> Execution:
        if self.memory is not None and needed > budget:
            raise InputError(
                "the rows of the nodes of a step do not fit into the memory",
                needed=f"{-(-needed // _MIB):,} MiB for each worker",
                got=self.memory,
                repair="give more link_steps, of which each asks about fewer links; fewer negatives; or more --memory",
            )
        problem.run_facts.update(chunks=0, memory_bytes=budget, estimated_bytes=needed)
        return NodewiseExecution(problem)


class _MemoryBounds(NamedTuple):
    """Memory of a worker: what it has resident whatever the chunks, and the most that it may have."""

    base_bytes: int
    max_bytes: int


class _ChunkedExecution:
    """Waves of chunks."""

    in_memory = False

    def __init__(
        self, problem: Problem, options: Offload, layer_plans: list[LayerPlan], limit: _MemoryBounds, began: float
    ) -> None:
        self.problem = problem
        self._io_pool = IoPool()
        with ExitStack() as stack:
            stack.callback(self._io_pool.close)
            cutter, scratch = self._open_storage(stack, options, layer_plans, limit)
            chunking = (
                cutter.fewest_chunks(limit.max_bytes) if options.chunks is None else cutter.plan_chunks(options.chunks)
            )
            self._validate_memory(options, chunking, limit)
            own = len(problem.shard.owned_nodes)
            loaded = chunking.wave_sizes.loaded_rows
            tables = list_tables(layer_plans, own, loaded, cutter.number_bytes, _feature_row_bytes(problem))
            needed = scratch.pin_tables(tables, self._pinnable_bytes(options), stack)
            if len(scratch.pinned_tables) < len(tables):
                copies = scratch.plan_feature_copies(cutter, chunking, problem)
                needed = scratch.reserve_disk(needed, max(0, chunking.peak_bytes - limit.base_bytes), copies)
            spare = limit.max_bytes - chunking.peak_bytes
            kept = choose_cached_waves(
                chunking.num_chunks,
                chunking.wave_sizes,
                layer_plans=layer_plans,
                views=len(cutter.graphs),
                spare=spare,
            )
            self.state = scratch.build_state(cutter, chunking, problem, num_cached=kept)
            stack.callback(self.state.close)
            self.offload_epoch = OffloadEpoch(self.state)
            self._record_facts(chunking, limit, kept, time.perf_counter() - began)
            problem.run_facts.update(
                scratch_bytes=needed,
                direct=scratch.direct_io,
                pinned=sorted(scratch.pinned_tables),
                feature_copy_bytes=scratch.feature_copies.num_bytes,
            )
            self.offload_epoch.prepare_constants()
            self._stack = stack.pop_all()

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
        self.state.zero_gradients()
        with self.state.hide_edges(objective.hidden):
            self.offload_epoch.forward(key)
            loss = self.offload_epoch.backward(objective, key)
        comm.all_reduce_gradients(problem.model)
        self._count_disk()
        return Step(loss=comm.all_reduce(loss).item(), num_seeds=objective.num_targets)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        return self.offload_epoch.inference()

    def close(self) -> None:
        """See `Execution.close`."""
        self._count_disk()
        self._stack.close()
        memory_pool.release_idle_memory()

    def _open_storage(
        self, stack: ExitStack, options: Offload, layer_plans: list[LayerPlan], limit: _MemoryBounds
    ) -> tuple[ChunkPlanner, OffloadStorage]:
        problem = self.problem
        share = self.problem.shard
        dtype = problem.model.dtype
        num_nodes = share.topology.num_nodes
        on_disk = share.comm.device.type == "cpu"  # beside a GPU there may be memory enough
        needed = table_bytes(layer_plans, num_nodes, num_nodes, dtype.itemsize) if on_disk else 0
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
            number_bytes=dtype.itemsize,
            base_bytes=limit.base_bytes,
            edge_bytes=problem.hidden_edge_bytes,
        )
        return cutter, OffloadStorage(share, folder, self._io_pool, dtype, sharing=options.sharing)

    def _pinnable_bytes(self, options: Offload) -> int:
        if options.host_memory is not None:
            return parse_bytes(options.host_memory)
        return available_bytes() // (2 * self.problem.shard.comm.local_world_size)

    @staticmethod
    def _validate_memory(options: Offload, chunk_plan: ChunkPlan, limit: _MemoryBounds) -> None:
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

    def _record_facts(self, chunk_plan: ChunkPlan, limit: _MemoryBounds, num_cached: int, seconds: float) -> None:
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
        ledger = self.problem.shard.comm.ledger
        disk = self._io_pool
        ledger.counters["disk_read_bytes"] = disk.read_bytes
        ledger.counters["disk_written_bytes"] = disk.written_bytes
        ledger.counters["disk_reads"] = disk.read_requests


def _feature_row_bytes(problem: Problem) -> int:
    """Return the bytes of a row of features if they are dense, else 0."""
    features = problem.features
    if not isinstance(features, Tensor):
        return 0
    return features.shape[1] * max(features.itemsize, problem.number_bytes)


def _fits_in_memory(problem: Problem, layer_plans: list[LayerPlan], base: int, budget: int) -> bool:
    """Whether training all at once fits into the budget of every worker."""
    share = problem.shard
    ends = share.topology.indptr
    own = share.owned_nodes
    num_edges = int((ends[own + 1] - ends[own]).sum())
    fits = fits_whole(
        base + problem.hidden_edge_bytes * (num_edges + len(own)),
        layer_plans,
        num_own=len(own),
        num_edges=num_edges,
        num_nodes=share.topology.num_nodes,
        number_bytes=problem.number_bytes,
        edge_row_bytes=share.topology.edge_row_bytes,
        budget=budget,
    )
    return all(share.comm.all_gather_object(fits))
