"""What `split` takes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from outgrow.core.ledger import Kind
from outgrow.planning.cost_model import Pace
from outgrow.planning.epoch_parts import crossed, made_ready, of_batches
from outgrow.planning.estimate import Estimate, Part
from outgrow.planning.peak_memory import batches_bytes_of
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.traffic import ID_BYTES, Bytes, Place, Traffic, added, of_resident
from outgrow.planning.workload import Crossed, Together, Workload
from outgrow.strategies.split.strategy import SplitParallel

_TOLD_BYTES = 4
_DRAWN = 2
"""Messages in which workers tell each other, for each layer of a batch, what they have drawn."""


def traffic_of_split(strategy: SplitParallel, work: Workload, place: Place) -> Traffic:
    """Each layer sends sources to the workers of their destinations, or parts of sums where that is fewer bytes."""
    drawing = work.drawing(strategy.partition)
    cut = work.shape.cut(strategy.partition, place.workers, drawing)
    found = work.sampling.together(drawing, place.workers)
    traffic = of_resident(work, cut, place, steps=found.steps)
    looked: Bytes = Counter()
    for batch in found.crossed:
        for index, (layer, pairs) in enumerate(zip(work.model.layers, batch, strict=True)):
            raw = index == 0 and work.model.takes_raw
            looked.update(_of_layer(layer, pairs, work, place, raw=raw, partial=strategy.partial))
    scale = found.full / max(1, len(found.crossed))
    traffic.epoch.update({key: round(count * scale) for key, count in looked.items()})
    counts = sum(1 + 3 * layer.summed for layer in work.model.layers)
    one_each = np.ones((place.workers, place.workers), dtype=np.int64)
    added(traffic.epoch, Kind.IDS, place.sent(one_each), ID_BYTES * counts * found.steps)
    return traffic


def _of_layer(layer: LayerSizes, crossed: Crossed, work: Workload, place: Place, *, raw: bool, partial: bool) -> Bytes:
    """What a layer moves in a batch: for each pair of workers what is fewer bytes, told what to sum or not."""
    moved: Bytes = Counter()
    number = work.model.number_bytes
    row_bytes = layer.source_row * number
    told = _TOLD_BYTES * crossed.destinations + (_TOLD_BYTES + number * layer.weighed) * crossed.edges
    both_ways = row_bytes * (1 if raw else 2)
    parts = (crossed.destinations * both_ways + told < crossed.sources * both_ways) & (layer.summed and partial)
    rows = place.sent(np.where(parts, crossed.destinations, crossed.sources))
    added(moved, Kind.IDS, place.sent(crossed.sources), ID_BYTES)
    added(moved, Kind.TOPOLOGY, place.sent(told * parts))
    added(moved, Kind.FEATURES if raw else Kind.ACTIVATIONS, rows, row_bytes)
    if not raw:
        added(moved, Kind.GRADIENTS, rows, row_bytes)
    return moved


def _parts(work: Workload, pace: Pace, found: Together, traffic: Traffic) -> list[Part]:
    """Each worker draws for, and computes, its own nodes of each batch, and waits for rows of others in each layer."""
    parts = of_batches(work, pace, found.grown, found.full, found.steps)
    busy = sum(part.seconds for part in parts)
    slowest = int(found.grown.edges.sum(1).argmax())
    edges, rows = float(found.grown.edges[slowest].sum()), float(found.grown.rows[slowest, 0])
    parts += made_ready(work, pace, found.full * edges, found.full * rows, busy, (1, None))
    layers = work.model.layers
    exchanges = sum(_DRAWN + 2 - (work.model.takes_raw and index == 0) for index in range(len(layers)))
    return parts + crossed(pace, traffic.epoch, exchanges * found.steps, found.steps)


def estimate_of_split(strategy: SplitParallel, work: Workload, pace: Pace) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    traffic, workers = traffic_of_split(strategy, work, pace.place), pace.place.workers
    drawing = work.drawing(strategy.partition)
    cut, found = work.shape.cut(strategy.partition, workers, drawing), work.sampling.together(drawing, workers)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(_parts(work, pace, found, traffic)),
        peak_bytes=batches_bytes_of(work, pace, cut, found),
    )
