"""What `sampled` takes."""

from __future__ import annotations

from outgrow.engine.features.cache import rows_within
from outgrow.planning.cost_model import Pace
from outgrow.planning.epoch_parts import crossed, made_ready, of_batches
from outgrow.planning.estimate import Estimate, Part
from outgrow.planning.peak_memory import batches_bytes_of
from outgrow.planning.traffic import Place, Traffic, add_asked, of_resident, sent_row_bytes, whole
from outgrow.planning.workload import Drawing, Drawn, Workload
from outgrow.strategies.sampled import Sampled

_FETCHES = 2
"""Messages in which a batch's features are asked for and come."""


def traffic_of_sampled(strategy: Sampled, work: Workload, place: Place) -> Traffic:
    """Raw features of other workers' nodes cross for each batch, where no copy is kept; gradients with each step.

    Its cache is one of each worker.
    """
    return traffic_of_batches(work, place, _drawing(strategy, work))


def _drawing(strategy: Sampled, work: Workload) -> Drawing:
    cached = rows_within(strategy.cache, work.graph.nodes, work.graph.row_bytes)
    return work.drawing(strategy.partition)._replace(cached=cached, cached_by=strategy.cache_by)


def traffic_of_batches(work: Workload, place: Place, drawing: Drawing) -> Traffic:
    """What all workers move that draw around seeds by themselves, and fetch features."""
    cut, drawn = work.shape.cut(drawing.partition, place.workers), work.sampling.drawn(drawing, place.workers)
    traffic, gathered = of_resident(work, cut, place, steps=drawn.steps), drawn.gathered
    asked = whole(gathered.asked * drawn.full)
    add_asked(traffic.epoch, asked, sent_row_bytes(work, gathered.entries), place)
    add_asked(traffic.once, drawn.kept, sent_row_bytes(work, work.graph.row_entries), place)
    return traffic


def parts_of_batches(
    work: Workload, pace: Pace, traffic: Traffic, drawn: Drawn, threads: int | None, moves: int = 0
) -> list[Part]:
    """Of strategies whose workers compute neighbourhoods by themselves, and make later batches ready meanwhile.

    Args:
        work: What is trained.
        pace: How fast.
        traffic: What crosses links.
        drawn: The neighbourhoods.
        threads: Threads of a worker that draw; None for half as many as compute.
        moves: How often in a batch models go to the next worker.
    """
    slowest = int(drawn.grown.edges.sum(1).argmax())
    found = of_batches(work, pace, drawn.grown, drawn.full, drawn.steps)
    busy = sum(part.seconds for part in found)
    edges, rows = float(drawn.grown.edges[slowest].sum()), float(drawn.grown.rows[slowest, 0])
    found += made_ready(work, pace, drawn.full * edges, drawn.full * rows, busy, (threads, threads))
    return found + crossed(pace, traffic.epoch, (_FETCHES + moves) * drawn.steps, drawn.steps)


def estimate_of_sampled(strategy: Sampled, work: Workload, pace: Pace) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    traffic, workers = traffic_of_sampled(strategy, work, pace.place), pace.place.workers
    drawn = work.sampling.drawn(_drawing(strategy, work), workers)
    cached = round(int(drawn.kept.sum(1).max()) * work.graph.row_bytes)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(parts_of_batches(work, pace, traffic, drawn, strategy.threads)),
        peak_bytes=batches_bytes_of(work, pace, work.shape.cut(strategy.partition, workers), drawn) + cached,
    )
