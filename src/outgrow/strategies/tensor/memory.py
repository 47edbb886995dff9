"""Memory estimates of slice-wise passes, with edges or slices in memory or in files.

Estimates are upper bounds: the sum of what a worker holds at the same time. Tests compare them with measured
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.layer_plan import LayerPlan, full_graph_bytes
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.ops.sparse import SparseRows
from outgrow.strategies.tensor.all_to_all import column_ranges

_PER_NODE = 160
"""Bytes of a node on every worker: edge offsets, degrees, owner, and positions in chunks, both ways."""
PER_EDGE = 40
"""Bytes of an edge while its chunk is in memory."""
_SLICES = 3
"""Slices held at once: the input and the output of a round, and the gradient."""
_UNDER_WAY = 2
"""Copies of all rows in exchange buffers: received and sent."""


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
    sizes: GraphSizes, layer_plans: Sequence[LayerPlan], *, base: int, number_bytes: int, chunks: int
) -> MemoryNeeds:
    """Estimate the memory that a worker needs.

    Args:
        sizes: Sizes of the graph on the worker.
        layer_plans: The layers.
        base: Bytes that it holds already.
        number_bytes: Bytes of a number of a row.
        chunks: Number of chunks of edges.
    """
    num_nodes = sizes.num_nodes
    own = sizes.num_own
    workers = sizes.num_workers
    # A self-loop for every node, as layers may need them.
    num_edges = sizes.num_edges + num_nodes
    widest = max(_widest_slice(*each.layer.spec.source, workers) for each in layer_plans)
    slices = _SLICES * num_nodes * widest * number_bytes
    first = layer_plans[0]
    raw = _widest_slice(*first.layer.spec.source, workers) * num_nodes if first.source_is_features else 0
    # Exchange buffers hold slices of all nodes on one side, and whole rows of own nodes on the other.
    whole_width = max(channels * columns for channels, columns in (each.layer.spec.source for each in layer_plans))
    under_way = _UNDER_WAY * (num_nodes * widest + own * whole_width)
    nodes = base + _PER_NODE * num_nodes + sizes.feature_bytes + (2 * raw + under_way) * number_bytes
    # No edges: those in files occupy page cache, which the system can drop. A chunk of them is added below.
    rows = full_graph_bytes(nodes, layer_plans, own, own, 0, number_bytes)
    chunk = (PER_EDGE + sizes.edge_row_bytes) * -(-num_edges // chunks)
    # One worker aggregates whole rows where they are, in memory.
    kept = slices if workers == 1 else 0
    return MemoryNeeds(
        in_memory=full_graph_bytes(nodes, layer_plans, own, own, num_edges, number_bytes, sizes.edge_row_bytes)
        + slices
        + 2 * num_edges * number_bytes,
        edges_in_files=rows + slices + chunk,
        slices_in_files=rows + chunk + kept,
    )


def _widest_slice(channels: int, columns: int, workers: int) -> int:
    """Return the numbers of a row in the widest slice."""
    return channels * max(last - first for first, last in column_ranges(columns, workers))
