"""The estimate of `migrate`."""

from __future__ import annotations

import numpy as np

from outgrow.core.ledger import Kind
from outgrow.planning.batch_stats import BatchStats, SamplingSpec
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import LAYER_PARTS, EpochPart, Estimate
from outgrow.planning.estimators.sampled import (
    cached_sampling_spec,
    data_parallel_parts,
    data_parallel_peak_bytes,
    data_parallel_traffic,
)
from outgrow.planning.traffic import ID_BYTES, Traffic, WorkerLayout, add_bytes, round_rows
from outgrow.planning.workload import Workload
from outgrow.strategies.migrate.strategy import Migrate

_COMPUTED = (*LAYER_PARTS, "new edges")
_MOVED_PASSES = 8
"""How often a number of a model is read or written in a move: parameters and gradients are packed, and copied back."""


def migrate_traffic(strategy: Migrate, work: Workload, layout: WorkerLayout) -> Traffic:
    """Return the traffic: features of remote nodes, and models with their gradients where models migrate.

    Time steps are not merged: a model visits all workers, unless ``time_steps`` limits their number.
    """
    spec = _sampling_spec(strategy, work, layout)
    traffic = data_parallel_traffic(work, layout, spec)
    time_steps = spec.time_steps
    if time_steps is None:
        return traffic
    steps = work.sampling.batch_stats(spec, layout.workers).steps
    tensors, numbers = work.model.parameters
    # Models rotate: after each time step but the last of a batch, every worker passes its model to a neighbour,
    # with the gradients accumulated so far and a flag for each tensor that has one.
    onward = layout.sum_by_link(np.roll(np.eye(layout.workers, dtype=np.int64), 1, axis=1))
    moves = steps * (time_steps - 1)
    add_bytes(traffic.epoch, Kind.PARAMETERS, onward, moves * numbers * work.model.number_bytes)
    add_bytes(traffic.epoch, Kind.GRADIENTS, onward, moves * (tensors + numbers) * work.model.number_bytes)
    may_drop = time_steps < layout.workers or (strategy.merge and strategy.time_steps is None)
    if may_drop:
        # A dropped time step moves its seeds to workers that do not own them, so all need the labels of all seeds.
        workers = layout.workers
        to_all = layout.sum_by_link(round_rows(np.full((workers, workers), work.graph.train / workers)))
        add_bytes(traffic.once, Kind.FEATURES, to_all, work.graph.label_bytes)
        add_bytes(traffic.once, Kind.IDS, to_all, ID_BYTES)
    return traffic


def _sampling_spec(strategy: Migrate, work: Workload, layout: WorkerLayout) -> SamplingSpec:
    travels = strategy.move_model and layout.workers > 1
    time_steps = min(layout.workers, strategy.time_steps or layout.workers) if travels else None
    return cached_sampling_spec(strategy, work, layout)._replace(time_steps=time_steps, pregather=strategy.pregather)


def estimate_migrate(strategy: Migrate, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `migrate`: mini-batches whose models move on after each time step. Models that stay are `sampled`."""
    traffic = migrate_traffic(strategy, work, costs.layout)
    spec = _sampling_spec(strategy, work, costs.layout)
    stats = work.sampling.batch_stats(spec, costs.layout.workers)
    moves = (spec.time_steps or 1) - 1
    # Parameters and gradients are two messages.
    parts = data_parallel_parts(strategy, work, costs, traffic, stats, 2 * moves)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=(*parts, *_moving_parts(work, costs, stats, parts, moves)),
        peak_bytes=data_parallel_peak_bytes(strategy, work, costs, stats),
    )


def _moving_parts(
    work: Workload, costs: CostModel, stats: BatchStats, parts: list[EpochPart], moves: int
) -> list[EpochPart]:
    """Return what time steps cost beside the bytes of models; ``moves`` is how often models move in a batch."""
    if not moves:
        return []
    # A model moves when the worker that it comes from is done: each time step waits for its busiest worker, not only
    # the batch for its own.
    computed = sum(part.seconds for part in parts if part.name in _COMPUTED)
    # Layers have fixed costs, which they have once more in each further time step.
    small = costs.layer_overhead_seconds(len(work.model.layers)) * stats.num_full_batches
    packed = costs.memory_pass_seconds(_MOVED_PASSES * work.model.parameters[1]) * stats.steps
    waiting = EpochPart(name="waits between time steps", seconds=computed * (stats.time_step_waits - 1))
    return [waiting, EpochPart(name="models move", seconds=moves * (small + packed))]
