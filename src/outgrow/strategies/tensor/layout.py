"""Layout of a graph on a worker: in how many chunks it is, and what of it is in files, to keep within a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes
from outgrow.engine.layer_plan import plan_layers
from outgrow.engine.shard import GraphShard
from outgrow.runtime.storage.scratch_dir import scratch_directory
from outgrow.runtime.system.device import free_device_bytes, used_device_bytes
from outgrow.runtime.system.process_memory import return_freed_memory
from outgrow.strategies.base import Problem
from outgrow.strategies.tensor.mapped_graph import MappedGraph
from outgrow.strategies.tensor.memory import (
    DISK_LEVELS,
    OVERLAPPING_CHUNKS,
    PER_EDGE,
    MemoryNeeds,
    MemoryPlan,
    candidate_chunks,
    estimate_memory_needs,
    measure_graph_sizes,
    plan_memory,
)

_MIB = 1 << 20
_CHUNK_BYTES = 32 << 20
"""Most memory of a chunk of edges that is read from files, where no limit is given."""


class LayoutOptions(NamedTuple):
    """Options that decide on a layout: those of `TensorParallel` with these names.

    Attributes:
        chunks: Number of chunks; None to choose one.
        memory: The most memory that a worker may hold; None for what its GPU has, and no limit on a CPU.
        on_disk: What is in files, or ``"auto"``.
        attention: ``"scores"`` or ``"coefficients"``.
        scratch_dir: Folder of the files; None for the system's temporary folder.
    """

    chunks: int | None
    memory: str | None
    on_disk: str
    attention: str
    scratch_dir: str | None

    def possible_levels(self, *, hides_edges: bool) -> tuple[str, ...]:
        """Return what may be in files."""
        # Edges of which each step hides some stay in memory, and so do coefficients of all edges, with their edges.
        in_memory = hides_edges or self.attention == "coefficients"
        return DISK_LEVELS[:1] if in_memory else DISK_LEVELS


class GraphLayout(NamedTuple):
    """How a worker holds the graph.

    Attributes:
        chunks: Number of chunks.
        mapped_graph: Files of what is not in memory; None if everything is.
    """

    chunks: int
    mapped_graph: MappedGraph | None


def count_edge_chunks(num_edges: int) -> int:
    """Return the least number of chunks in which edges are read from files."""
    return -(-num_edges * PER_EDGE // _CHUNK_BYTES)


def make_layout(problem: Problem, options: LayoutOptions, stack: ExitStack) -> GraphLayout:
    """Return the least in files, and the fewest chunks, that the options allow. All workers together.

    Args:
        problem: What is trained.
        options: The options.
        stack: Removes the files when it is closed.

    Raises:
        InputError: The memory is too small; options contradict each other.
    """
    shard = problem.shard
    possible = options.possible_levels(hides_edges=problem.hides_edges)
    level = DISK_LEVELS[0] if options.on_disk == "auto" else options.on_disk
    if level not in possible:
        raise InputError(
            "strategy tensor computes attention from scores where edges are in files",
            needed="attention=scores, or on_disk=nothing",
            got=f"attention=coefficients, on_disk={level}",
            repair="leave one of them out",
        )
    chunks = options.chunks or OVERLAPPING_CHUNKS
    beside_gpu = options.on_disk == "auto" and len(possible) > 1 and shard.comm.device.type != "cpu"
    if options.memory is not None:
        asked = possible if options.on_disk == "auto" else (level,)
        level, chunks = _choose_disk_level(options.memory, asked, _needs_by_chunks(problem, options), problem.run_facts)
    elif beside_gpu:
        level, chunks = _choose_beside_gpu(shard, possible, _needs_by_chunks(problem, options), problem.run_facts)
    elif level != DISK_LEVELS[0]:
        chunks = options.chunks or max(chunks, count_edge_chunks(shard.topology.num_edges))
    if level == DISK_LEVELS[0]:
        return GraphLayout(chunks, None)
    num_edges = shard.topology.num_edges + shard.topology.num_nodes
    # Ids, and weights in the order of in-edges and of out-edges.
    per_edge = 16 + 2 * problem.number_bytes + shard.topology.edge_row_bytes
    parent = None if options.scratch_dir is None else Path(options.scratch_dir)
    folder = stack.enter_context(scratch_directory(parent, num_edges * per_edge))
    place = DISK_LEVELS.index(level)
    return GraphLayout(
        chunks, MappedGraph(folder, shard.topology, chunks=chunks, maps_slices=place > 1, maps_rows=place > 2)
    )


def _needs_by_chunks(problem: Problem, options: LayoutOptions) -> dict[int, MemoryNeeds]:
    """Return the needs of the worker that needs the most memory, by number of chunks. All workers together."""
    shard = problem.shard
    return_freed_memory()
    # First, since making the objective allocates memory that the measurement below must include.
    objective_bytes = problem.objective_bytes
    base = used_device_bytes(shard.comm.device) + objective_bytes
    base += problem.hidden_edge_bytes * (shard.topology.num_edges + shard.topology.num_nodes)
    number_bytes = problem.number_bytes
    plans = plan_layers(problem.model, problem.all_features, cache=True)
    sizes = measure_graph_sizes(shard, problem.all_features, number_bytes)
    counts = candidate_chunks(options.chunks, shard.comm.size)
    own_needs = [
        tuple(
            estimate_memory_needs(
                sizes,
                plans,
                base=base,
                number_bytes=number_bytes,
                chunks=chunks,
                on_gpu=shard.comm.device.type != "cpu",
            )
        )
        for chunks in counts
    ]
    # All workers decide by the same numbers, or they would choose different levels.
    of_workers = zip(*shard.comm.all_gather_object(own_needs), strict=True)
    largest = (MemoryNeeds(*map(max, zip(*each, strict=True))) for each in of_workers)
    return dict(zip(counts, largest, strict=True))


def _choose_disk_level(
    memory: str, levels: Sequence[str], needs: Mapping[int, MemoryNeeds], facts: dict[str, object]
) -> tuple[str, int]:
    """Choose the level with the least in files, and the fewest chunks, that fit into the memory.

    Raises:
        InputError: None fits.
    """
    budget = parse_bytes(memory)
    plan, fits = plan_memory(budget, levels, needs)
    if fits:
        return _report_plan(plan, budget, facts)
    least = -(-plan.needed // _MIB)
    raise InputError(
        "the memory is too small for this graph and model",
        needed=f"{least:,} MiB for each worker, with {plan.level} in files",
        got=memory,
        repair=f"give --memory {least}MiB or more, more workers, or choose strategy offload",
    )


def _choose_beside_gpu(
    shard: GraphShard, levels: Sequence[str], needs: Mapping[int, MemoryNeeds], facts: dict[str, object]
) -> tuple[str, int]:
    """Choose the level with the least in files, and the fewest chunks, that fit on the smallest GPU.

    If none does, the one that needs the least: estimates are upper bounds.
    """
    device = shard.comm.device
    budget = min(shard.comm.all_gather_object(used_device_bytes(device) + free_device_bytes(device)))
    plan, _ = plan_memory(budget, levels, needs)
    return _report_plan(plan, budget, facts)


def _report_plan(plan: MemoryPlan, budget: int, facts: dict[str, object]) -> tuple[str, int]:
    """Write a plan into the facts of the run, and return its level and its number of chunks."""
    facts.update(memory_bytes=budget, estimated_bytes=plan.needed, in_files=plan.level, chunks=plan.chunks)
    return plan.level, plan.chunks
