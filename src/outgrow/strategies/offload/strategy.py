"""`offload`: full-graph training beyond memory. Node data lives in HOST; chunks of it move to the device, wave by wave.

Wang et al.: HongTu: scalable full-graph GNN training on multiple GPUs, SIGMOD 2023. Each worker cuts its nodes into
chunks of equal computation, and the workers run one chunk each at a time: a wave. A row that several chunks of a wave
need is brought from HOST once, a row that the next wave needs stays where it is, and chunks are put in an order in
which that happens most. Aggregates without parameters are kept for the backward pass; others are computed again.

On a CPU the device is memory, and HOST is scratch files on a disk. Beside a GPU HOST is pinned memory, from which the
GPU gathers rows itself, or a disk where that is too little.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, get_type_hints

from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes, parse_bytes
from outgrow.core.validation import pick, require_positive, require_types
from outgrow.engine.layer_plan import Traits, traits_of
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.ops import memory_pool
from outgrow.ops.rng import derive
from outgrow.runtime.storage.row_file import Disk
from outgrow.runtime.storage.scratch_dir import scratch_folder
from outgrow.runtime.system.device import free_bytes, held_bytes
from outgrow.runtime.system.process_memory import return_freed_memory
from outgrow.strategies.base import Execution, Problem, Step, Strategy, WholeExecution
from outgrow.strategies.offload.chunking import Chunking, Cutter, choose_cached_waves, fits_whole
from outgrow.strategies.offload.memory import table_bytes
from outgrow.strategies.offload.passes import Passes
from outgrow.strategies.offload.reorder import DISK_BANDWIDTHS, PINNED_BANDWIDTHS
from outgrow.strategies.offload.storage import Scratch
from outgrow.strategies.offload.wave_plan import Techniques

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Offload(Strategy):
    """Full-graph training in chunks that move between HOST and the device. One step per epoch.

    Attributes:
        memory: The most that the device tier of one worker may hold, such as ``"2GiB"``: tensors on a GPU; on a CPU its
            memory, that of the interpreter included. None for what the machine has.
        host_memory: The most memory that one worker may pin beside a GPU; what needs more is on a disk. None for half
            of what the machine has left.
        chunks: Chunks of each worker; None for as few as fit into ``memory``.
        partition: How nodes are dealt out to workers: see ``outgrow partition``.
        scratch: Folder on a disk for what does not fit; None for the system's folder of temporary files.
        sharing: Whether a row that several workers need in a wave is brought from HOST once and passed on.
        reuse: Whether rows that the next wave needs stay in place.
        reorganise: Whether chunks are put in an order in which rows are shared and reused most.
        overlap: Whether the next wave's rows are brought, and the last one's written, while a wave is computed.
        cache: Whether aggregates without parameters are kept for the backward pass; else they are computed again.
    """

    name = "offload"
    exact = True

    memory: str | None = None
    host_memory: str | None = None
    chunks: int | None = None
    partition: str = "metis-both"
    scratch: str | None = None
    sharing: bool = True
    reuse: bool = True
    reorganise: bool = True
    overlap: bool = True
    cache: bool = True

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(Offload))
        pick("partition", self.partition, WITHOUT_CHUNKS)
        for given in (self.memory, self.host_memory):
            if given is not None:
                parse_bytes(given)
        require_positive(self.name, chunks=self.chunks)

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    @property
    def techniques(self) -> Techniques:
        """Those of its options that say how rows move."""
        return Techniques(sharing=self.sharing, reuse=self.reuse, overlap=self.overlap)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`: in chunks, or all at once where that fits into memory and no chunks are asked for."""
        began = time.perf_counter()
        return_freed_memory()
        comm = problem.share.comm
        traits = traits_of(problem.model, problem.features, cache=self.cache)
        beside = problem.bytes_beside  # first, since a goal holds memory from when it is made
        held = held_bytes(comm.device)
        base = held + beside
        if self.memory is None:
            budget = held + free_bytes(comm.device) // (1 if comm.device.type == "cuda" else comm.neighbours)
        else:
            budget = parse_bytes(self.memory)
        if self.chunks is None and _fits_whole(problem, traits, base, budget):
            problem.facts.update(chunks=0, memory_bytes=budget)
            return WholeExecution(problem)
        return _ChunkedExecution(problem, self, traits, _Limit(base, budget), began)


class _Limit(NamedTuple):
    """Memory of a worker: what it has resident whatever the chunks, and the most that it may have."""

    base: int
    budget: int


class _ChunkedExecution:
    """Waves of chunks."""

    in_memory = False

    def __init__(self, problem: Problem, options: Offload, traits: list[Traits], limit: _Limit, began: float) -> None:
        self.problem, self._disk = problem, Disk()
        with ExitStack() as stack:
            stack.callback(self._disk.close)
            cutter, scratch = self._begin(stack, options, traits, limit)
            chunking = cutter.fewest(limit.budget) if options.chunks is None else cutter.cut(options.chunks)
            self._require_memory(options, chunking, limit)
            own = len(problem.share.own)
            needed = table_bytes(traits, own, own, cutter.number_bytes)
            if not scratch.pin(needed + _feature_bytes(problem), self._pinnable(options)):
                needed = table_bytes(traits, own, chunking.extent.moved, cutter.number_bytes)
                scratch.reserve(needed, max(0, chunking.bytes_ - limit.base))
            spare = limit.budget - chunking.bytes_
            kept = choose_cached_waves(chunking.chunks, chunking.extent, views=len(cutter.graphs), spare=spare)
            self.state = scratch.state(cutter, chunking, problem, kept=kept)
            stack.callback(self.state.close)
            self.passes = Passes(self.state, problem.goal)
            self._tell(chunking, limit, kept, time.perf_counter() - began)
            problem.facts.update(scratch_bytes=needed, direct=scratch.direct, pinned=scratch.pinned)
            self.passes.prepare()
            self._stack = stack.pop_all()

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`."""
        problem, comm = self.problem, self.problem.share.comm
        if first > 0:
            return
        key = derive(problem.seed, epoch, 0)
        self.state.begin_gradients()
        self.passes.forward(key)
        loss = self.passes.backward(key)
        comm.sum_gradients(problem.model)
        self._count_disk()
        yield Step(loss=comm.sum_(loss).item(), num_seeds=problem.num_train)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        return self.passes.inference()

    def close(self) -> None:
        """See `Execution.close`."""
        self._count_disk()
        self._stack.close()
        memory_pool.clear()

    def _begin(self, stack: ExitStack, options: Offload, traits: list[Traits], limit: _Limit) -> tuple[Cutter, Scratch]:
        problem, share = self.problem, self.problem.share
        dtype = next(problem.model.parameters()).dtype
        num_nodes = share.topology.num_nodes
        on_disk = share.comm.device.type == "cpu"  # beside a GPU there may be memory enough
        needed = table_bytes(traits, num_nodes, num_nodes, dtype.itemsize) if on_disk else 0
        parent = None if options.scratch is None else Path(options.scratch)
        folder = stack.enter_context(scratch_folder(parent, needed))
        views = sorted({each.layer.widths.self_loops for each in traits})
        cutter = Cutter(
            share=share,
            graphs={self_loops: ChunkGraph(share.topology, self_loops=self_loops) for self_loops in views},
            traits=traits,
            techniques=options.techniques,
            reorganise=options.reorganise,
            rates=DISK_BANDWIDTHS if on_disk else PINNED_BANDWIDTHS,
            number_bytes=dtype.itemsize,
            base=limit.base,
        )
        return cutter, Scratch(share, folder, self._disk, dtype, sharing=options.sharing)

    def _pinnable(self, options: Offload) -> int:
        if options.host_memory is not None:
            return parse_bytes(options.host_memory)
        return available_bytes() // (2 * self.problem.share.comm.neighbours)

    @staticmethod
    def _require_memory(options: Offload, chunking: Chunking, limit: _Limit) -> None:
        """Chunks that were asked for must fit into memory that was asked for."""
        if options.memory is None or chunking.bytes_ <= limit.budget:
            return
        needed = -(-chunking.bytes_ // _MIB)
        raise InputError(
            f"{chunking.chunks:,} chunks do not fit into the memory",
            needed=f"{needed:,} MiB for each worker",
            got=options.memory,
            repair=f"give --memory {needed}MiB, or leave chunks out: it takes as many as fit",
        )

    def _tell(self, chunking: Chunking, limit: _Limit, kept: int, seconds: float) -> None:
        order, layer = chunking.order, self.problem.model.stages()[0]
        needs = chunking.needs[layer.widths.self_loops]
        self.problem.facts.update(
            chunks=chunking.chunks,
            memory_bytes=limit.budget,
            estimated_bytes=chunking.bytes_,
            waves_kept=kept,
            replication=order.given.vanilla / max(1, self.problem.share.topology.num_nodes),
            rows_given=vars(order.given),
            rows_chosen=vars(order.chosen),
            layer_seconds_estimated=order.seconds,
            preprocessing_seconds=seconds,
            wave_rows=[len(nodes) for nodes in needs.loads],
            wave_rows_arriving=self.state.course(layer).arriving.counts.sum(1).tolist(),
        )

    def _count_disk(self) -> None:
        """What was read and written physically."""
        ledger, disk = self.problem.share.comm.ledger, self._disk
        ledger.counters["disk_read_bytes"] = disk.read_bytes
        ledger.counters["disk_written_bytes"] = disk.written_bytes
        ledger.counters["disk_reads"] = disk.read_requests


def _feature_bytes(problem: Problem) -> int:
    """Of the own rows, where they are dense."""
    features = problem.features
    if not isinstance(features, Tensor):
        return 0
    return len(problem.share.own) * features.shape[1] * max(features.itemsize, problem.number_bytes)


def _fits_whole(problem: Problem, traits: list[Traits], base: int, budget: int) -> bool:
    """Whether training all at once fits into the budget of every worker."""
    share = problem.share
    ends, own = share.topology.indptr, share.own
    fits = fits_whole(
        base,
        traits,
        num_own=len(own),
        num_edges=int((ends[own + 1] - ends[own]).sum()),
        num_nodes=share.topology.num_nodes,
        number_bytes=problem.number_bytes,
        budget=budget,
    )
    return all(share.comm.gather(fits))
