"""What `orchestrate` takes, without a cache on the device."""

from __future__ import annotations

from outgrow.core.types import Kind, Link
from outgrow.planning.traffic import Place, Traffic, add_asked, added, of_resident, sent_row_bytes, whole
from outgrow.planning.workload import Workload
from outgrow.strategies.orchestrate import Orchestrate


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
    for gathered, times in ((found.cold, first), (found.warm, later), (found.hot, supers)):
        asked = whole(gathered.asked * times)
        add_asked(traffic.epoch, asked, sent_row_bytes(work, gathered.entries), place)
    loaded = round((found.cold.rows * first + found.warm.rows * later) * _row_bytes(work))
    added(traffic.epoch, Kind.FEATURES, {Link.HOST_TO_DEVICE: loaded})
    for kind, width in _made(strategy, work).items():
        added(traffic.epoch, kind, {Link.HOST_TO_DEVICE: round(found.hot_nodes * supers * width)})
    return traffic


def _row_bytes(work: Workload) -> float:
    """Of a row of features on its way to the device."""
    return work.graph.row_bytes if work.graph.sparse else work.model.row_bytes


def _made(strategy: Orchestrate, work: Workload) -> dict[Kind, float]:
    """Bytes of what is made of a hot node: its embedding, and its aggregate with its own input."""
    bottom, aggregates = work.model.layers[0], strategy.keeps_aggregates
    summed = (aggregates and work.model.summing) or bottom
    numbers = bottom.widths.out_features if strategy.reuse == "embedding" else 0
    numbers += summed.aggregate if aggregates else 0
    own = _row_bytes(work) if aggregates and summed.reads_target else 0.0
    return {Kind.ACTIVATIONS: numbers * work.model.number_bytes, Kind.FEATURES: own}
