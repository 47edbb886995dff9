"""The estimate of `split`."""

from __future__ import annotations

from collections import Counter

import numpy as np

from outgrow.core.ledger import Kind
from outgrow.engine.features.cache import rows_within_size
from outgrow.planning.batch_stats import CrossEdgeStats, SamplingSpec, SplitBatchStats
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, batch_prep_parts, minibatch_parts, transfer_parts
from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.traffic import (
    ID_BYTES,
    Bytes,
    Traffic,
    WorkerLayout,
    add_bytes,
    count_sent_numbers,
    shard_traffic,
)
from outgrow.planning.workload import Workload
from outgrow.strategies.split.strategy import SplitParallel

_TOLD_BYTES = 4
"""Bytes of a local node number in a request for partial sums."""
_DRAWN, _PLANNED = 2, 3
"""Messages, for each layer of a batch, in which workers exchange the sources that they sampled; and in which they
request partial sums, by their counts, their edges and the weights of these, also if there are none."""


def _sampling_spec(strategy: SplitParallel, work: Workload) -> SamplingSpec:
    """Return how batches are sampled, and which rows of its own nodes each worker caches."""
    cached = rows_within_size(strategy.cache, work.graph.nodes, work.graph.row_bytes)
    return work.sampling_spec(strategy.partition)._replace(cache_rows=cached, cache_by=strategy.cache_by)


def split_traffic(strategy: SplitParallel, work: Workload, layout: WorkerLayout) -> Traffic:
    """Return the traffic: each layer sends source rows to their destinations' workers, or partial sums if smaller."""
    spec = _sampling_spec(strategy, work)
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers, work.sampling_spec(strategy.partition))
    found = work.sampling.split_batch_stats(spec, layout.workers)
    traffic = shard_traffic(work, cut, layout, steps=found.steps)
    sampled: Bytes = Counter()
    # The choice between rows and partial sums is made per batch, so it is repeated on each, not on their mean.
    for batch in found.cross_edges:
        for index, (layer, pairs) in enumerate(zip(work.model.layers, batch, strict=True)):
            raw = index == 0 and work.model.source_is_features
            sampled.update(_layer_traffic(layer, pairs, work, layout, raw=raw, partial=strategy.partial_sums))
    scale = found.num_full_batches / max(1, len(found.cross_edges))
    traffic.epoch.update({key: round(count * scale) for key, count in sampled.items()})
    # Every pair of workers exchanges the sizes first: of the source ids, and of three lists for partial sums.
    counts = sum(1 + 3 * layer.supports_partial_sums for layer in work.model.layers)
    add_bytes(traffic.epoch, Kind.IDS, layout.pairs_by_link(), ID_BYTES * counts * found.steps)
    return traffic


def _layer_traffic(
    layer: LayerSizes, cross_edges: CrossEdgeStats, work: Workload, layout: WorkerLayout, *, raw: bool, partial: bool
) -> Bytes:
    """Return the traffic of a layer in a batch: for each pair of workers, rows or partial sums, whichever is less."""
    moved: Bytes = Counter()
    number = work.model.number_bytes
    row_bytes = count_sent_numbers(layer, cross_edges.sources, cross_edges.typed_sources) * number
    # A request for partial sums lists the destinations and, for each edge, its source and its weight.
    request = (
        _TOLD_BYTES * cross_edges.destinations + (_TOLD_BYTES + number * layer.has_edge_weights) * cross_edges.edges
    )
    # Partial sums are as wide as whole rows.
    sum_bytes = cross_edges.destinations * round(layer.sent_width * number)
    # Raw features get no gradient, so their rows cross in one direction only.
    ways = 1 if raw else 2
    parts = (ways * sum_bytes + request < ways * row_bytes) & (layer.supports_partial_sums and partial)
    crossed = layout.sum_by_link(np.where(parts, sum_bytes, row_bytes))
    # A row that is drawn for a time is requested with it.
    request_bytes = ID_BYTES * (2 if work.batches.is_temporal else 1)
    add_bytes(moved, Kind.IDS, layout.sum_by_link(cross_edges.sources), request_bytes)
    add_bytes(moved, Kind.TOPOLOGY, layout.sum_by_link(request * parts))
    add_bytes(moved, Kind.FEATURES if raw else Kind.ACTIVATIONS, crossed)
    if not raw:
        add_bytes(moved, Kind.GRADIENTS, crossed)
    return moved


def _split_parts(
    work: Workload, costs: CostModel, stats: SplitBatchStats, traffic: Traffic, threads: int | None
) -> list[EpochPart]:
    """Return the parts of an epoch: workers sample and compute their own nodes, and exchange rows in each layer.

    Rows in the cache of a device are neither gathered nor copied.
    """
    parts = minibatch_parts(work, costs, stats.neighborhood, stats.num_full_batches, stats.steps)
    busy = sum(part.seconds for part in parts)
    slowest = int(stats.neighborhood.edges.sum(1).argmax())
    edges = float(stats.neighborhood.edges[slowest].sum())
    # Where host and device are one memory, cached rows are copied as well.
    rows = float(stats.neighborhood.rows[slowest, 0]) * (1 - stats.cached_share * (not costs.shares_device))
    steps = stats.num_full_batches
    parts += batch_prep_parts(work, costs, steps * edges, steps * rows, busy, (threads, threads), copies_ahead=True)
    layers = work.model.layers
    # Sampling, requests, then rows forward and gradients backward; raw features have no gradient.
    exchanges = sum(
        _DRAWN + _PLANNED * layer.supports_partial_sums + 2 - (work.model.source_is_features and index == 0)
        for index, layer in enumerate(layers)
    )
    return parts + transfer_parts(costs, traffic.epoch, exchanges * stats.steps, stats.steps)


def estimate_split(strategy: SplitParallel, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `split`: one neighbourhood for each batch, computed by all workers."""
    traffic = split_traffic(strategy, work, costs.layout)
    workers = costs.layout.workers
    spec = _sampling_spec(strategy, work)
    cut = work.partitioning.partition_stats(strategy.partition, workers, work.sampling_spec(strategy.partition))
    found = work.sampling.split_batch_stats(spec, workers)
    # A worker caches no more rows than it owns.
    cached = min(spec.cache_rows, int(cut.nodes.max())) * work.graph.row_bytes
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(_split_parts(work, costs, found, traffic, strategy.sampling_threads)),
        peak_bytes=minibatch_peak_bytes(
            work,
            costs,
            cut,
            found,
            strategy.prefetch,
            limited=strategy.memory_limit is not None,
            links=work.link_step_stats(strategy.partition, workers),
        )
        + round(cached),
    )
