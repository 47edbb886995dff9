"""What `migrate` takes."""

from __future__ import annotations

import numpy as np

from outgrow.core.ledger import Kind
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.sampled import data_parallel_parts, data_parallel_traffic
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.traffic import ID_BYTES, Traffic, WorkerLayout, add_bytes
from outgrow.planning.workload import SamplingSpec, Workload
from outgrow.strategies.migrate.strategy import Migrate

_LABEL_BYTES = 8


def migrate_traffic(strategy: Migrate, work: Workload, layout: WorkerLayout) -> Traffic:
    """Features that seeds need beyond their homes; and models with their gradients, where they travel.

    Time steps are not merged: a model goes to all workers, unless ``time_steps`` says to how many.
    """
    drawing = _sampling_spec(strategy, work, layout)
    traffic, time_steps = data_parallel_traffic(work, layout, drawing), drawing.time_steps
    if time_steps is None:
        return traffic
    steps, (tensors, numbers) = work.sampling.batch_stats(drawing, layout.workers).steps, work.model.parameters
    onward = layout.sum_by_link(np.roll(np.eye(layout.workers, dtype=np.int64), 1, axis=1))
    moves = steps * (time_steps - 1)
    add_bytes(traffic.epoch, Kind.PARAMETERS, onward, moves * numbers * work.model.number_bytes)
    add_bytes(traffic.epoch, Kind.GRADIENTS, onward, moves * (tensors + numbers) * work.model.number_bytes)
    may_drop = time_steps < layout.workers or (strategy.merge and strategy.time_steps is None)
    if may_drop:  # all workers are told the labels of all seeds
        to_all = layout.broadcast_bytes(work.graph.train)
        add_bytes(traffic.once, Kind.FEATURES, to_all, _LABEL_BYTES)
        add_bytes(traffic.once, Kind.IDS, to_all, ID_BYTES)
    return traffic


def _sampling_spec(strategy: Migrate, work: Workload, layout: WorkerLayout) -> SamplingSpec:
    travels = strategy.move_model and layout.workers > 1
    time_steps = min(layout.workers, strategy.time_steps or layout.workers) if travels else None
    return work.sampling_spec(strategy.partition)._replace(time_steps=time_steps, pregather=strategy.pregather)


def estimate_migrate(strategy: Migrate, work: Workload, costs: CostModel) -> Estimate:
    """See `outgrow.planning.estimators.registry`. Models that travel, and gradients, go on after each time step."""
    traffic, workers = migrate_traffic(strategy, work, costs.layout), costs.layout.workers
    drawing = _sampling_spec(strategy, work, costs.layout)
    drawn, moves = work.sampling.batch_stats(drawing, workers), 2 * ((drawing.time_steps or 1) - 1)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(data_parallel_parts(work, costs, traffic, drawn, strategy.sampling_threads, moves)),
        peak_bytes=minibatch_peak_bytes(
            work, costs, work.partitioning.partition_stats(strategy.partition, workers), drawn
        ),
    )
