"""The most that the DEVICE tier of a worker holds.

On a CPU that is what its process has in memory, the interpreter included; on a GPU its tensors. How often a number is
held at the same time is counted on the layers of `outgrow.nn`, and held against what runs took.
"""

from __future__ import annotations

from outgrow.planning.cost_model import CostModel
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.workload import (
    BatchStats,
    NeighborhoodStats,
    OrchestrateStats,
    PartitionStats,
    SplitBatchStats,
    Workload,
)

_PROCESS_BYTES = 238 << 20
"""Of a process that has loaded all it needs, and compiled its kernels."""
_PER_SOURCE, _PER_AGGREGATE, _PER_OUT = 1.45, 0.36, 1.7
"""How often the rows of a layer are held at the peak, gradients included: of sources, of aggregates, of the output."""
_PER_SPARSE_SOURCE = 0.5
"""How often those are that are made of sparse features, which have no gradient."""
_PER_SLICED = 3.0
"""How often aggregates are whose columns are dealt out: as slices, and as whole rows."""
_EVALUATED, _EVALUATED_APART, _EVALUATED_SLICED = 0.95, 0.4, 0.5
"""How often the rows of the widest layer are in an evaluation: on one worker; on several, of own nodes or of slices."""
_EDGE_BYTES = 15
"""Of an in-edge: its source, its weight, and both once more by source."""
_PART_BYTES = 27
"""Of an in-edge besides, where edges from own nodes are kept apart from those of the halo."""
_LANE_BYTES = 6
"""Of an edge besides, where its columns are dealt out and chunks of edges are kept."""
_LEFT = 0.1
"""Share of what batches held that is still there when the model is evaluated."""
_PER_SCORE, _PER_SCORE_EVALUATED = 2.2, 0.7
"""Numbers that attention holds of each score of an edge, in training and in an evaluation."""
_AHEAD, _COPIES, _AHEAD_OF_GPU = 6, 2.5, 2
"""Batches that are drawn and not used yet, how often rows of the one that is computed are held, and both on a GPU."""


def process_bytes(costs: CostModel) -> int:
    """Of a worker before it holds anything of a graph."""
    return _PROCESS_BYTES if costs.shares_device else 0


def base_bytes(work: Workload, costs: CostModel) -> int:
    """Of a worker before it trains: the only one has the graph in memory, where it does not lie in a store."""
    return process_bytes(costs) + (work.graph.resident_bytes if costs.layout.workers == 1 else 0)


def training_bytes(work: Workload, nodes: float, sources: float, edges: float, slices: int = 1) -> float:
    """Of whole layers, forward and backward, then of an evaluation, and of their input.

    Args:
        work: What is trained.
        nodes: Of a worker.
        sources: Those and their neighbours.
        edges: To its nodes, or over which it sums.
        slices: Into how many slices the columns of sums are dealt out.
    """
    model = work.model
    evaluated = _EVALUATED_SLICED if slices > 1 else _EVALUATED_APART if sources > nodes else _EVALUATED
    numbers = sum(_row_numbers(work, index, nodes, sources, slices) for index in range(len(model.layers)))
    numbers += evaluated * _widest_layer_numbers(
        work, nodes, sources
    )  # what training has held is kept for the next epoch
    received = sum(layer.spec.in_features for layer in model.layers[1:] if layer.spec.source_is_input)
    numbers += _PER_SOURCE * (sources - nodes) * received  # rows of others, as the layer before has made them
    held = numbers * model.number_bytes + (_edge_bytes(nodes, sources) + _LANE_BYTES * (slices > 1)) * edges
    held += model.number_bytes * edges * sum(map(_edge_numbers, model.layers))
    return held + input_bytes(work, nodes, sources)


def inference_bytes(work: Workload, nodes: float, sources: float, edges: float) -> float:
    """Of whole layers, one after the other, without gradients."""
    model = work.model
    of_edge = max(_PER_SCORE_EVALUATED * layer.spec.score + layer.edge_numbers for layer in model.layers)
    held = (
        _EVALUATED * _widest_layer_numbers(work, nodes, sources) * model.number_bytes
        + _edge_bytes(nodes, sources) * edges
    )
    return held + model.number_bytes * edges * of_edge + input_bytes(work, nodes, sources)


def full_graph_peak_bytes(work: Workload, costs: CostModel, partition: PartitionStats) -> int:
    """Of the largest worker that trains and evaluates whole layers."""
    part = int(partition.edges.argmax())
    nodes, edges = float(partition.nodes[part]), float(partition.edges[part] + partition.nodes[part])
    sources = nodes + float(partition.halo[part].sum())
    return process_bytes(costs) + round(training_bytes(work, nodes, sources, edges))


def minibatch_bytes(work: Workload, neighborhood: NeighborhoodStats, *, num_prefetched: float) -> float:
    """Of the largest worker's batch, forward and backward, and of those that are drawn ahead."""
    rows, edges, model = neighborhood.rows.max(0), neighborhood.edges.max(0), work.model
    numbers = sum(_row_numbers(work, index, rows[index + 1], rows[index], 1) for index in range(len(model.layers)))
    of_edges = sum(_edge_numbers(layer) * edges[index] for index, layer in enumerate(model.layers))
    held = (numbers + of_edges) * model.number_bytes + _EDGE_BYTES * edges.sum()
    return float(held + num_prefetched * (rows[0] * work.input_row_bytes + _EDGE_BYTES * edges.sum()))


def num_prefetched_batches(costs: CostModel, steps: int = _AHEAD) -> float:
    """Batches whose features the DEVICE tier holds, with copies, in epochs of so many batches."""
    return min(_AHEAD, steps) + _COPIES if costs.shares_device else _AHEAD_OF_GPU


def minibatch_peak_bytes(
    work: Workload,
    costs: CostModel,
    partition: PartitionStats,
    stats: BatchStats | SplitBatchStats | OrchestrateStats,
    extra_prefetched: int = 0,
) -> int:
    """Of batches, of which so many more than usual are drawn ahead, then of an evaluation of whole layers."""
    part = int(partition.edges.argmax())
    nodes, sources = float(partition.nodes[part]), float(partition.nodes[part] + partition.halo[part].sum())
    own = input_bytes(work, nodes, nodes)
    training, evaluation = (
        minibatch_bytes(
            work, stats.neighborhood, num_prefetched=num_prefetched_batches(costs, stats.steps) + extra_prefetched
        )
        + own,
        inference_bytes(work, nodes, sources, partition.edges[part]),
    )
    return process_bytes(costs) + round(max(training, evaluation) + _LEFT * min(training, evaluation))


def input_bytes(work: Workload, nodes: float, sources: float) -> float:
    """Of a graph that is in memory itself; else, of several workers, of the features that each has taken."""
    alone = nodes >= work.graph.nodes
    return work.graph.resident_bytes if alone else sources * work.input_row_bytes


def _edge_numbers(layer: LayerSizes) -> float:
    """Held of each edge until the backward pass."""
    return _PER_SCORE * layer.spec.score + layer.edge_numbers


def _edge_bytes(nodes: float, sources: float) -> int:
    return _EDGE_BYTES + _PART_BYTES * (sources > nodes)


def _row_numbers(work: Workload, index: int, nodes: float, sources: float, slices: int) -> float:
    layer = work.model.layers[index]
    at_source = 0 if layer.spec.source_is_input and slices == 1 else layer.source_width
    of_aggregate = _PER_SLICED if slices > 1 else _PER_AGGREGATE
    at_target = of_aggregate * layer.aggregate_width + _PER_OUT * layer.spec.out_features
    of_source = _PER_SPARSE_SOURCE if index == 0 and work.graph.sparse else _PER_SOURCE
    return of_source * sources * at_source + nodes * at_target


def _widest_layer_numbers(work: Workload, nodes: float, sources: float) -> float:
    """Numbers of the layer that has most, with its input, of which that of the first is where features are."""
    return max(
        sources * layer.source_width * (not layer.spec.source_is_input)
        + nodes * (layer.aggregate_width + 2 * layer.spec.out_features)
        + nodes * layer.spec.in_features * (1 + layer.reads_target) * (index > 0)
        for index, layer in enumerate(work.model.layers)
    )
