"""What `sampled` takes."""

from __future__ import annotations

from outgrow.engine.hot import rows_within
from outgrow.planning.traffic import Place, Traffic, add_asked, of_resident, sent_row_bytes, whole
from outgrow.planning.workload import Drawing, Workload
from outgrow.strategies.sampled import Sampled


def traffic_of_sampled(strategy: Sampled, work: Workload, place: Place) -> Traffic:
    """Raw features of other workers' nodes cross for each batch, where no copy is kept; gradients with each step.

    Its cache is one of each worker.
    """
    graph = work.graph
    cached = rows_within(strategy.cache, graph.nodes, graph.row_bytes)
    drawing = work.drawing(strategy.partition)._replace(cached=cached, cached_by=strategy.cache_by)
    return traffic_of_batches(work, place, drawing)


def traffic_of_batches(work: Workload, place: Place, drawing: Drawing) -> Traffic:
    """What all workers move that draw around seeds by themselves, and fetch features."""
    cut, drawn = work.shape.cut(drawing.partition, place.workers), work.sampling.drawn(drawing, place.workers)
    traffic, gathered = of_resident(work, cut, place, steps=drawn.steps), drawn.gathered
    asked = whole(gathered.asked * drawn.full)
    add_asked(traffic.epoch, asked, sent_row_bytes(work, gathered.entries), place)
    add_asked(traffic.once, drawn.kept, sent_row_bytes(work, work.graph.row_entries), place)
    return traffic
