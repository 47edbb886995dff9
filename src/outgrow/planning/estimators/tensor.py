"""The estimate of `tensor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, full_graph_parts, transfer_parts
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.hardware.corrections import WorkKind
from outgrow.planning.link_memory import whole_graph_link_bytes
from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.peak_memory import base_bytes, whole_layers_peak_bytes
from outgrow.planning.traffic import ID_BYTES, Traffic, WorkerLayout, add_bytes, training_traffic
from outgrow.planning.workload import OwnerStats, Workload
from outgrow.strategies.tensor.memory import (
    DISK_LEVELS,
    OVERLAPPING_CHUNKS,
    GraphSizes,
    MemoryNeeds,
    candidate_chunks,
    estimate_memory_needs,
    plan_memory,
)
from outgrow.strategies.tensor.strategy import TensorParallel

_FILED_EDGE_BYTES = 8
"""Bytes of an edge in a file: its source and its weight."""


class SliceExchange(NamedTuple):
    """An exchange of rows of all nodes: split into column slices, gathered from them, or sent whole to all workers.

    Attributes:
        channels: Channels of a row.
        columns: Columns of a channel, which are divided among the workers.
        to_all_workers: Whether whole rows are sent to all workers.
        has_gradient: Whether gradients are exchanged in the backward pass.
        kind: Kind of the bytes.
    """

    channels: int
    columns: int
    to_all_workers: bool = False
    has_gradient: bool = True
    kind: Kind = Kind.ACTIVATIONS


def tensor_traffic(strategy: TensorParallel, work: Workload, layout: WorkerLayout) -> Traffic:
    """Return the traffic: a split before each aggregation, a gather after it, and scores.

    A run of layers that only propagate has one split and one gather. A collective moves ``sum_i n_i (D - D_i)``
    numbers, and scores ``V K (P - 1)`` (NeutronTP, sections 3.1 and 4.1). Attention coefficients, where they are
    shared, are another ``E K (P - 1)``.
    """
    work = replace(work, model=work.model.keep_columns_apart())
    model = work.model
    bottom = work.model.layers[0]
    deal = work.partitioning.owner_stats(strategy.owned_chunks, layout.workers, self_loops=bottom.spec.self_loops)
    traffic = training_traffic(work, deal.nodes, deal.owner_bytes, layout)
    # Slices arrive in the order of owners; unless that is the order of nodes, all workers need all ids.
    if not deal.is_contiguous:
        to_all = np.broadcast_to(deal.nodes, (layout.workers, layout.workers))
        add_bytes(traffic.once, Kind.IDS, layout.sum_by_link(to_all), ID_BYTES)
    # Slices of raw features are constant, so they are exchanged once; with dropout they differ in each step.
    kept = model.source_is_features and not model.has_input_dropout
    if kept:
        split = _slice_volume(deal.nodes, bottom.spec.source, layout)
        add_bytes(traffic.once, Kind.FEATURES, split, work.graph.feature_bytes)
    # Their aggregate is constant as well: it is gathered once, and the first layer then exchanges nothing.
    if kept and bottom.has_static_aggregate and strategy.cache_first_aggregate:
        channels, columns = bottom.spec.aggregate
        if bottom.is_constant:
            channels = [layer for layer in model.layers if layer.is_constant][-1].gathered_hops
        gathered = _slice_volume(deal.nodes, (channels, columns), layout)
        add_bytes(traffic.once, Kind.FEATURES, gathered, model.number_bytes)
    for move in _pass_exchanges(work, constant=strategy.cache_first_aggregate):
        moved = _exchange_volume(move, deal.nodes, layout)
        for each in (traffic.epoch, traffic.evaluation):
            add_bytes(each, move.kind, moved, model.number_bytes)
        if move.has_gradient:
            add_bytes(traffic.epoch, Kind.GRADIENTS, moved, model.number_bytes)
    if strategy.attention == "coefficients":
        _add_coefficients(traffic, work, deal, layout)
    _add_edge_scores(traffic, work, deal, layout)
    return traffic


def _add_coefficients(traffic: Traffic, work: Workload, deal: OwnerStats, layout: WorkerLayout) -> None:
    """Add the attention coefficients of all edges, sent by the destination's worker to all others, once per run."""
    for _, same in groupby(work.model.layers, key=lambda each: each.run_index):
        layer = next(same)
        if layer.only_propagates and layer.spec.score:
            _add_edge_numbers(traffic, work, _edges_to_all(deal, layer, layout), layer.spec.score)


def _add_edge_scores(traffic: Traffic, work: Workload, deal: OwnerStats, layout: WorkerLayout) -> None:
    """Add what features of edges add to scores: ``E K (P - 1)`` numbers, sent by the destinations' workers."""
    reading = [layer for layer in work.model.layers if layer.edge_scores]
    # Unless scores arrive in the order of edges, all workers need the ids of all edges, once for each view.
    if not deal.is_contiguous:
        for layer in {layer.spec.self_loops: layer for layer in reading}.values():
            add_bytes(traffic.once, Kind.IDS, _edges_to_all(deal, layer, layout), ID_BYTES)
    for layer in reading:
        _add_edge_numbers(traffic, work, _edges_to_all(deal, layer, layout), layer.edge_scores)


def _add_edge_numbers(traffic: Traffic, work: Workload, moved: dict[Link, int], numbers: int) -> None:
    """Add numbers of each of the edges that cross, and their gradients."""
    for each in (traffic.epoch, traffic.evaluation):
        add_bytes(each, Kind.ACTIVATIONS, moved, numbers * work.model.number_bytes)
    add_bytes(traffic.epoch, Kind.GRADIENTS, moved, numbers * work.model.number_bytes)


def _edges_to_all(deal: OwnerStats, layer: LayerSizes, layout: WorkerLayout) -> dict[Link, int]:
    """Return the edges that cross where each worker tells all others about the in-edges of its nodes."""
    edges = deal.edges[int(layer.spec.self_loops)]
    return layout.sum_by_link(np.broadcast_to(edges, (len(edges), len(edges))))


def _pass_exchanges(work: Workload, *, constant: bool) -> Iterator[SliceExchange]:
    """Yield the exchanges of a forward pass."""
    for run, same in groupby(work.model.layers, key=lambda each: each.run_index):
        layers = list(same)
        layer = layers[0]
        raw = run == 0 and work.model.source_is_features
        if layer.is_constant and constant:
            continue
        yield from (
            _propagation_exchanges(work, layers, raw=raw)
            if layer.only_propagates
            else _layer_exchanges(work, layer, raw=raw, constant=constant)
        )


def _propagation_exchanges(work: Workload, layers: list[LayerSizes], *, raw: bool) -> Iterator[SliceExchange]:
    """Yield the exchanges of a run of layers that only propagate."""
    layer = layers[0]
    # Column slices need no other columns between rounds, so all rounds run between one split and one gather.
    if not raw:
        yield SliceExchange(*layer.spec.source)
    elif work.model.has_input_dropout:
        yield SliceExchange(*layer.spec.source, has_gradient=False, kind=Kind.FEATURES)
    trained = not (raw and all(each.is_parameter_free for each in layers))
    yield SliceExchange(layers[-1].gathered_hops, layer.spec.aggregate[1], has_gradient=trained)
    if layer.spec.score:
        yield SliceExchange(1, 2 * layer.spec.score, to_all_workers=True)


def _layer_exchanges(work: Workload, layer: LayerSizes, *, raw: bool, constant: bool) -> Iterator[SliceExchange]:
    widths = layer.spec
    if not layer.reads_sources:
        return
    # An aggregate of raw features without parameters needs no gradient.
    trained = not (raw and layer.is_parameter_free)
    if raw and layer.has_static_aggregate and constant:
        return
    if not raw:
        yield SliceExchange(*widths.source)
    elif work.model.has_input_dropout:
        yield SliceExchange(*widths.source, has_gradient=False, kind=Kind.FEATURES)
    if widths.target != (0, 0):
        yield SliceExchange(*widths.target)
    # The attention of an edge needs all columns of both ends, which no slice has: whole scores go to all workers.
    if widths.score:
        yield SliceExchange(1, 2 * widths.score, to_all_workers=True)
    # A sum over channels is taken before the gather.
    channels, columns = widths.aggregate
    yield SliceExchange(1 if widths.sums_channels else channels, columns, has_gradient=trained)


def _exchange_volume(exchange: SliceExchange, nodes: Matrix, layout: WorkerLayout) -> dict[Link, int]:
    if not exchange.to_all_workers:
        return _slice_volume(nodes, (exchange.channels, exchange.columns), layout)
    return layout.sum_by_link(np.broadcast_to(nodes, (len(nodes), len(nodes))) * exchange.channels * exchange.columns)


def _slice_volume(nodes: Matrix, row: tuple[int, int], layout: WorkerLayout) -> dict[Link, int]:
    """Return the numbers that cross when whole rows are split into column slices, or slices gathered into rows."""
    channels, columns = row
    # The gather is the transpose of the split, so both move the same numbers.
    ends = np.arange(layout.workers + 1) * columns // layout.workers
    return layout.sum_by_link(np.outer(np.diff(ends), nodes) * channels)


def tensor_parts(
    strategy: TensorParallel, work: Workload, costs: CostModel, traffic: Traffic, chunks: int
) -> list[EpochPart]:
    """Return the parts of an epoch: own nodes, a slice of the columns over all edges, and exchanges by chunk."""
    workers = costs.layout.workers
    layers = work.model.layers
    deal = work.partitioning.owner_stats(strategy.owned_chunks, workers, self_loops=layers[0].spec.self_loops)
    # With ``"scores"`` every worker computes the attention of all edges itself.
    attended = 1 / workers if strategy.attention == "coefficients" else 1.0
    found = full_graph_parts(work, costs, int(deal.nodes.max()), work.graph.edges, workers, attended)
    moves = sum(1 + move.has_gradient for move in _pass_exchanges(work, constant=strategy.cache_first_aggregate))
    return found + transfer_parts(costs, traffic.epoch, moves * chunks)


def estimate_tensor(strategy: TensorParallel, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `tensor`; with a memory limit or on a GPU, edges and slices are in files where they must be."""
    work = replace(work, model=work.model.keep_columns_apart())
    workers = costs.layout.workers
    traffic = tensor_traffic(strategy, work, costs.layout)
    looped = work.model.layers[0].spec.self_loops
    nodes = float(work.partitioning.owner_stats(strategy.owned_chunks, workers, self_loops=looped).nodes.max())
    edges = work.graph.edges + work.graph.nodes
    beside = _link_bytes(strategy, work, costs)
    peak = round(whole_layers_peak_bytes(work, costs, nodes, nodes, edges, workers)) + beside
    chunks, read = strategy.chunks or OVERLAPPING_CHUNKS, 0
    limited = strategy.memory is not None or not costs.shares_device
    if limited:
        levels = strategy.layout_options.possible_levels(hides_edges=False)
        needs = _needs_by_chunks(strategy, work, costs, round(nodes), beside)
        plan, fits = plan_memory(round(costs.memory), levels, needs)
        chunks = plan.chunks
        # The index of a level is the number of tables that are in files.
        read, peak = (DISK_LEVELS.index(plan.level), plan.needed) if fits else (0, max(peak, plan.needed))
    parts = tensor_parts(strategy, work, costs, traffic, chunks)
    if read:
        parts.append(_file_read_part(work, costs, read))
    known = chunks if limited else None
    return Estimate(strategy=strategy, traffic=traffic, parts=tuple(parts), peak_bytes=peak, chunks=known)


def _link_bytes(strategy: TensorParallel, work: Workload, costs: CostModel) -> int:
    stats = work.link_step_stats("", costs.layout.workers, strategy.owned_chunks)
    return round(whole_graph_link_bytes(work, costs, stats, in_slices=True))


def _needs_by_chunks(
    strategy: TensorParallel, work: Workload, costs: CostModel, num_owned: int, beside: int
) -> dict[int, MemoryNeeds]:
    """Return a worker's memory needs by number of chunks; ``beside`` is what a task needs."""
    graph = work.graph
    model = work.model
    row_bytes = 2 * graph.row_bytes if graph.sparse else work.input_row_bytes
    feature_bytes = round(num_owned * row_bytes)
    workers = costs.layout.workers
    held = GraphSizes(graph.nodes, graph.edges, num_owned, workers, feature_bytes, graph.edge_row_bytes)
    base = base_bytes(work, costs) + beside
    return {
        chunks: estimate_memory_needs(
            held,
            model.layer_plans,
            base=base,
            number_bytes=model.number_bytes,
            chunks=chunks,
            on_gpu=not costs.shares_device,
        )
        for chunks in candidate_chunks(strategy.chunks, workers)
    }


def _file_read_part(work: Workload, costs: CostModel, num_passes: int) -> EpochPart:
    """Return the part of reading edges from files in every layer, both ways, and slices if these are in files too.

    Beside a GPU the system is taken to have the files in memory, from which a copy crosses to the device.
    """
    layers = work.model.layers
    graph = work.graph
    num_bytes = 2 * len(layers) * graph.edges * _FILED_EDGE_BYTES
    if num_passes > 1:
        # Slices are written and read, forward and backward.
        columns = sum(layer.source_width for layer in layers)
        num_bytes += 4 * graph.nodes * columns * work.model.number_bytes // costs.layout.workers
    link = Link.DISK_TO_HOST if costs.shares_device else Link.HOST_TO_DEVICE
    seconds = costs.profile.links[link].transfer_seconds(num_bytes)
    return EpochPart(name="edges from files", seconds=seconds, kind=WorkKind.TRANSFER)
