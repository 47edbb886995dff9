"""What `migrate` takes."""

from __future__ import annotations

import numpy as np

from outgrow.core.types import Kind
from outgrow.planning.of_sampled import traffic_of_batches
from outgrow.planning.traffic import ID_BYTES, Place, Traffic, added
from outgrow.planning.workload import Workload
from outgrow.strategies.migrate import Migrate

_LABEL_BYTES = 8


def traffic_of_migrate(strategy: Migrate, work: Workload, place: Place) -> Traffic:
    """Features that seeds need beyond their homes; and models with their gradients, where they travel.

    Time steps are not merged: a model goes to all workers, unless ``time_steps`` says to how many.
    """
    travels = strategy.travel and place.workers > 1
    time_steps = min(place.workers, strategy.time_steps or place.workers) if travels else None
    drawing = work.drawing(strategy.partition)._replace(time_steps=time_steps, pregather=strategy.pregather)
    traffic = traffic_of_batches(work, place, drawing)
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
