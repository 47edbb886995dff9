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
from dataclasses import asdict, dataclass

import torch

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.batches import BatchConfig
from outgrow.engine.layer_plan import LayerPlan, plan_layers
from outgrow.engine.nodewise import predicts_links_by_node
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.ops.rows.row_encoding import FULL, STORAGE_PRECISIONS
from outgrow.runtime.system.device import free_device_bytes, used_device_bytes
from outgrow.runtime.system.process_memory import return_freed_memory
from outgrow.strategies.base import Execution, FullGraphExecution, Problem, Strategy
from outgrow.strategies.offload.chunking import fits_whole
from outgrow.strategies.offload.execution import ChunkedExecution, MemoryBounds
from outgrow.strategies.offload.nodewise import NodewiseExecution
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
        storage_precision: How rows of activations and gradients are stored on a disk: ``full``, ``bfloat16``, or
            ``int8`` with a scale for each row. They are computed with, and summed, in the type of the parameters; a
            run in less than ``full`` is not exact.
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
    storage_precision: str = FULL

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)
        for given in (self.memory, self.host_memory):
            if given is not None:
                parse_bytes(given)
        validate_positive(self.name, chunks=self.chunks)
        validate_choice("storage_precision", self.storage_precision, dict.fromkeys(STORAGE_PRECISIONS))

    def is_exact(self, batches: BatchConfig) -> bool:
        """Whether the gradient is exact: where rows are stored in full."""
        return self.storage_precision == FULL

    def validate_workers(self, num_workers: int, num_hosts: int) -> None:
        """Check that gradients of workers meet in memory, not in rows that are rounded each time.

        Raises:
            InputError: They would be added up in rounded rows on a disk.
        """
        if self.storage_precision != FULL and num_workers > 1 and not self.sharing:
            raise InputError(
                f"storage_precision {self.storage_precision} cannot be combined with sharing=false",
                needed="sharing=true, or one worker: without it workers add up gradients in rows on the disk",
                got=f"sharing=false on {num_workers} workers",
                repair="leave sharing or storage_precision out",
            )

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
        self._validate_device(comm.device)
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
        return ChunkedExecution(problem, self, traits, MemoryBounds(base, budget), began)

    def _validate_device(self, device: torch.device) -> None:
        if self.storage_precision != FULL and device.type != "cpu":
            raise InputError(
                f"storage_precision {self.storage_precision} is for rows on a disk",
                needed="device cpu: beside a GPU rows are in pinned memory, in full",
                got=f"device {device.type}",
                repair="leave storage_precision out",
            )

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
