"""What `split` takes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from outgrow.core.ledger import Kind
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, batch_prep_parts, minibatch_parts, transfer_parts
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.traffic import ID_BYTES, Bytes, Traffic, WorkerLayout, add_bytes, shard_traffic
from outgrow.planning.workload import CrossEdgeStats, SplitBatchStats, Workload
from outgrow.strategies.split.strategy import SplitParallel

_TOLD_BYTES = 4
_DRAWN = 2
"""Messages in which workers tell each other, for each layer of a batch, what they have drawn."""


def split_traffic(strategy: SplitParallel, work: Workload, layout: WorkerLayout) -> Traffic:
    """Each layer sends sources to the workers of their destinations, or parts of sums where that is fewer bytes."""
    drawing = work.sampling_spec(strategy.partition)
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers, drawing)
    found = work.sampling.split_batch_stats(drawing, layout.workers)
    traffic = shard_traffic(work, cut, layout, steps=found.steps)
    looked: Bytes = Counter()
    for batch in found.cross_edges:
        for index, (layer, pairs) in enumerate(zip(work.model.layers, batch, strict=True)):
            raw = index == 0 and work.model.source_is_features
            looked.update(_layer_traffic(layer, pairs, work, layout, raw=raw, partial=strategy.partial_sums))
    scale = found.num_full_batches / max(1, len(found.cross_edges))
    traffic.epoch.update({key: round(count * scale) for key, count in looked.items()})
    counts = sum(1 + 3 * layer.supports_partial_sums for layer in work.model.layers)
    one_each = np.ones((layout.workers, layout.workers), dtype=np.int64)
    add_bytes(traffic.epoch, Kind.IDS, layout.sum_by_link(one_each), ID_BYTES * counts * found.steps)
    return traffic


def _layer_traffic(
    layer: LayerSizes, cross_edges: CrossEdgeStats, work: Workload, layout: WorkerLayout, *, raw: bool, partial: bool
) -> Bytes:
    """What a layer moves in a batch: for each pair of workers what is fewer bytes, told what to sum or not."""
    moved: Bytes = Counter()
    number = work.model.number_bytes
    row_bytes = layer.source_width * number
    told = _TOLD_BYTES * cross_edges.destinations + (_TOLD_BYTES + number * layer.has_edge_weights) * cross_edges.edges
    both_ways = row_bytes * (1 if raw else 2)
    parts = (cross_edges.destinations * both_ways + told < cross_edges.sources * both_ways) & (
        layer.supports_partial_sums and partial
    )
    rows = layout.sum_by_link(np.where(parts, cross_edges.destinations, cross_edges.sources))
    add_bytes(moved, Kind.IDS, layout.sum_by_link(cross_edges.sources), ID_BYTES)
    add_bytes(moved, Kind.TOPOLOGY, layout.sum_by_link(told * parts))
    add_bytes(moved, Kind.FEATURES if raw else Kind.ACTIVATIONS, rows, row_bytes)
    if not raw:
        add_bytes(moved, Kind.GRADIENTS, rows, row_bytes)
    return moved


def _split_parts(work: Workload, costs: CostModel, stats: SplitBatchStats, traffic: Traffic) -> list[EpochPart]:
    """Each worker draws for, and computes, its own nodes of each batch, and waits for rows of others in each layer."""
    parts = minibatch_parts(work, costs, stats.neighborhood, stats.num_full_batches, stats.steps)
    busy = sum(part.seconds for part in parts)
    slowest = int(stats.neighborhood.edges.sum(1).argmax())
    edges, rows = float(stats.neighborhood.edges[slowest].sum()), float(stats.neighborhood.rows[slowest, 0])
    parts += batch_prep_parts(
        work, costs, stats.num_full_batches * edges, stats.num_full_batches * rows, busy, (1, None)
    )
    layers = work.model.layers
    exchanges = sum(_DRAWN + 2 - (work.model.source_is_features and index == 0) for index in range(len(layers)))
    return parts + transfer_parts(costs, traffic.epoch, exchanges * stats.steps, stats.steps)


def estimate_split(strategy: SplitParallel, work: Workload, costs: CostModel) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    traffic, workers = split_traffic(strategy, work, costs.layout), costs.layout.workers
    drawing = work.sampling_spec(strategy.partition)
    cut, found = (
        work.partitioning.partition_stats(strategy.partition, workers, drawing),
        work.sampling.split_batch_stats(drawing, workers),
    )
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(_split_parts(work, costs, found, traffic)),
        peak_bytes=minibatch_peak_bytes(work, costs, cut, found),
    )
