"""What `sampled` takes."""

from __future__ import annotations

import numpy as np

from outgrow.core.sizes import parse_bytes
from outgrow.core.types import Kind
from outgrow.engine.batches import Batches
from outgrow.planning.sizes import Sizes
from outgrow.planning.traffic import ID_BYTES, Place, Traffic, added, of_inference, of_training
from outgrow.planning.workload import Drawing, Workload
from outgrow.strategies.sampled import Sampled


def traffic_of_sampled(strategy: Sampled, work: Workload, place: Place, batches: Batches, seed: int) -> Traffic:
    """Raw features of other workers' nodes cross for each batch, where no copy is kept; gradients with each step.

    Args:
        strategy: How; its cache is one of each worker.
        work: What is trained.
        place: Where the workers are.
        batches: What batches are made of.
        seed: Seed of the run.
    """
    cached = cached_rows(strategy.cache, work.graph)
    drawing = Drawing(batches, work.model.views, seed, strategy.partition, cached, strategy.cache_by)
    return traffic_of_batches(work, place, drawing)


def traffic_of_batches(work: Workload, place: Place, drawing: Drawing) -> Traffic:
    """What all workers move that draw around seeds by themselves, and fetch features."""
    cut, drawn = work.shape.cut(drawing.partition, place.workers), work.sampling.drawn(drawing, place.workers)
    traffic = of_training(work, cut.nodes, cut.owner_bytes, place, steps=drawn.steps)
    traffic += of_inference(work, cut, place)
    asked = np.rint(drawn.asked * drawn.full).astype(np.int64)
    for moved, rows, entries in (
        (traffic.epoch, asked, drawn.entries),
        (traffic.once, drawn.kept, work.graph.row_entries),
    ):
        added(moved, Kind.FEATURES, place.sent(rows), round(sent_row_bytes(work, entries)))
        added(moved, Kind.IDS, place.sent(rows), ID_BYTES)
    return traffic


def cached_rows(size: str | float, graph: Sizes) -> int:
    """How many rows a cache holds: see `outgrow.engine.hot.Cache`."""
    if isinstance(size, str):
        return int(parse_bytes(size) / max(1.0, graph.feature_row_bytes))
    return int(size * graph.nodes)


def sent_row_bytes(work: Workload, entries: float) -> float:
    """Of a row of raw features as it is sent: in its own type or that of the model, whichever is smaller.

    Of a sparse row go its number of entries, and a column number with each.

    Args:
        work: What is trained.
        entries: How many of a row are stored.
    """
    graph = work.graph
    number = min(graph.feature_bytes, work.model.number_bytes)
    return entries * (number + 4 * graph.sparse) + 8 * graph.sparse
