"""The most that the DEVICE tier of a worker holds.

On a CPU that is what its process has in memory, the interpreter included; on a GPU its tensors. How often a number is
held at the same time is counted on the layers of `outgrow.nn`, and held against what runs took.
"""

from __future__ import annotations

from outgrow.planning.pace import Pace
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.workload import Cut, Grown, Workload

_PROCESS_BYTES = 220 << 20
"""Of a process that has loaded all it needs, and compiled its kernels."""
_OFTEN = 1.23
"""How often an activation is held at the peak, gradients included."""
_EDGE_BYTES = 15
"""Of an in-edge: its source, its weight, and both once more by source."""
_PART_BYTES = 27
"""Of an in-edge besides, where edges from own nodes are kept apart from those of the halo."""
_LANE_BYTES = 11
"""Of an edge besides, where its columns are dealt out and chunks of edges are kept."""
_LEFT = 0.35
"""Share of what batches held that is still there when the model is evaluated."""
_PER_SCORE = 3.5
"""Numbers that attention holds of each score of an edge."""
_AHEAD, _AHEAD_OF_GPU = 6, 2
"""Batches that are drawn and not used yet, the one that is computed among them, and what it leaves behind."""


def fixed_bytes(pace: Pace) -> int:
    """Of a worker before it holds anything of a graph."""
    return _PROCESS_BYTES if pace.shared else 0


def base_bytes(work: Workload, pace: Pace) -> int:
    """Of a worker before it trains: the only one has the graph in memory, where it does not lie in a store."""
    return fixed_bytes(pace) + (work.graph.resident_bytes if pace.place.workers == 1 else 0)


def training_bytes(work: Workload, nodes: float, sources: float, edges: float, slices: int = 1) -> float:
    """Of whole layers, forward and backward, and their input.

    Args:
        work: What is trained.
        nodes: Of a worker.
        sources: Those and their neighbours.
        edges: To its nodes, or over which it sums.
        slices: Into how many slices the columns of sums are dealt out.
    """
    model = work.model
    numbers = sum(_row_numbers(work, index, nodes, sources, slices) for index in range(len(model.layers)))
    held = _OFTEN * numbers * model.number_bytes + _edge_bytes(nodes, sources) * edges
    held += _LANE_BYTES * edges * (slices > 1)
    held += model.number_bytes * edges * sum(map(_edge_numbers, model.layers))
    return held + input_bytes(work, nodes, sources)


def inference_bytes(work: Workload, nodes: float, sources: float, edges: float) -> float:
    """Of whole layers, one after the other, without gradients."""
    model = work.model
    widest = max(
        _row_numbers(work, index, nodes, sources, 1) + nodes * _in_features(work, index)
        for index in range(len(model.layers))
    )
    of_edge = max(2 * layer.widths.score + layer.edge_numbers for layer in model.layers)
    held = widest * model.number_bytes + _edge_bytes(nodes, sources) * edges
    return held + model.number_bytes * edges * of_edge + input_bytes(work, nodes, sources)


def whole_bytes_of(work: Workload, pace: Pace, cut: Cut) -> int:
    """Of the largest worker that trains and evaluates whole layers."""
    part = int(cut.edges.argmax())
    nodes, edges = float(cut.nodes[part]), float(cut.edges[part] + cut.nodes[part])
    sources = nodes + float(cut.halo[part].sum())
    both = training_bytes(work, nodes, sources, edges), inference_bytes(work, nodes, sources, edges)
    return fixed_bytes(pace) + round(max(both))


def batch_bytes(work: Workload, grown: Grown, *, ahead: int) -> float:
    """Of the largest worker's batch, forward and backward, and of those that are drawn ahead."""
    rows, edges, model = grown.rows.max(0), grown.edges.max(0), work.model
    numbers = sum(_row_numbers(work, index, rows[index + 1], rows[index], 1) for index in range(len(model.layers)))
    of_edges = sum(_edge_numbers(layer) * edges[index] for index, layer in enumerate(model.layers))
    held = (_OFTEN * numbers + of_edges) * model.number_bytes + _EDGE_BYTES * edges.sum()
    return float(held + ahead * (rows[0] * work.input_row_bytes + _EDGE_BYTES * edges.sum()))


def ahead_on(pace: Pace) -> int:
    """Batches whose features the DEVICE tier holds."""
    return _AHEAD if pace.shared else _AHEAD_OF_GPU


def batches_bytes_of(work: Workload, pace: Pace, cut: Cut, grown: Grown) -> int:
    """Of batches, then of an evaluation of whole layers."""
    part = int(cut.edges.argmax())
    nodes, sources = float(cut.nodes[part]), float(cut.nodes[part] + cut.halo[part].sum())
    own = input_bytes(work, nodes, nodes)
    training, evaluation = (
        batch_bytes(work, grown, ahead=ahead_on(pace)) + own,
        inference_bytes(work, nodes, sources, cut.edges[part]),
    )
    return fixed_bytes(pace) + round(max(training, evaluation) + _LEFT * min(training, evaluation))


def input_bytes(work: Workload, nodes: float, sources: float) -> float:
    """Of a graph that is in memory itself; else, of several workers, of the features that each has taken."""
    alone = nodes >= work.graph.nodes
    return work.graph.resident_bytes if alone else sources * work.input_row_bytes


def _edge_numbers(layer: LayerSizes) -> float:
    """Held of each edge until the backward pass."""
    return _PER_SCORE * layer.widths.score + layer.edge_numbers


def _edge_bytes(nodes: float, sources: float) -> int:
    return _EDGE_BYTES + _PART_BYTES * (sources > nodes)


def _row_numbers(work: Workload, index: int, nodes: float, sources: float, slices: int) -> float:
    layer = work.model.layers[index]
    at_source = 0 if layer.widths.raw_source and slices == 1 else layer.source_row
    at_target = layer.aggregate + 2 * layer.widths.out_features + layer.reads_target * _in_features(work, index)
    return sources * at_source + nodes * at_target


def _in_features(work: Workload, index: int) -> int:
    """Numbers of a row of a layer's input, of which sparse ones are counted with the features."""
    return 0 if index == 0 and work.graph.sparse else work.model.layers[index].widths.in_features
