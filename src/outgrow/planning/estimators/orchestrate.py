"""The estimate of `orchestrate`, without a cache on the device."""

from __future__ import annotations

from collections import Counter

from outgrow.core.ledger import Kind, Link
from outgrow.planning.batch_stats import HotStats, OrchestrateStats
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
    fetch_messages,
    round_rows,
    sent_row_bytes,
    shard_traffic,
)
from outgrow.planning.workload import Workload
from outgrow.strategies.orchestrate.strategy import Orchestrate

_USUAL_RATIO = 0.2
_PER_HOT, _PER_HOT_ON_DEVICE = 9, 2
"""Copies of the rows of hot nodes that it holds: as measured where the CPU's are in the same memory; else those of this
super-batch and of the next."""
_EDGE_BYTES = 20
"""Bytes of a sampled edge: its source, its id, its weight in the sample, and what numbers it."""
_CPU_SIDE_BYTES = 24 << 20
"""Bytes of the CPU's model and threads, and of the queues between the CPU and the device."""


def orchestrate_traffic(strategy: Orchestrate, work: Workload, layout: WorkerLayout, *, hot_ratio: float) -> Traffic:
    """Return the traffic: raw features of cold nodes and their neighbours, and the CPU's results for hot nodes.

    Results of hot nodes are copied to the device once for each super-batch but the first of a run, which has none.

    Args:
        strategy: The strategy.
        work: The graph and the model.
        layout: The workers.
        hot_ratio: Share of all nodes that are hot.
    """
    spec = work.sampling_spec(strategy.partition)
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers, spec)
    found = work.sampling.orchestrate_stats(spec, layout.workers, hot_ratio, strategy.super_batch)
    traffic = shard_traffic(work, cut, layout, steps=found.steps)
    supers, size = _num_super_batches(strategy, found), min(strategy.super_batch, found.num_full_batches)
    # The CPU computes hot nodes one super-batch ahead, so in the first one of a run the device computes every node.
    for into, cold, warm, computed, steps in (
        (traffic.epoch, 0.0, found.num_full_batches, supers, found.steps),
        (traffic.once, size, -size, -1, -size),
    ):
        for gathered, times in ((found.cold, cold), (found.warm, warm), (found.hot.gather, computed)):
            requested = round_rows(gathered.remote_rows * times)
            add_feature_requests(into, requested, sent_row_bytes(work, gathered.row_entries), layout)
        # The features of hot nodes' neighbours stay in host memory, where the CPU reads them.
        loaded = round((found.cold.rows * cold + found.warm.rows * warm) * work.input_row_bytes)
        add_bytes(into, Kind.FEATURES, {Link.HOST_TO_DEVICE: loaded})
        for kind, width in _hot_node_bytes(strategy, work).items():
            add_bytes(into, kind, {Link.HOST_TO_DEVICE: round(found.hot.nodes * computed * width)})
        if found.hot.uses:
            crossing = _gradient_bytes(strategy, work, found, supers=computed, steps=steps * layout.workers)
            add_bytes(into, Kind.GRADIENTS, crossing)
    return traffic


def _num_super_batches(strategy: Orchestrate, found: OrchestrateStats) -> float:
    """Return the number of super-batches of an epoch."""
    return max(1.0, found.num_full_batches / strategy.super_batch)


def _hot_node_bytes(strategy: Orchestrate, work: Workload) -> dict[Kind, float]:
    """Return the bytes to the device for a hot node, by kind: its embedding, or its aggregate with its own input."""
    kept, read = _kept_numbers(strategy, work)
    sent = 0 if strategy.keeps_aggregates_on_host else kept
    own = 0.0 if strategy.keeps_aggregates_on_host else read
    numbers = work.model.layers[0].spec.out_features if strategy.reuse == "embedding" else 0
    return {Kind.ACTIVATIONS: (numbers + sent) * work.model.number_bytes, Kind.FEATURES: own}


def _kept_numbers(strategy: Orchestrate, work: Workload) -> tuple[int, float]:
    """Return the numbers of an aggregate that is kept of a hot node, and the bytes of its own input."""
    if not strategy.keeps_aggregates or _keeps_sources(strategy, work):
        return 0, 0.0
    # An aggregate of raw features has no parameters in it, so it does not become stale.
    summed = work.model.aggregate_first_layer or work.model.layers[0]
    # That of sparse features, which layers project first, is dense where it is reused.
    is_wide = strategy.reuse == "aggregate" and not summed.spec.source_is_input
    width = summed.spec.in_features if is_wide else summed.aggregate_width
    return width, work.input_row_bytes if summed.reads_target else 0.0


def _keeps_sources(strategy: Orchestrate, work: Workload) -> bool:
    """Return whether the CPU keeps the features of the sources of hot nodes, and computes these again."""
    return strategy.keeps_aggregates_on_host and not work.model.aggregates_raw_features


def _gradient_bytes(
    strategy: Orchestrate, work: Workload, found: OrchestrateStats, *, supers: float, steps: float
) -> dict[Link, int]:
    """Return what crosses so that the CPU computes the gradient from hot nodes, in some super-batches and steps."""
    if not strategy.keeps_aggregates_on_host:
        return {}
    width = work.model.layers[0].spec.out_features
    return {
        Link.DEVICE_TO_HOST: round(found.hot.uses * supers * width * work.model.number_bytes),
        Link.HOST_TO_DEVICE: round(work.model.bottom_parameters * steps * work.model.number_bytes),
    }


def orchestrate_parts(
    strategy: Orchestrate, work: Workload, costs: CostModel, traffic: Traffic, *, hot_ratio: float
) -> list[EpochPart]:
    """Return the parts of an epoch: the device computes cold nodes, the CPU hot ones for the next super-batch."""
    workers = costs.layout.workers
    found = work.sampling.orchestrate_stats(
        work.sampling_spec(strategy.partition), workers, hot_ratio, strategy.super_batch
    )
    parts = minibatch_parts(work, costs, found.neighborhood, found.num_full_batches, found.steps)
    busy = sum(part.seconds for part in parts)
    supers = _num_super_batches(strategy, found)
    hot = _hot_seconds(work, costs, found.hot.nodes / workers, found.hot.edges / workers) * supers
    gradient = _gradient_seconds(strategy, work, costs, found.hot, workers) * supers
    rows = found.num_full_batches * found.warm.rows / workers
    edges = found.num_full_batches * float(found.neighborhood.edges.sum(1).max()) + supers * found.hot.edges / workers
    sampling = costs.sampling_seconds(edges, strategy.sampling_threads)
    gathering = costs.gather_seconds(
        rows + supers * found.hot.gather.rows / workers, work.graph.row_bytes, strategy.sampling_threads
    )
    parts += [
        # The device waits for it: the next batch needs the parameters.
        *([EpochPart(name="gradient of hot nodes on the CPU", seconds=gradient)] if gradient else []),
        overlapped_part(costs, "hot nodes on the CPU", hot, busy),
        overlapped_part(costs, "neighbours drawn", sampling, busy),
        overlapped_part(costs, "features gathered", gathering, busy),
    ]
    parts += feature_copy_parts(work, costs, rows, busy)
    # Copies to the device are a part already; what is left crosses between workers.
    between = {key: count for key, count in traffic.epoch.items() if key[0] in (Link.PEER, Link.NETWORK)}
    return parts + transfer_parts(costs, Counter(between), fetch_messages(costs.layout) * found.steps, found.steps)


def _hot_seconds(work: Workload, costs: CostModel, nodes: float, edges: float) -> float:
    """Return the CPU's seconds for the bottom layer of hot nodes, forward only: gathering, and products."""
    layer = work.model.layers[0]
    row_bytes = work.input_row_bytes
    # The profile of a GPU machine has no product rate of its host; there gathering rows for each edge counts most.
    if costs.shares_device:
        return costs.matmul_seconds(nodes, sum(layer.weights), layer.spec.out_features) + costs.gather_seconds(
            edges, row_bytes
        )
    return costs.gather_seconds(edges, row_bytes)


def _gradient_seconds(strategy: Orchestrate, work: Workload, costs: CostModel, hot: HotStats, workers: int) -> float:
    """Return the CPU's seconds for the gradient from the hot nodes of a super-batch.

    It reads aggregates and takes three products; or it computes the rows again, and takes two products more.
    """
    if not strategy.keeps_aggregates_on_host:
        return 0.0
    uses = hot.uses / workers
    if _keeps_sources(strategy, work):
        return 3 * _hot_seconds(work, costs, uses, uses * hot.edges / max(1.0, hot.nodes))
    kept, own = _kept_numbers(strategy, work)
    read = costs.gather_seconds(uses, kept * work.model.number_bytes + own)
    if not costs.shares_device:
        return read
    bottom = work.model.layers[0]
    return read + 3 * costs.matmul_seconds(uses, sum(bottom.weights), bottom.spec.out_features)


def estimate_orchestrate(strategy: Orchestrate, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `orchestrate` with its hot ratio, or the usual one if the run would choose it."""
    ratio = _USUAL_RATIO if strategy.hot_ratio is None else strategy.hot_ratio
    workers = costs.layout.workers
    traffic = orchestrate_traffic(strategy, work, costs.layout, hot_ratio=ratio)
    spec = work.sampling_spec(strategy.partition)
    found = work.sampling.orchestrate_stats(spec, workers, ratio, strategy.super_batch)
    width = sum(_hot_node_bytes(strategy, work).values())
    copies, beside = _PER_HOT_ON_DEVICE, 0
    if costs.shares_device:
        # What the CPU keeps, and the features that hot nodes are computed from, are in the same memory.
        copies = _PER_HOT
        if strategy.keeps_aggregates_on_host:
            kept, own = _kept_numbers(strategy, work)
            width += kept * work.model.number_bytes + own
        gathered = found.hot.gather.rows / workers * work.input_row_bytes
        if _keeps_sources(strategy, work):
            # Of this super-batch and of the next.
            gathered += 2 * (gathered + found.hot.edges / workers * _EDGE_BYTES)
        beside = _CPU_SIDE_BYTES + round(gathered)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(orchestrate_parts(strategy, work, costs, traffic, hot_ratio=ratio)),
        peak_bytes=minibatch_peak_bytes(
            work,
            costs,
            work.partitioning.partition_stats(strategy.partition, workers, spec),
            found,
            # Batches of this super-batch and of the next, but for those that are in use anyway.
            prefetch=2 * (strategy.super_batch - 1),
            limited=strategy.memory_limit is not None,
            links=work.link_step_stats(strategy.partition, workers),
        )
        + beside
        + round(copies * found.hot.nodes / workers * width),
    )
