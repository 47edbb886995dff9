"""What `orchestrate` takes, without a cache on the device."""

from __future__ import annotations

from collections import Counter

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import Pace
from outgrow.planning.epoch_parts import beside, crossed, of_batches, to_device
from outgrow.planning.estimate import Estimate, Part
from outgrow.planning.peak_memory import batches_bytes_of
from outgrow.planning.traffic import Place, Traffic, add_asked, added, of_resident, sent_row_bytes, whole
from outgrow.planning.workload import Workload
from outgrow.strategies.orchestrate.strategy import Orchestrate

_USUAL_RATIO = 0.2
_AHEAD, _PER_HOT = 2, 5
"""Batches that it draws ahead besides, and how often rows of hot nodes are held."""
_CPU_SIDE_BYTES = 48 << 20
"""Of the model, the threads beside those of the device, and what waits for either where both are slow."""


def traffic_of_orchestrate(strategy: Orchestrate, work: Workload, place: Place, *, hot_ratio: float) -> Traffic:
    """To the device go raw features of cold nodes and their neighbours, and what the CPU has made of hot nodes.

    The first super-batch of an epoch has none of these. They go once for each super-batch.

    Args:
        strategy: How.
        work: What is trained.
        place: Where the workers are.
        hot_ratio: Share of all nodes that are hot.
    """
    drawing = work.drawing(strategy.partition)
    cut = work.shape.cut(strategy.partition, place.workers)
    found = work.sampling.halves(drawing, place.workers, hot_ratio, strategy.super_batch)
    traffic = of_resident(work, cut, place, steps=found.steps)
    first = min(strategy.super_batch, found.full)
    later, supers = found.full - first, (found.full - first) / strategy.super_batch
    for gathered, times in ((found.cold, first), (found.warm, later), (found.hot.gathered, supers)):
        asked = whole(gathered.asked * times)
        add_asked(traffic.epoch, asked, sent_row_bytes(work, gathered.entries), place)
    loaded = round((found.cold.rows * first + found.warm.rows * later) * work.input_row_bytes)
    added(traffic.epoch, Kind.FEATURES, {Link.HOST_TO_DEVICE: loaded})
    for kind, width in _made(strategy, work).items():
        added(traffic.epoch, kind, {Link.HOST_TO_DEVICE: round(found.hot.nodes * supers * width)})
    return traffic


def _made(strategy: Orchestrate, work: Workload) -> dict[Kind, float]:
    """Bytes of what is made of a hot node: its embedding, and its aggregate with its own input."""
    bottom, aggregates = work.model.layers[0], strategy.keeps_aggregates
    summed = (aggregates and work.model.summing) or bottom
    numbers = bottom.widths.out_features if strategy.reuse == "embedding" else 0
    numbers += summed.aggregate if aggregates else 0
    own = work.input_row_bytes if aggregates and summed.reads_target else 0.0
    return {Kind.ACTIVATIONS: numbers * work.model.number_bytes, Kind.FEATURES: own}


def parts_of_orchestrate(
    strategy: Orchestrate, work: Workload, pace: Pace, traffic: Traffic, *, hot_ratio: float
) -> list[Part]:
    """The device computes all but hot nodes of the bottom layer; the CPU computes these for the next super-batch."""
    workers = pace.place.workers
    found = work.sampling.halves(work.drawing(strategy.partition), workers, hot_ratio, strategy.super_batch)
    parts = of_batches(work, pace, found.grown, found.full, found.steps)
    busy = sum(part.seconds for part in parts)
    supers = found.full / strategy.super_batch
    hot = _hot_seconds(work, pace, found.hot.nodes / workers, found.hot.edges / workers) * supers
    rows = found.full * found.warm.rows / workers
    edges = found.full * float(found.grown.edges.sum(1).max()) + supers * found.hot.edges / workers
    drawing = pace.drawn(edges, strategy.threads)
    gathering = pace.gathered(rows + supers * found.hot.gathered.rows / workers, work.graph.row_bytes, strategy.threads)
    parts += [
        beside(pace, "hot nodes on the CPU", hot, busy),
        beside(pace, "neighbours drawn", drawing, busy),
        beside(pace, "features gathered", gathering, busy),
    ]
    parts += to_device(work, pace, rows, busy)
    between = {key: count for key, count in traffic.epoch.items() if key[0] in (Link.PEER, Link.NETWORK)}
    return parts + crossed(pace, Counter(between), 2 * found.steps, found.steps)


def _hot_seconds(work: Workload, pace: Pace, nodes: float, edges: float) -> float:
    """Of the bottom layer of hot nodes, forward only, by the CPU: what it takes from memory, and products."""
    layer, row_bytes = work.model.layers[0], work.input_row_bytes
    if pace.shared:
        return pace.products(nodes, sum(layer.weights), layer.widths.out_features) + pace.gathered(edges, row_bytes)
    return pace.gathered(edges, row_bytes)


def estimate_of_orchestrate(strategy: Orchestrate, work: Workload, pace: Pace) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    ratio = _USUAL_RATIO if strategy.hot_ratio is None else strategy.hot_ratio
    workers, traffic = pace.place.workers, traffic_of_orchestrate(strategy, work, pace.place, hot_ratio=ratio)
    found = work.sampling.halves(work.drawing(strategy.partition), workers, ratio, strategy.super_batch)
    width = sum(_made(strategy, work).values())
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(parts_of_orchestrate(strategy, work, pace, traffic, hot_ratio=ratio)),
        peak_bytes=batches_bytes_of(work, pace, work.shape.cut(strategy.partition, workers), found, more_ahead=_AHEAD)
        + _CPU_SIDE_BYTES
        + round(_PER_HOT * found.hot.nodes / workers * width),
    )
