"""Memory estimates of slice-wise passes, with edges or slices in memory or in files.

Estimates are upper bounds: the sum of what a worker holds at the same time. Tests compare them with measured
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.layer_plan import (
    FIXED_BYTES,
    LayerPlan,
    full_graph_bytes,
    has_fixed_weights,
    numbers_per_edge,
    pair_index_bytes,
    pair_sum_bytes,
    target_width,
)
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.ops.sparse import SparseRows
from outgrow.strategies.tensor.all_to_all import column_ranges

DISK_LEVELS = ("nothing", "edges", "slices", "rows")
"""What may be in files; each level includes those before it."""
OVERLAPPING_CHUNKS = 4
"""Chunks that overlap their exchange with their aggregation."""
MOST_CHUNKS = 512
_PER_NODE = 160
"""Bytes of a node on every worker: edge offsets, degrees, owner, and positions in chunks, both ways."""
PER_EDGE = 40
"""Bytes of an edge while its chunk is in memory."""
_SLICES = 3
"""Slices held at once: the input and the output of a round, and the gradient."""
_UNDER_WAY = 2
"""Copies of all rows in exchange buffers: received and sent."""
_PENDING = 3
"""Chunks whose rows are in exchange buffers at a time, where memory is short."""
_CHUNK_COPIES = 3
"""Copies of the rows that a chunk reads: as they are read, their gradient, and what is added of it."""


class MemoryNeeds(NamedTuple):
    """Memory that a worker needs, in bytes.

    Attributes:
        in_memory: With everything in memory.
        edges_in_files: With edges and their weights in files.
        slices_in_files: With slices in files too.
        rows_in_files: With features of own nodes and the rows saved for the backward pass in files too.
    """

    in_memory: int
    edges_in_files: int
    slices_in_files: int
    rows_in_files: int


class MemoryPlan(NamedTuple):
    """What fits into a limit of memory.

    Attributes:
        level: What is in files, of `DISK_LEVELS`.
        chunks: The fewest chunks that fit.
        needed: Bytes that a worker needs.
    """

    level: str
    chunks: int
    needed: int


def candidate_chunks(given: int | None, workers: int) -> list[int]:
    """Return the numbers of chunks that may be chosen among, ascending: the given one alone if there is one."""
    if given is not None:
        return [given]
    # One worker exchanges nothing that chunks could overlap with.
    return list(range(1 if workers == 1 else OVERLAPPING_CHUNKS, MOST_CHUNKS + 1))


def plan_memory(
    budget: int, levels: Sequence[str], needs_by_chunks: Mapping[int, MemoryNeeds]
) -> tuple[MemoryPlan, bool]:
    """Return the plan with the least in files, then the fewest chunks, that fits; else the smallest, and False.

    Args:
        budget: Most bytes that a worker may hold.
        levels: Levels to choose among, of `DISK_LEVELS`.
        needs_by_chunks: Memory that is needed with each number of chunks, ascending.
    """
    plans = [
        MemoryPlan(level, chunks, needs[DISK_LEVELS.index(level)])
        for level in levels
        for chunks, needs in needs_by_chunks.items()
    ]
    fitting = next((plan for plan in plans if plan.needed <= budget), None)
    return (fitting, True) if fitting is not None else (min(plans, key=lambda plan: plan.needed), False)


class GraphSizes(NamedTuple):
    """Sizes of the graph on one worker, which holds all edges.

    Attributes:
        num_nodes: Number of nodes of the graph.
        num_edges: Number of edges of the graph.
        num_own: Number of nodes that the worker owns.
        num_workers: Number of workers.
        feature_bytes: Bytes of the features of its own nodes in memory.
        edge_row_bytes: Bytes of the features of an edge.
    """

    num_nodes: int
    num_edges: int
    num_own: int
    num_workers: int
    feature_bytes: int
    edge_row_bytes: int = 0


def measure_graph_sizes(shard: GraphShard, features: Features, number_bytes: int) -> GraphSizes:
    """Return the sizes of the graph on a worker.

    Args:
        shard: Gives the nodes that it owns.
        features: ``[V, D]``, as the graph stores them.
        number_bytes: Bytes of a number of a row.
    """
    topology = shard.topology
    own = len(shard.owned_nodes)
    if isinstance(features, SparseRows):
        # Twice: the order by columns is kept with them.
        given = (features.values.nbytes + features.indices.nbytes) * own // max(1, topology.num_nodes) * 2
    else:
        numbers = features.numel() if isinstance(features, Tensor) else features.num_values
        given = own * numbers // max(1, topology.num_nodes) * number_bytes
    return GraphSizes(topology.num_nodes, topology.num_edges, own, shard.comm.size, given, topology.edge_row_bytes)


def estimate_memory_needs(
    sizes: GraphSizes,
    layer_plans: Sequence[LayerPlan],
    *,
    base: int,
    number_bytes: int,
    chunks: int,
    on_gpu: bool = False,
) -> MemoryNeeds:
    """Estimate the memory that a worker needs.

    Args:
        sizes: Sizes of the graph on the worker.
        layer_plans: The layers.
        base: Bytes that it holds already.
        number_bytes: Bytes of a number of a row.
        chunks: Number of chunks of edges.
        on_gpu: Whether it is memory of a GPU, beside which the files are.
    """
    num_nodes = sizes.num_nodes
    own = sizes.num_own
    workers = sizes.num_workers
    # A self-loop for every node, as layers may need them.
    num_edges = sizes.num_edges + num_nodes
    widest = max(_widest_slice(*each.layer.spec.source, workers) for each in layer_plans)
    # Layers whose weights are trained keep their slices for the backward pass.
    kept = sum(_kept_numbers(each, workers) for each in layer_plans)
    slices = num_nodes * (_SLICES * widest + kept) * number_bytes
    first = layer_plans[0]
    raw = _widest_slice(*first.layer.spec.source, workers) * num_nodes if first.source_is_features else 0
    # Exchange buffers hold slices of all nodes on one side, and whole rows of own nodes on the other.
    whole_width = max(channels * columns for channels, columns in (each.layer.spec.source for each in layer_plans))
    exchanged = 0 if workers == 1 else _UNDER_WAY * (num_nodes * widest + own * whole_width) * number_bytes
    nodes = base + _PER_NODE * num_nodes + sizes.feature_bytes
    # No edges: those in files occupy page cache, which the system can drop. A chunk of them is added below.
    rows = full_graph_bytes(nodes, layer_plans, own, own, 0, number_bytes)
    # A GPU has copies of the rows that a chunk reads, whatever the layer.
    copying = [each for each in layer_plans if on_gpu or not has_fixed_weights(each.layer)]
    chunk = _chunk_bytes(sizes, copying, num_edges, number_bytes, chunks)
    of_edges = full_graph_bytes(0, layer_plans, 0, 0, num_edges, number_bytes, sizes.edge_row_bytes) - FIXED_BYTES
    # A chunk reads at most as many rows as it has edges.
    pending = min(1.0, _PENDING * -(-num_edges // chunks) / max(1, num_nodes))
    filed = chunk + round(pending * exchanged)
    # One worker aggregates whole rows where they are, in memory.
    alone = slices if workers == 1 else 0
    largest = max(map(_layer_numbers, layer_plans)) + first.encoder_width
    filed_features = 0 if on_gpu else sizes.feature_bytes
    return MemoryNeeds(
        in_memory=rows + of_edges + exchanged + slices + 2 * raw * number_bytes + 2 * num_edges * number_bytes,
        edges_in_files=rows + slices + 2 * raw * number_bytes + filed,
        slices_in_files=rows + raw * number_bytes + filed + alone,
        rows_in_files=nodes - filed_features + FIXED_BYTES + own * largest * number_bytes + filed,
    )


def _kept_numbers(layer_plan: LayerPlan, workers: int) -> int:
    """Return the numbers of a node's slices that a layer keeps for the backward pass."""
    spec = layer_plan.layer.spec
    if has_fixed_weights(layer_plan.layer):
        return 0
    return _widest_slice(*spec.source, workers) + _widest_slice(*spec.target, workers)


def _layer_numbers(layer_plan: LayerPlan) -> int:
    """Return the numbers of a node's rows while one layer is computed, forward or backward."""
    spec = layer_plan.layer.spec
    return (
        spec.in_features
        + 2 * (layer_plan.source_width + layer_plan.aggregate_width + target_width(layer_plan))
        + (4 * spec.out_features)
    )


def _chunk_bytes(
    sizes: GraphSizes, layer_plans: Sequence[LayerPlan], num_edges: int, number_bytes: int, chunks: int
) -> int:
    """Return what one chunk takes: its edges, what is derived of them, and the rows that these layers copy."""
    edges = -(-(num_edges + sizes.num_nodes) // chunks)
    rows = min(sizes.num_nodes, edges)
    most = 0
    for plan in layer_plans:
        spec = plan.layer.spec
        wide = (_widest_slice(*each, sizes.num_workers) for each in (spec.source, spec.target, spec.aggregate))
        read = rows * (sum(wide) + spec.score)
        of_edges = 2 * edges * numbers_per_edge(plan) * number_bytes
        of_edges += pair_index_bytes(plan, edges) + pair_sum_bytes(plan, edges, number_bytes)
        most = max(most, _CHUNK_COPIES * read * number_bytes + of_edges)
    return most + (PER_EDGE + sizes.edge_row_bytes) * edges


def _widest_slice(channels: int, columns: int, workers: int) -> int:
    """Return the numbers of a row in the widest slice."""
    return channels * max(last - first for first, last in column_ranges(columns, workers))
