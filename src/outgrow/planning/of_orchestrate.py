"""What `orchestrate` takes, without a cache on the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.core.types import Kind, Link
from outgrow.engine.batches import Batches
from outgrow.planning.of_sampled import sent_row_bytes
from outgrow.planning.traffic import ID_BYTES, Place, Traffic, added, of_inference, of_training
from outgrow.planning.workload import Drawing, Workload
from outgrow.strategies.orchestrate import Orchestrate


def traffic_of_orchestrate(
    strategy: Orchestrate, work: Workload, place: Place, batches: Batches, seed: int, *, hot_ratio: float
) -> Traffic:
    """To the device go raw features of cold nodes and their neighbours, and what the CPU has made of hot nodes.

    The first super-batch of an epoch has none of these. They go once for each super-batch.

    Args:
        strategy: How.
        work: What is trained.
        place: Where the workers are.
        batches: What batches are made of.
        seed: Seed of the run.
        hot_ratio: Share of all nodes that are hot.
    """
    drawing = Drawing(batches, work.model.views, seed, strategy.partition)
    cut = work.shape.cut(strategy.partition, place.workers)
    found = work.sampling.halves(drawing, place.workers, hot_ratio, strategy.super_batch)
    traffic = of_training(work, cut.nodes, cut.owner_bytes, place, steps=found.steps)
    traffic += of_inference(work, cut, place)
    first = min(strategy.super_batch, found.full)
    later, supers = found.full - first, (found.full - first) / strategy.super_batch
    for gathered, times, crosses in ((found.cold, first, True), (found.warm, later, True), (found.hot, supers, False)):
        asked = place.sent(_whole(gathered.asked * times))
        added(traffic.epoch, Kind.FEATURES, asked, round(sent_row_bytes(work, gathered.entries)))
        added(traffic.epoch, Kind.IDS, asked, ID_BYTES)
        if crosses:
            loaded = round(gathered.rows * times * _row_bytes(work))
            added(traffic.epoch, Kind.FEATURES, {Link.HOST_TO_DEVICE: loaded})
    for kind, width in _made(strategy, work).items():
        added(traffic.epoch, kind, {Link.HOST_TO_DEVICE: round(found.hot_nodes * supers * width)})
    return traffic


def _whole(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(rows).astype(np.int64)


def _row_bytes(work: Workload) -> float:
    """Of a row of features on its way to the device."""
    return work.graph.feature_row_bytes + 8 if work.graph.sparse else work.model.row_bytes


def _made(strategy: Orchestrate, work: Workload) -> dict[Kind, float]:
    """Bytes of what is made of a hot node: its embedding, and its aggregate with its own input."""
    bottom, number = work.model.layers[0].widths, work.model.number_bytes
    aggregates = strategy.reuse == "aggregate" or strategy.hot_gradient
    summed = (aggregates and work.model.summing) or bottom
    numbers = bottom.out_features if strategy.reuse == "embedding" else 0
    numbers += summed.aggregate[0] * summed.aggregate[1] if aggregates else 0
    own = _row_bytes(work) if aggregates and summed.reads_target else 0.0
    return {Kind.ACTIVATIONS: numbers * number, Kind.FEATURES: own}
