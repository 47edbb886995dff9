"""How much memory a slice-wise pass takes, and what of it must be in files so that it fits into a budget.

Estimates are upper bounds, made of what a worker is known to hold at the same time; tests hold them against what runs
took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.layer_plan import LayerPlan
from outgrow.engine.memory_model import full_graph_bytes
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.strategies.tensor.all_to_all import column_ranges

_PER_NODE = 160
"""Bytes of a node on every worker: ends of its edges both ways, its degrees, owner, and places in chunks both ways."""
PER_EDGE = 40
"""Bytes of an edge while its chunk is brought into memory."""
_SLICES = 3
"""Slices there are at once: those of a round, those that it makes, and those of their gradient."""
_UNDER_WAY = 2
"""Times that all rows are under way: what comes and what goes."""


class MemoryNeeds(NamedTuple):
    """Memory that a worker needs, in bytes.

    Attributes:
        in_memory: With everything in memory.
        edges_in_files: With edges and their weights in files.
        slices_in_files: With slices in files too.
    """

    in_memory: int
    edges_in_files: int
    slices_in_files: int


class GraphSizes(NamedTuple):
    """What a worker holds of a graph, all edges of which it holds.

    Attributes:
        num_nodes: Of the graph.
        num_edges: Of the graph.
        num_own: Nodes of the worker.
        num_workers: How many there are.
        feature_bytes: Bytes of the features of its own nodes, as they are held.
    """

    num_nodes: int
    num_edges: int
    num_own: int
    num_workers: int
    feature_bytes: int


def measure_graph_sizes(shard: GraphShard, features: Features, number_bytes: int) -> GraphSizes:
    """What a worker will hold.

    Args:
        shard: The nodes that it owns.
        features: ``[V, D]``, as the graph has them.
        number_bytes: Of a number of a row.
    """
    topology = shard.topology
    own = len(shard.owned_nodes)
    if isinstance(features, Tensor):
        given = own * features.shape[1] * number_bytes
    else:
        given = (features.values.nbytes + features.indices.nbytes) * own // max(1, topology.num_nodes) * 2
    return GraphSizes(topology.num_nodes, topology.num_edges, own, shard.comm.size, given)


def estimate_memory_needs(
    sizes: GraphSizes, layer_plans: Sequence[LayerPlan], *, base: int, number_bytes: int, chunks: int
) -> MemoryNeeds:
    """What a worker needs.

    Args:
        sizes: What it holds of the graph.
        layer_plans: The layers.
        base: Bytes that it has now.
        number_bytes: Of a number of a row.
        chunks: How many chunks edges are brought in.
    """
    num_nodes = sizes.num_nodes
    own = sizes.num_own
    workers = sizes.num_workers
    num_edges = sizes.num_edges + num_nodes
    widest = max(_widest_slice(*each.layer.spec.source, workers) for each in layer_plans)
    slices = _SLICES * num_nodes * widest * number_bytes
    first = layer_plans[0]
    raw = _widest_slice(*first.layer.spec.source, workers) * num_nodes if first.source_is_features else 0
    whole_width = max(channels * columns for channels, columns in (each.layer.spec.source for each in layer_plans))
    under_way = _UNDER_WAY * (num_nodes * widest + own * whole_width)
    nodes = base + _PER_NODE * num_nodes + sizes.feature_bytes + (2 * raw + under_way) * number_bytes
    rows = full_graph_bytes(nodes, layer_plans, own, own, 0, number_bytes)
    chunk = PER_EDGE * -(-num_edges // chunks)
    kept = slices if workers == 1 else 0  # one worker aggregates whole rows, where they are
    return MemoryNeeds(
        in_memory=full_graph_bytes(nodes, layer_plans, own, own, num_edges, number_bytes)
        + slices
        + 2 * num_edges * number_bytes,
        edges_in_files=rows + slices + chunk,
        slices_in_files=rows + chunk + kept,
    )


def _widest_slice(channels: int, columns: int, workers: int) -> int:
    """Numbers of a row in the widest slice."""
    return channels * max(last - first for first, last in column_ranges(columns, workers))
