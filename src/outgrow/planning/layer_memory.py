"""What layers hold: numbers of their rows, in training and in evaluations, and bytes of edges.

The factors are copies of a number that exist at the same time. They were fitted to measured runs: see
`benchmarks/results/planner_cells.json` and `planner_sizes.json`, without the cells that are held out.
"""

from __future__ import annotations

from typing import NamedTuple

from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.workload import WHOLE_LAYER, Workload


class LayerCopies(NamedTuple):
    """Copies of a layer's rows, with gradients, at the peak of a step; and in an evaluation beside what a step leaves.

    Attributes:
        sources: Of source rows.
        sparse_sources: Of source rows that are computed from sparse features, which have no gradient.
        aggregates: Of aggregated rows.
        hidden: Of the output of a layer that another one reads.
        outputs: Of the output of the last layer.
        edge_bytes: Bytes of an in-edge: its source, its weight, and both again in the transpose.
        evaluated_sources: Of source rows, in an evaluation.
        evaluated_aggregates: Of aggregated rows, in an evaluation.
        evaluated_outputs: Of output rows, in an evaluation.
        evaluated_inputs: Of the rows of the layer below, in an evaluation.
    """

    sources: float
    sparse_sources: float
    aggregates: float
    hidden: float
    outputs: float
    edge_bytes: float
    evaluated_sources: float
    evaluated_aggregates: float
    evaluated_outputs: float
    evaluated_inputs: float


WHOLE = LayerCopies(1.18, 0.52, 0.54, 1.78, 2.02, 17.0, 0.46, 0.58, 0.5, 0.91)
"""Of layers that a worker computes for its own nodes."""
SLICED = LayerCopies(1.09, 1.09, 1.81, 0.3, 2.12, 32.4, 0.88, 0.67, 0.45, 1.35)
"""Of layers whose columns the workers divide: sources and aggregates are there as slices and as whole rows."""
BATCH = LayerCopies(2.13, 1.5, 1.33, 3.18, 2.4, 16.4, 0.3, 1.2, 1.2, 0.69)
"""Of a batch, and of an evaluation of whole layers between batches."""
_PART_BYTES = 22
"""Further bytes of an in-edge if edges from own nodes are stored apart from those of the halo."""
_EVALUATED_TYPED = 0.8
"""Share of an evaluation's rows beside the fewer rows of the last layer that a model with modules per type trains."""
_PER_SCORE, _PER_HEAD = 2.2, 1.2
"""Numbers that attention holds for each score of an edge, and for each weight that the aggregation computes itself."""
_PAIR_EDGE_BYTES, _PAIR_BYTES = 16, 32
"""Bytes of an edge and of a pair, of relation and row, where edges are grouped by the pairs of both ends."""
_RELATION_EDGE_BYTES = 24
"""Further bytes of an edge where the edges of each relation are a block of their own."""


def count_row_numbers(
    work: Workload, index: int, nodes: float, sources: float, copies: LayerCopies, slices: int = 1
) -> float:
    """Return the numbers of a layer's rows that are held at the peak of a step.

    Args:
        work: The graph and the model.
        index: Number of the layer.
        nodes: Rows of its output.
        sources: Rows that it reads.
        copies: How often each is held.
        slices: Number of column slices that aggregation is divided into.
    """
    layer = work.model.layers[index]
    # Sources that are the input itself need no rows of their own, unless they are cut into slices.
    at_source = 0 if layer.spec.source_is_input and slices == 1 else layer.source_width
    is_last = index == len(work.model.layers) - 1
    at_target = copies.aggregates * layer.aggregate_width + layer.inner_numbers
    at_target += (copies.outputs if is_last else copies.hidden) * layer.spec.out_features
    channels, columns = layer.spec.target
    at_target += channels * columns
    from_sparse = index == 0 and (work.graph.sparse or work.graph.in_blocks)
    of_source = copies.sparse_sources if from_sparse else copies.sources
    return of_source * sources * at_source + nodes * at_target


def count_encoded_numbers(work: Workload, rows: float) -> float:
    """Return the numbers that an encoder's output holds."""
    return 0.0 if work.model.reads_features else rows * work.model.layers[0].spec.in_features


def count_evaluated_numbers(work: Workload, nodes: float, sources: float, copies: LayerCopies) -> float:
    """Return the numbers of the rows that an evaluation of whole layers holds, beside what a step leaves.

    Layers run one after the other and free their memory, so the largest counts, not the sum.
    """
    # The first layer's input is counted as features.
    largest = max(
        copies.evaluated_sources * sources * layer.source_width * (not layer.spec.source_is_input)
        + copies.evaluated_aggregates * nodes * layer.aggregate_width
        + copies.evaluated_outputs * nodes * layer.spec.out_features
        + copies.evaluated_inputs * nodes * layer.spec.in_features * (1 + layer.reads_target) * (index > 0)
        for index, layer in enumerate(work.model.layers)
    )
    narrow = work.last_shares != WHOLE_LAYER and (work.model.reads_types or work.links is not None)
    return largest * (_EVALUATED_TYPED if narrow else 1.0)


def count_edge_numbers(layer: LayerSizes) -> float:
    """Return the numbers of each edge that are held until the backward pass."""
    return _PER_SCORE * layer.attention + _PER_HEAD * layer.heads + layer.edge_scores + layer.edge_numbers


def view_edge_bytes(nodes: float, sources: float, copies: LayerCopies) -> float:
    """Return the bytes of an in-edge in the views of a worker with so many nodes and sources."""
    return copies.edge_bytes + _PART_BYTES * (sources > nodes)


def grouping_bytes(work: Workload) -> float:
    """Return the bytes by which all edges of the graph are grouped by relation, for layers that need that."""
    graph, layers = work.graph, work.model.layers
    of_pairs = _PAIR_EDGE_BYTES * graph.edges + _PAIR_BYTES * graph.pairs
    return max(
        of_pairs * any(layer.groups_by_pair for layer in layers),
        _RELATION_EDGE_BYTES * graph.edges * any(layer.groups_by_relation for layer in layers),
    )


def count_edge_feature_copies(work: Workload, nodes: float, sources: float) -> int:
    """Return how often a worker holds the features of an edge when it computes whole layers."""
    if sources > nodes:
        # In each view, and once more as edges from own nodes are held apart from those of the halo.
        return 2 * len(set(work.model.views))
    # The graph's own are in a file, or counted with what is resident; a view with self-loops has a copy.
    return (work.graph.resident_bytes == 0) + any(work.model.views)
