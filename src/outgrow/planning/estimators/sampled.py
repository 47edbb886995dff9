"""What `sampled` takes."""

from __future__ import annotations

from outgrow.engine.features.cache import rows_within_size
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, batch_prep_parts, minibatch_parts, transfer_parts
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.traffic import (
    Traffic,
    WorkerLayout,
    add_feature_requests,
    round_rows,
    sent_row_bytes,
    shard_traffic,
)
from outgrow.planning.workload import BatchStats, SamplingSpec, Workload
from outgrow.strategies.sampled import Sampled

_FETCHES = 2
"""Messages in which a batch's features are asked for and come."""


def sampled_traffic(strategy: Sampled, work: Workload, layout: WorkerLayout) -> Traffic:
    """Raw features of other workers' nodes cross for each batch, where no copy is kept; gradients with each step.

    Its cache is one of each worker.
    """
    return data_parallel_traffic(work, layout, _sampling_spec(strategy, work))


def _sampling_spec(strategy: Sampled, work: Workload) -> SamplingSpec:
    cached = rows_within_size(strategy.cache, work.graph.nodes, work.graph.row_bytes)
    return work.sampling_spec(strategy.partition)._replace(cache_rows=cached, cache_by=strategy.cache_by)


def data_parallel_traffic(work: Workload, layout: WorkerLayout, spec: SamplingSpec) -> Traffic:
    """What all workers move that draw around seeds by themselves, and fetch features."""
    cut, drawn = (
        work.partitioning.partition_stats(spec.partition, layout.workers),
        work.sampling.batch_stats(spec, layout.workers),
    )
    traffic, gathered = shard_traffic(work, cut, layout, steps=drawn.steps), drawn.gather
    asked = round_rows(gathered.remote_rows * drawn.num_full_batches)
    add_feature_requests(traffic.epoch, asked, sent_row_bytes(work, gathered.row_entries), layout)
    add_feature_requests(traffic.once, drawn.cached_rows, sent_row_bytes(work, work.graph.row_entries), layout)
    return traffic


def data_parallel_parts(
    work: Workload, costs: CostModel, traffic: Traffic, stats: BatchStats, threads: int | None, moves: int = 0
) -> list[EpochPart]:
    """Of strategies whose workers compute neighbourhoods by themselves, and make later batches ready meanwhile.

    Args:
        work: What is trained.
        costs: How fast.
        traffic: What crosses links.
        stats: The neighbourhoods.
        threads: Threads of a worker that draw; None for half as many as compute.
        moves: How often in a batch models go to the next worker.
    """
    slowest = int(stats.neighborhood.edges.sum(1).argmax())
    found = minibatch_parts(work, costs, stats.neighborhood, stats.num_full_batches, stats.steps)
    busy = sum(part.seconds for part in found)
    edges, rows = float(stats.neighborhood.edges[slowest].sum()), float(stats.neighborhood.rows[slowest, 0])
    found += batch_prep_parts(
        work, costs, stats.num_full_batches * edges, stats.num_full_batches * rows, busy, (threads, threads)
    )
    return found + transfer_parts(costs, traffic.epoch, (_FETCHES + moves) * stats.steps, stats.steps)


def estimate_sampled(strategy: Sampled, work: Workload, costs: CostModel) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    traffic, workers = sampled_traffic(strategy, work, costs.layout), costs.layout.workers
    drawn = work.sampling.batch_stats(_sampling_spec(strategy, work), workers)
    cached = round(int(drawn.cached_rows.sum(1).max()) * work.graph.row_bytes)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(data_parallel_parts(work, costs, traffic, drawn, strategy.sampling_threads)),
        peak_bytes=minibatch_peak_bytes(
            work, costs, work.partitioning.partition_stats(strategy.partition, workers), drawn
        )
        + cached,
    )
