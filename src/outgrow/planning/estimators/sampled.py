"""The estimate of `sampled`, and of what all data-parallel strategies share."""

from __future__ import annotations

from outgrow.core.ledger import Kind
from outgrow.engine.features.cache import rows_within_size
from outgrow.planning.batch_stats import BatchStats, SamplingSpec
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, batch_prep_parts, minibatch_parts, transfer_parts
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.traffic import (
    ID_BYTES,
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
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.sampled import Sampled


def sampled_traffic(strategy: Sampled, work: Workload, layout: WorkerLayout) -> Traffic:
    """Return the traffic: raw features of remote nodes that are not cached, and gradients in each step.

    Each worker has its own cache.
    """
    return data_parallel_traffic(work, layout, cached_sampling_spec(strategy, work, layout))


def cached_sampling_spec(strategy: Sampled | Migrate, work: Workload, layout: WorkerLayout) -> SamplingSpec:
    """Return how batches are sampled, and which rows each worker caches."""
    cached = rows_within_size(strategy.cache, work.graph.nodes, work.graph.row_bytes)
    return work.sampling_spec(strategy.partition)._replace(
        cache_rows=cached if layout.hosts > 1 else 0,
        cache_by=strategy.cache_by,
        workers_per_host=layout.workers_per_host,
    )


def data_parallel_traffic(work: Workload, layout: WorkerLayout, spec: SamplingSpec) -> Traffic:
    """Return the traffic of workers that sample the neighbourhoods of their seeds and fetch remote features."""
    # The parts depend on neither caches nor time steps: they are counted once for all of these.
    cut = work.partitioning.partition_stats(spec.partition, layout.workers, work.sampling_spec(spec.partition))
    stats = work.sampling.batch_stats(spec, layout.workers)
    traffic = shard_traffic(work, cut, layout, steps=stats.steps)
    gathered = stats.gather
    # The gradient sums need whole steps, but rows depend on the seeds: a short last batch counts as a fraction.
    requested = round_rows(gathered.remote_rows * stats.num_full_batches)
    add_feature_requests(traffic.epoch, requested, sent_row_bytes(work, gathered.row_entries), layout)
    if fetch_messages(layout):
        # Every request says how many rows the next one asks for, also to workers of the same host.
        add_bytes(traffic.epoch, Kind.IDS, layout.pairs_by_link(), ID_BYTES * stats.steps)
    # The cache is filled once, by the same requests.
    add_feature_requests(traffic.once, stats.cached_rows, sent_row_bytes(work, work.graph.row_entries), layout)
    return traffic


def data_parallel_parts(
    strategy: Sampled | Migrate, work: Workload, costs: CostModel, traffic: Traffic, stats: BatchStats, moves: int = 0
) -> list[EpochPart]:
    """Return the parts of an epoch of workers that compute whole neighbourhoods and prefetch later batches.

    Args:
        strategy: The strategy.
        work: The graph and the model.
        costs: The rates.
        traffic: Bytes that cross links.
        stats: Statistics of the batches.
        moves: Messages of a batch in which models move to the next worker.
    """
    slowest = int(stats.neighborhood.edges.sum(1).argmax())
    found = minibatch_parts(work, costs, stats.neighborhood, stats.num_full_batches, stats.steps)
    busy = sum(part.seconds for part in found)
    edges = float(stats.neighborhood.edges[slowest].sum())
    rows = float(stats.neighborhood.rows[slowest, 0])
    threads, steps = strategy.sampling_threads, stats.num_full_batches
    found += batch_prep_parts(
        work, costs, steps * edges, steps * rows, busy, (threads, threads), copies_ahead=strategy.prefetch > 0
    )
    messages = fetch_messages(costs.layout) + moves
    return found + transfer_parts(costs, traffic.epoch, messages * stats.steps, stats.steps)


def estimate_sampled(strategy: Sampled, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `sampled`; each worker's cache adds to its memory."""
    traffic = sampled_traffic(strategy, work, costs.layout)
    workers = costs.layout.workers
    stats = work.sampling.batch_stats(cached_sampling_spec(strategy, work, costs.layout), workers)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(data_parallel_parts(strategy, work, costs, traffic, stats)),
        peak_bytes=data_parallel_peak_bytes(strategy, work, costs, stats),
    )


def data_parallel_peak_bytes(strategy: Sampled | Migrate, work: Workload, costs: CostModel, stats: BatchStats) -> int:
    """Return the peak memory of a worker, with its cache."""
    spec = work.sampling_spec(strategy.partition)
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers, spec)
    cached = round(int(stats.cached_rows.sum(1).max()) * work.graph.row_bytes)
    limited = strategy.memory_limit is not None
    links = work.link_step_stats(strategy.partition, costs.layout.workers)
    return minibatch_peak_bytes(work, costs, cut, stats, strategy.prefetch, limited=limited, links=links) + cached
