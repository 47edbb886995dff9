"""Memory of the evaluations of mini-batch runs: which of them there are, and what those in chunks hold.

Follows `outgrow.inference`: its choice of an inference, the size of its chunks, and its tables of lower layers.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from outgrow.inference.chunked import CHUNK_BYTES, CHUNKS_IN_FLIGHT, MEMORY_SHARE
from outgrow.inference.modes import AUTO, LAYERWISE, NONE, SAMPLED, WORTH_IT
from outgrow.inference.sampled import batches_of_all_before
from outgrow.planning.batch_stats import SamplingSpec, ScoredNeighborhood
from outgrow.planning.cost_model import CostModel
from outgrow.planning.workload import Workload

WHOLE_LAYERS = None
"""Stands for an evaluation of whole layers in memory."""
_ID_BYTES = 8
"""Bytes of the id of a node that a layer computes."""
_OF_CHUNKS = 0.4
"""Measured share of the bound on all chunks in flight: sources of several edges are one row, few chunks are full."""
_BATCHES_AHEAD, _BATCH_EDGE_BYTES = 4, 36
"""Batches before times that there are at once: computed, ready, and being drawn; and bytes of an edge in them: its
source, edge, weight and degree, and room for as many more."""


def evaluated_neighborhoods(work: Workload, *, whole_fits: bool) -> list[ScoredNeighborhood | None]:
    """Return what the evaluations of a run compute at a time, `WHOLE_LAYERS` for all nodes in memory.

    Evaluations by samples are like batches of training, and left out; those of temporal draws are batches too:
    `inference_before_times_bytes`.

    Args:
        work: The graph and the model.
        whole_fits: Whether whole layers fit into the memory of every worker.
    """
    if work.batches.is_temporal:
        return []
    val, test = work.evaluation
    found: list[ScoredNeighborhood | None] = []
    # Both sets are scored at once in the end, if in one way.
    for mode, with_test in ((val, False), (test, True)):
        if mode in (SAMPLED, NONE):
            continue
        needed = work.sampling.scored_neighborhood(len(work.model.layers), with_test=with_test)
        takes_all = mode == LAYERWISE or (mode == AUTO and _share_of_work(work, needed) > WORTH_IT)
        if takes_all and whole_fits:
            found.append(WHOLE_LAYERS)
        else:
            found.append(_every_node(work) if mode == LAYERWISE else needed)
    return found


def evaluates_before_times(work: Workload) -> bool:
    """Whether nodes are evaluated by all in-edges before their times."""
    return work.batches.is_temporal and any(mode not in (SAMPLED, NONE) for mode in work.evaluation)


def inference_before_times_bytes(work: Workload) -> float:
    """Return the bytes of batches of all in-edges before the times of some nodes, which `SampledInference` computes."""
    # By one worker: each of several has as large batches. Nodes to train on stand for those that are scored.
    batches = batches_of_all_before(work.batches.temporal_strategy)
    neighborhood = work.sampling.batch_stats(SamplingSpec(batches, work.model.views, work.seed, "hash"), 1).neighborhood
    rows, edges = neighborhood.rows[0], neighborhood.edges[0]
    ahead = _BATCHES_AHEAD * float(rows[0] * work.input_row_bytes + _BATCH_EDGE_BYTES * edges.sum())
    # Layers run one after the other, each with its input, its sources and its output.
    numbers = max(
        float(rows[index] * (layer.spec.in_features + layer.source_width) + rows[index + 1] * layer.spec.out_features)
        + float(edges[index]) * (layer.attention + layer.heads)
        for index, layer in enumerate(work.model.layers)
    )
    return ahead + numbers * work.model.number_bytes


def time_order_bytes(work: Workload, workers: int) -> int:
    """Return the bytes of the orders of in-edges by time (`outgrow.ops.sampling.time_order`) in a worker's memory.

    Workers map the order of a store; several have one, and one of a graph in memory makes it. Sums of weights in this
    order are made by each. Where layers add self-loops, there is another order, as if the graph had loops.
    """
    graph = work.graph
    is_stored = workers > 1 or not graph.resident_bytes
    views = set(work.model.views)
    made = [with_loops for with_loops in views if with_loops or not is_stored]
    of_edge = 8 + (4 if graph.edges < 2**31 else 8)
    return (len(made) * of_edge + 8 * graph.is_weighted * len(views)) * graph.edges


def chunked_inference_bytes(work: Workload, costs: CostModel, computed: ScoredNeighborhood, share: float) -> float:
    """Return the bytes of an evaluation in chunks of nodes.

    Args:
        work: The graph and the model.
        costs: The cost model.
        computed: What each layer computes, over all workers.
        share: Share of it that a worker computes.
    """
    number = work.model.number_bytes
    # A chunk has a row for each in-edge at most, and each node once.
    every = float(CHUNKS_IN_FLIGHT * work.graph.nodes) / _OF_CHUNKS
    largest = max(
        min(every, float(edges) * share) * layer.spec.in_features * number
        + float(edges) * share * work.graph.edge_row_bytes * (layer.edge_dim > 0)
        for edges, layer in zip(computed.edges, work.model.layers, strict=True)
    )
    most = CHUNKS_IN_FLIGHT * min(CHUNK_BYTES, MEMORY_SHARE * costs.memory / (2 * CHUNKS_IN_FLIGHT))
    chunks = _OF_CHUNKS * min(largest, most)
    # On a GPU ids and rows of layers are in the memory of the host.
    if not costs.shares_device:
        return chunks
    widths = [layer.spec.out_features for layer in work.model.layers[:-1]]
    rows = [float(count) * share for count in computed.rows]
    stored = [count * width * number for count, width in zip(rows, widths, strict=False)]
    # Rows of a layer are made while those of the layer below are read.
    tables = max((one + other for one, other in pairwise([0.0, *stored])), default=0.0)
    return chunks + min(tables, MEMORY_SHARE * costs.memory / 2) + _ID_BYTES * sum(rows)


def _every_node(work: Workload) -> ScoredNeighborhood:
    layers = len(work.model.layers)
    return ScoredNeighborhood(np.full(layers, float(work.graph.nodes)), np.full(layers, float(work.graph.edges)))


def _share_of_work(work: Workload, needed: ScoredNeighborhood) -> float:
    """Return the part of the numbers that all layers aggregate."""
    widths = [layer.aggregate_width for layer in work.model.layers]
    part = sum(float(edges) * width for edges, width in zip(needed.edges, widths, strict=True))
    return part / max(1.0, work.graph.edges * sum(widths))
