"""What `tensor` takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, full_graph_parts, transfer_parts
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.peak_memory import base_bytes, process_bytes, training_bytes
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.traffic import ID_BYTES, Traffic, WorkerLayout, add_bytes, training_traffic
from outgrow.planning.workload import Workload
from outgrow.strategies.tensor.memory import GraphSizes, estimate_memory_needs
from outgrow.strategies.tensor.strategy import TensorParallel, count_edge_chunks

_FILED_EDGE_BYTES = 8


class SliceExchange(NamedTuple):
    """Rows of all nodes that are split into slices or gathered from them; or that go to all workers whole.

    Attributes:
        channels: Channels.
        columns: Columns, which are dealt out to the workers.
        to_all_workers: Whether they go to all workers.
        has_gradient: Whether a gradient comes back.
        kind: What they are.
    """

    channels: int
    columns: int
    to_all_workers: bool = False
    has_gradient: bool = True
    kind: Kind = Kind.ACTIVATIONS


def tensor_traffic(strategy: TensorParallel, work: Workload, layout: WorkerLayout) -> Traffic:
    """A split before each aggregation and a gather behind it, once for layers that only propagate, and scores.

    A collective moves ``sum_i n_i (D - D_i)`` numbers, and scores ``V K (P - 1)``: see NeutronTP, sections 3.1 and 4.1.
    Coefficients of attention, where they are told, are ``E K (P - 1)`` besides.
    """
    model, bottom = work.model, work.model.layers[0]
    deal = work.partitioning.owner_stats(strategy.chunks, layout.workers, self_loops=bottom.spec.self_loops)
    traffic = training_traffic(work, deal.nodes, deal.owner_bytes, layout)
    if not deal.is_contiguous:
        to_all = np.broadcast_to(deal.nodes, (layout.workers, layout.workers))
        add_bytes(traffic.once, Kind.IDS, layout.sum_by_link(to_all), ID_BYTES)
    kept = model.source_is_features and not model.has_input_dropout
    if kept:
        split = _slice_volume(deal.nodes, bottom.spec.source, layout)
        add_bytes(traffic.once, Kind.FEATURES, split, work.graph.feature_bytes)
    if kept and bottom.has_static_aggregate and strategy.cache_first_aggregate:
        gathered = _slice_volume(deal.nodes, bottom.spec.aggregate, layout)
        add_bytes(traffic.once, Kind.FEATURES, gathered, model.number_bytes)
    for move in _pass_exchanges(work, constant=strategy.cache_first_aggregate):
        moved = _exchange_volume(move, deal.nodes, layout)
        for each in (traffic.epoch, traffic.evaluation):
            add_bytes(each, move.kind, moved, model.number_bytes)
        if move.has_gradient:
            add_bytes(traffic.epoch, Kind.GRADIENTS, moved, model.number_bytes)
    if strategy.attention == "coefficients":
        _add_coefficients(traffic, work, layout)
    return traffic


def _add_coefficients(traffic: Traffic, work: Workload, layout: WorkerLayout) -> None:
    """The weights of all edges, each from the worker of its destination to all others, once for a run of layers."""
    for _, same in groupby(work.model.layers, key=lambda each: each.run_index):
        layer = next(same)
        if not (layer.only_propagates and layer.spec.score):
            continue
        edges = work.graph.edges + layer.spec.self_loops * work.graph.nodes
        of_each = np.full((layout.workers, layout.workers), edges * layer.spec.score // layout.workers)
        moved = layout.sum_by_link(of_each)
        for each in (traffic.epoch, traffic.evaluation):
            add_bytes(each, Kind.ACTIVATIONS, moved, work.model.number_bytes)
        add_bytes(traffic.epoch, Kind.GRADIENTS, moved, work.model.number_bytes)


def _pass_exchanges(work: Workload, *, constant: bool) -> Iterator[SliceExchange]:
    """What moves in each pass."""
    for run, same in groupby(work.model.layers, key=lambda each: each.run_index):
        layer = next(same)
        raw = run == 0 and work.model.source_is_features
        yield from (
            _propagation_exchanges(layer)
            if layer.only_propagates
            else _layer_exchanges(work, layer, raw=raw, constant=constant)
        )


def _propagation_exchanges(layer: LayerSizes) -> Iterator[SliceExchange]:
    """Rounds of propagation, one after the other."""
    yield SliceExchange(*layer.spec.source)
    yield SliceExchange(*layer.spec.aggregate)
    if layer.spec.score:
        yield SliceExchange(1, 2 * layer.spec.score, to_all_workers=True)


def _layer_exchanges(work: Workload, layer: LayerSizes, *, raw: bool, constant: bool) -> Iterator[SliceExchange]:
    widths, trained = layer.spec, not (raw and layer.is_parameter_free)
    if raw and layer.has_static_aggregate and constant:
        return
    if not raw:
        yield SliceExchange(*widths.source)
    elif work.model.has_input_dropout:
        yield SliceExchange(*widths.source, has_gradient=False, kind=Kind.FEATURES)
    if widths.target != (0, 0):
        yield SliceExchange(*widths.target)
    if widths.score:
        yield SliceExchange(1, 2 * widths.score, to_all_workers=True)
    yield SliceExchange(*widths.aggregate, has_gradient=trained)


def _exchange_volume(exchange: SliceExchange, nodes: Matrix, layout: WorkerLayout) -> dict[Link, int]:
    if not exchange.to_all_workers:
        return _slice_volume(nodes, (exchange.channels, exchange.columns), layout)
    return layout.sum_by_link(np.broadcast_to(nodes, (len(nodes), len(nodes))) * exchange.channels * exchange.columns)


def _slice_volume(nodes: Matrix, row: tuple[int, int], layout: WorkerLayout) -> dict[Link, int]:
    """Numbers of rows that are whole at their nodes' workers, of which each worker gets its columns; or back."""
    channels, columns = row
    ends = np.arange(layout.workers + 1) * columns // layout.workers
    return layout.sum_by_link(np.outer(np.diff(ends), nodes) * channels)


def tensor_parts(strategy: TensorParallel, work: Workload, costs: CostModel, traffic: Traffic) -> list[EpochPart]:
    """Every worker computes its own nodes, and sums its columns over all edges; rows travel chunk by chunk."""
    workers, layers = costs.layout.workers, work.model.layers
    deal = work.partitioning.owner_stats(strategy.chunks, workers, self_loops=layers[0].spec.self_loops)
    attended = 1 / workers if strategy.attention == "coefficients" else 1.0
    found = full_graph_parts(work, costs, int(deal.nodes.max()), work.graph.edges, workers, attended)
    moves = sum(1 + move.has_gradient for move in _pass_exchanges(work, constant=strategy.cache_first_aggregate))
    return found + transfer_parts(costs, traffic.epoch, moves * strategy.chunks)


def estimate_tensor(strategy: TensorParallel, work: Workload, costs: CostModel) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    workers, traffic = costs.layout.workers, tensor_traffic(strategy, work, costs.layout)
    looped = work.model.layers[0].spec.self_loops
    nodes = float(work.partitioning.owner_stats(strategy.chunks, workers, self_loops=looped).nodes.max())
    edges = work.graph.edges + work.graph.nodes
    parts = tensor_parts(strategy, work, costs, traffic)
    peak = process_bytes(costs) + round(training_bytes(work, nodes, nodes, edges, workers))
    if strategy.memory is not None:
        needs = _memory_needs(strategy, work, costs, round(nodes))
        fitting = [(passes, needed) for passes, needed in enumerate(needs) if needed <= costs.memory]
        read, peak = fitting[0] if fitting else (0, max(peak, needs[-1]))
        if read:
            parts.append(_file_read_part(work, costs, read))
    return Estimate(strategy=strategy, traffic=traffic, parts=tuple(parts), peak_bytes=peak)


def _memory_needs(strategy: TensorParallel, work: Workload, costs: CostModel, num_owned: int) -> tuple[int, ...]:
    """What a worker that keeps to a limit asks for: with all in memory, with edges in files, with slices in files."""
    graph, model = work.graph, work.model
    row_bytes = 2 * graph.row_bytes if graph.sparse else model.row_bytes
    held = GraphSizes(graph.nodes, graph.edges, num_owned, costs.layout.workers, round(num_owned * row_bytes))
    chunks = max(strategy.chunks, count_edge_chunks(graph.edges))
    needs = estimate_memory_needs(
        held, model.layer_plans, base=base_bytes(work, costs), number_bytes=model.number_bytes, chunks=chunks
    )
    return tuple(needs) if all(layer.is_parameter_free for layer in model.layers) else tuple(needs)[:1]


def _file_read_part(work: Workload, costs: CostModel, num_passes: int) -> EpochPart:
    """Edges of every layer, both ways, and slices where these are in files too."""
    layers, graph = work.model.layers, work.graph
    num_bytes = 2 * len(layers) * graph.edges * _FILED_EDGE_BYTES
    if num_passes > 1:
        columns = sum(layer.source_width for layer in layers)
        num_bytes += 4 * graph.nodes * columns * work.model.number_bytes // costs.layout.workers
    return EpochPart(
        name="edges from files", seconds=costs.profile.links[Link.DISK_TO_HOST].transfer_seconds(num_bytes)
    )
