"""What `orchestrate` takes, without a cache on the device."""

from __future__ import annotations

from collections import Counter

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import (
    EpochPart,
    Estimate,
    feature_copy_parts,
    minibatch_parts,
    overlapped_part,
    transfer_parts,
)
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.traffic import (
    Traffic,
    WorkerLayout,
    add_bytes,
    add_feature_requests,
    round_rows,
    sent_row_bytes,
    shard_traffic,
)
from outgrow.planning.workload import Workload
from outgrow.strategies.orchestrate.strategy import Orchestrate

_USUAL_RATIO = 0.2
_AHEAD, _PER_HOT = 2, 5
"""Batches that it draws ahead besides, and how often rows of hot nodes are held."""
_CPU_SIDE_BYTES = 48 << 20
"""Of the model, the threads beside those of the device, and what waits for either where both are slow."""


def orchestrate_traffic(strategy: Orchestrate, work: Workload, layout: WorkerLayout, *, hot_ratio: float) -> Traffic:
    """To the device go raw features of cold nodes and their neighbours, and what the CPU has made of hot nodes.

    The first super-batch of an epoch has none of these. They go once for each super-batch.

    Args:
        strategy: How.
        work: What is trained.
        layout: Where the workers are.
        hot_ratio: Share of all nodes that are hot.
    """
    drawing = work.sampling_spec(strategy.partition)
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers)
    found = work.sampling.orchestrate_stats(drawing, layout.workers, hot_ratio, strategy.super_batch)
    traffic = shard_traffic(work, cut, layout, steps=found.steps)
    first = min(strategy.super_batch, found.num_full_batches)
    later, supers = found.num_full_batches - first, (found.num_full_batches - first) / strategy.super_batch
    for gathered, times in ((found.cold, first), (found.warm, later), (found.hot.gather, supers)):
        asked = round_rows(gathered.remote_rows * times)
        add_feature_requests(traffic.epoch, asked, sent_row_bytes(work, gathered.row_entries), layout)
    loaded = round((found.cold.rows * first + found.warm.rows * later) * work.input_row_bytes)
    add_bytes(traffic.epoch, Kind.FEATURES, {Link.HOST_TO_DEVICE: loaded})
    for kind, width in _hot_node_bytes(strategy, work).items():
        add_bytes(traffic.epoch, kind, {Link.HOST_TO_DEVICE: round(found.hot.nodes * supers * width)})
    return traffic


def _hot_node_bytes(strategy: Orchestrate, work: Workload) -> dict[Kind, float]:
    """Bytes of what is made of a hot node: its embedding, and its aggregate with its own input."""
    bottom, aggregates = work.model.layers[0], strategy.keeps_aggregates
    summed = (aggregates and work.model.aggregate_first_layer) or bottom
    numbers = bottom.spec.out_features if strategy.reuse == "embedding" else 0
    numbers += summed.aggregate_width if aggregates else 0
    own = work.input_row_bytes if aggregates and summed.reads_target else 0.0
    return {Kind.ACTIVATIONS: numbers * work.model.number_bytes, Kind.FEATURES: own}


def orchestrate_parts(
    strategy: Orchestrate, work: Workload, costs: CostModel, traffic: Traffic, *, hot_ratio: float
) -> list[EpochPart]:
    """The device computes all but hot nodes of the bottom layer; the CPU computes these for the next super-batch."""
    workers = costs.layout.workers
    found = work.sampling.orchestrate_stats(
        work.sampling_spec(strategy.partition), workers, hot_ratio, strategy.super_batch
    )
    parts = minibatch_parts(work, costs, found.neighborhood, found.num_full_batches, found.steps)
    busy = sum(part.seconds for part in parts)
    supers = found.num_full_batches / strategy.super_batch
    hot = _hot_seconds(work, costs, found.hot.nodes / workers, found.hot.edges / workers) * supers
    rows = found.num_full_batches * found.warm.rows / workers
    edges = found.num_full_batches * float(found.neighborhood.edges.sum(1).max()) + supers * found.hot.edges / workers
    drawing = costs.sampling_seconds(edges, strategy.sampling_threads)
    gathering = costs.gather_seconds(
        rows + supers * found.hot.gather.rows / workers, work.graph.row_bytes, strategy.sampling_threads
    )
    parts += [
        overlapped_part(costs, "hot nodes on the CPU", hot, busy),
        overlapped_part(costs, "neighbours drawn", drawing, busy),
        overlapped_part(costs, "features gathered", gathering, busy),
    ]
    parts += feature_copy_parts(work, costs, rows, busy)
    between = {key: count for key, count in traffic.epoch.items() if key[0] in (Link.PEER, Link.NETWORK)}
    return parts + transfer_parts(costs, Counter(between), 2 * found.steps, found.steps)


def _hot_seconds(work: Workload, costs: CostModel, nodes: float, edges: float) -> float:
    """Of the bottom layer of hot nodes, forward only, by the CPU: what it takes from memory, and products."""
    layer, row_bytes = work.model.layers[0], work.input_row_bytes
    if costs.shares_device:
        return costs.matmul_seconds(nodes, sum(layer.weights), layer.spec.out_features) + costs.gather_seconds(
            edges, row_bytes
        )
    return costs.gather_seconds(edges, row_bytes)


def estimate_orchestrate(strategy: Orchestrate, work: Workload, costs: CostModel) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    ratio = _USUAL_RATIO if strategy.hot_ratio is None else strategy.hot_ratio
    workers, traffic = costs.layout.workers, orchestrate_traffic(strategy, work, costs.layout, hot_ratio=ratio)
    found = work.sampling.orchestrate_stats(
        work.sampling_spec(strategy.partition), workers, ratio, strategy.super_batch
    )
    width = sum(_hot_node_bytes(strategy, work).values())
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(orchestrate_parts(strategy, work, costs, traffic, hot_ratio=ratio)),
        peak_bytes=minibatch_peak_bytes(
            work, costs, work.partitioning.partition_stats(strategy.partition, workers), found, extra_prefetched=_AHEAD
        )
        + _CPU_SIDE_BYTES
        + round(_PER_HOT * found.hot.nodes / workers * width),
    )
