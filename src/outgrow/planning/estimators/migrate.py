"""What `migrate` takes."""

from __future__ import annotations

import numpy as np

from outgrow.core.ledger import Kind
from outgrow.planning.cost_model import Pace
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.sampled import parts_of_batches, traffic_of_batches
from outgrow.planning.peak_memory import batches_bytes_of
from outgrow.planning.traffic import ID_BYTES, Place, Traffic, added
from outgrow.planning.workload import Drawing, Workload
from outgrow.strategies.migrate.strategy import Migrate

_LABEL_BYTES = 8


def traffic_of_migrate(strategy: Migrate, work: Workload, place: Place) -> Traffic:
    """Features that seeds need beyond their homes; and models with their gradients, where they travel.

    Time steps are not merged: a model goes to all workers, unless ``time_steps`` says to how many.
    """
    drawing = _drawing(strategy, work, place)
    traffic, time_steps = traffic_of_batches(work, place, drawing), drawing.time_steps
    if time_steps is None:
        return traffic
    steps, (tensors, numbers) = work.sampling.drawn(drawing, place.workers).steps, work.model.parameters
    onward = place.sent(np.roll(np.eye(place.workers, dtype=np.int64), 1, axis=1))
    moves = steps * (time_steps - 1)
    added(traffic.epoch, Kind.PARAMETERS, onward, moves * numbers * work.model.number_bytes)
    added(traffic.epoch, Kind.GRADIENTS, onward, moves * (tensors + numbers) * work.model.number_bytes)
    may_drop = time_steps < place.workers or (strategy.merge and strategy.time_steps is None)
    if may_drop:  # all workers are told the labels of all seeds
        to_all = place.shared(work.graph.train)
        added(traffic.once, Kind.FEATURES, to_all, _LABEL_BYTES)
        added(traffic.once, Kind.IDS, to_all, ID_BYTES)
    return traffic


def _drawing(strategy: Migrate, work: Workload, place: Place) -> Drawing:
    travels = strategy.travel and place.workers > 1
    time_steps = min(place.workers, strategy.time_steps or place.workers) if travels else None
    return work.drawing(strategy.partition)._replace(time_steps=time_steps, pregather=strategy.pregather)


def estimate_of_migrate(strategy: Migrate, work: Workload, pace: Pace) -> Estimate:
    """See `outgrow.planning.estimators.registry`. Models that travel, and gradients, go on after each time step."""
    traffic, workers = traffic_of_migrate(strategy, work, pace.place), pace.place.workers
    drawing = _drawing(strategy, work, pace.place)
    drawn, moves = work.sampling.drawn(drawing, workers), 2 * ((drawing.time_steps or 1) - 1)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(parts_of_batches(work, pace, traffic, drawn, strategy.threads, moves)),
        peak_bytes=batches_bytes_of(work, pace, work.shape.cut(strategy.partition, workers), drawn),
    )
