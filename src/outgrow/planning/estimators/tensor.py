"""What `tensor` takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import Pace
from outgrow.planning.epoch_parts import crossed, of_whole_layers
from outgrow.planning.estimate import Estimate, Part
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.peak_memory import base_bytes, fixed_bytes, training_bytes
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.traffic import ID_BYTES, Place, Traffic, added, of_training
from outgrow.planning.workload import Workload
from outgrow.strategies.tensor.memory import Held, needs_of
from outgrow.strategies.tensor.strategy import TensorParallel, chunks_of

_FILED_EDGE_BYTES = 8


class Move(NamedTuple):
    """Rows of all nodes that are split into slices or gathered from them; or that go to all workers whole.

    Attributes:
        channels: Channels.
        columns: Columns, which are dealt out to the workers.
        whole: Whether they go to all workers.
        trained: Whether a gradient comes back.
        kind: What they are.
    """

    channels: int
    columns: int
    whole: bool = False
    trained: bool = True
    kind: Kind = Kind.ACTIVATIONS


def traffic_of_tensor(strategy: TensorParallel, work: Workload, place: Place) -> Traffic:
    """A split before each aggregation and a gather behind it, once for layers that only propagate, and scores.

    A collective moves ``sum_i n_i (D - D_i)`` numbers, and scores ``V K (P - 1)``: see NeutronTP, sections 3.1 and 4.1.
    Coefficients of attention, where they are told, are ``E K (P - 1)`` besides.
    """
    model, bottom = work.model, work.model.layers[0]
    deal = work.shape.dealt(strategy.chunks, place.workers, self_loops=bottom.widths.self_loops)
    traffic = of_training(work, deal.nodes, deal.owner_bytes, place)
    if not deal.in_order:
        to_all = np.broadcast_to(deal.nodes, (place.workers, place.workers))
        added(traffic.once, Kind.IDS, place.sent(to_all), ID_BYTES)
    kept = model.takes_raw and not model.drops_raw
    if kept:
        split = _sliced(deal.nodes, bottom.widths.source, place)
        added(traffic.once, Kind.FEATURES, split, work.graph.feature_bytes)
    if kept and bottom.constant and strategy.constant:
        gathered = _sliced(deal.nodes, bottom.widths.aggregate, place)
        added(traffic.once, Kind.FEATURES, gathered, model.number_bytes)
    for move in _moves(work, constant=strategy.constant):
        moved = _moved(move, deal.nodes, place)
        for each in (traffic.epoch, traffic.evaluation):
            added(each, move.kind, moved, model.number_bytes)
        if move.trained:
            added(traffic.epoch, Kind.GRADIENTS, moved, model.number_bytes)
    if strategy.attention == "coefficients":
        _add_coefficients(traffic, work, place)
    return traffic


def _add_coefficients(traffic: Traffic, work: Workload, place: Place) -> None:
    """The weights of all edges, each from the worker of its destination to all others, once for a run of layers."""
    for _, same in groupby(work.model.layers, key=lambda each: each.run):
        layer = next(same)
        if not (layer.propagates and layer.widths.score):
            continue
        edges = work.graph.edges + layer.widths.self_loops * work.graph.nodes
        of_each = np.full((place.workers, place.workers), edges * layer.widths.score // place.workers)
        moved = place.sent(of_each)
        for each in (traffic.epoch, traffic.evaluation):
            added(each, Kind.ACTIVATIONS, moved, work.model.number_bytes)
        added(traffic.epoch, Kind.GRADIENTS, moved, work.model.number_bytes)


def _moves(work: Workload, *, constant: bool) -> Iterator[Move]:
    """What moves in each pass."""
    for run, same in groupby(work.model.layers, key=lambda each: each.run):
        layer = next(same)
        raw = run == 0 and work.model.takes_raw
        yield from _of_run(layer) if layer.propagates else _of_layer(work, layer, raw=raw, constant=constant)


def _of_run(layer: LayerSizes) -> Iterator[Move]:
    """Rounds of propagation, one after the other."""
    yield Move(*layer.widths.source)
    yield Move(*layer.widths.aggregate)
    if layer.widths.score:
        yield Move(1, 2 * layer.widths.score, whole=True)


def _of_layer(work: Workload, layer: LayerSizes, *, raw: bool, constant: bool) -> Iterator[Move]:
    widths, trained = layer.widths, not (raw and layer.fixed)
    if raw and layer.constant and constant:
        return
    if not raw:
        yield Move(*widths.source)
    elif work.model.drops_raw:
        yield Move(*widths.source, trained=False, kind=Kind.FEATURES)
    if widths.target != (0, 0):
        yield Move(*widths.target)
    if widths.score:
        yield Move(1, 2 * widths.score, whole=True)
    yield Move(*widths.aggregate, trained=trained)


def _moved(move: Move, nodes: Matrix, place: Place) -> dict[Link, int]:
    if not move.whole:
        return _sliced(nodes, (move.channels, move.columns), place)
    return place.sent(np.broadcast_to(nodes, (len(nodes), len(nodes))) * move.channels * move.columns)


def _sliced(nodes: Matrix, row: tuple[int, int], place: Place) -> dict[Link, int]:
    """Numbers of rows that are whole at their nodes' workers, of which each worker gets its columns; or back."""
    channels, columns = row
    ends = np.arange(place.workers + 1) * columns // place.workers
    return place.sent(np.outer(np.diff(ends), nodes) * channels)


def parts_of_tensor(strategy: TensorParallel, work: Workload, pace: Pace, traffic: Traffic) -> list[Part]:
    """Every worker computes its own nodes, and sums its columns over all edges; rows travel chunk by chunk."""
    workers, layers = pace.place.workers, work.model.layers
    deal = work.shape.dealt(strategy.chunks, workers, self_loops=layers[0].widths.self_loops)
    attended = 1 / workers if strategy.attention == "coefficients" else 1.0
    found = of_whole_layers(work, pace, int(deal.nodes.max()), work.graph.edges, workers, attended)
    moves = sum(1 + move.trained for move in _moves(work, constant=strategy.constant))
    return found + crossed(pace, traffic.epoch, moves * strategy.chunks)


def estimate_of_tensor(strategy: TensorParallel, work: Workload, pace: Pace) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    workers, traffic = pace.place.workers, traffic_of_tensor(strategy, work, pace.place)
    looped = work.model.layers[0].widths.self_loops
    nodes = float(work.shape.dealt(strategy.chunks, workers, self_loops=looped).nodes.max())
    edges = work.graph.edges + work.graph.nodes
    parts = parts_of_tensor(strategy, work, pace, traffic)
    peak = fixed_bytes(pace) + round(training_bytes(work, nodes, nodes, edges, workers))
    if strategy.memory is not None:
        needs = _needs(strategy, work, pace, round(nodes))
        fitting = [(passes, needed) for passes, needed in enumerate(needs) if needed <= pace.memory]
        read, peak = fitting[0] if fitting else (0, max(peak, needs[-1]))
        if read:
            parts.append(_from_files(work, pace, read))
    return Estimate(strategy=strategy, traffic=traffic, parts=tuple(parts), peak_bytes=peak)


def _needs(strategy: TensorParallel, work: Workload, pace: Pace, own: int) -> tuple[int, ...]:
    """What a worker that keeps to a limit asks for: with all in memory, with edges in files, with slices in files."""
    graph, model = work.graph, work.model
    row_bytes = 2 * graph.row_bytes if graph.sparse else model.row_bytes
    held = Held(graph.nodes, graph.edges, own, pace.place.workers, round(own * row_bytes))
    chunks = max(strategy.chunks, chunks_of(graph.edges))
    needs = needs_of(held, model.traits, base=base_bytes(work, pace), number_bytes=model.number_bytes, chunks=chunks)
    return tuple(needs) if all(layer.fixed for layer in model.layers) else tuple(needs)[:1]


def _from_files(work: Workload, pace: Pace, read: int) -> Part:
    """Edges of every layer, both ways, and slices where these are in files too."""
    layers, graph = work.model.layers, work.graph
    num_bytes = 2 * len(layers) * graph.edges * _FILED_EDGE_BYTES
    if read > 1:
        columns = sum(layer.source_row for layer in layers)
        num_bytes += 4 * graph.nodes * columns * work.model.number_bytes // pace.place.workers
    return Part(name="edges from files", seconds=pace.profile.links[Link.DISK_TO_HOST].seconds(num_bytes))
