"""The estimate of `offload`: the number of chunks, the bytes that cross links, and the parts of an epoch."""

from __future__ import annotations

from dataclasses import replace

from outgrow.core.ledger import Kind, Link
from outgrow.ops.rows.row_encoding import stored_row_bytes
from outgrow.planning.cost_model import CostModel, step_seconds
from outgrow.planning.estimate import (
    EpochPart,
    Estimate,
    full_graph_parts,
    layer_parts,
    list_whole_layers,
    name_link,
    overlapped_part,
)
from outgrow.planning.estimators.full import estimate_full
from outgrow.planning.estimators.wave_traffic import PassTraffic, add_wave_topology
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec
from outgrow.planning.hardware.corrections import WorkKind
from outgrow.planning.link_memory import whole_graph_link_bytes
from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.peak_memory import base_bytes, process_bytes
from outgrow.planning.traffic import ID_BYTES, Traffic, WorkerLayout, add_bytes, training_traffic
from outgrow.planning.workload import ChunkStats, Workload
from outgrow.strategies.full import EACH_STEP, Full
from outgrow.strategies.offload.chunking import MAX_CHUNKS, choose_cached_waves, fewest_chunks, fits_whole
from outgrow.strategies.offload.memory import WaveSizes, chunked_bytes
from outgrow.strategies.offload.reorder import Bandwidths
from outgrow.strategies.offload.strategy import Offload

_OF_MOST, _OF_MOST_OF_SEVERAL = 0.83, 0.66
"""Measured share of the upper bound on memory, beside the process, that a single worker holds, and one of several;
chunks are chosen by the bound itself."""
_LAYERS_OF_WAVE = 12
"""Fixed costs of layers that a further chunk of a layer has in an epoch: it is begun, loaded and stored both ways."""
_ADDED = (Link.DEVICE_TO_HOST, Kind.GRADIENTS)
_PASSES_OF_SUM = 8
"""How often a number is read or written where rows of gradients are added to those of other chunks, in random order."""
_WIDE = 1024
"""Numbers of a row of which a scale, where it has one, hardly counts."""
_STEP = 1
"""Step of `fewest_chunks`: the number of chunks doubles until it fits, so few numbers are estimated."""


def choose_chunks(strategy: Offload, work: Workload, costs: CostModel) -> Offload:
    """Set the fewest chunks that fit into a worker's memory, at most 1024; leave None if the whole graph fits."""
    if strategy.chunks is not None or _fits_unchunked(strategy, work, costs):
        return strategy
    most = max_chunks(work, costs.layout)
    found = fewest_chunks(
        lambda count: offload_peak_bytes(replace(strategy, chunks=count), work, costs),
        most,
        budget=costs.memory,
        step=_STEP,
    )
    return replace(strategy, chunks=most if found is None else found)


def max_chunks(work: Workload, layout: WorkerLayout) -> int:
    """Return the largest number of chunks of a worker."""
    return min(MAX_CHUNKS, max(1, work.graph.nodes // layout.workers))


def offload_peak_bytes(strategy: Offload, work: Workload, costs: CostModel) -> int:
    """Return an upper bound on the bytes that a worker holds with the strategy's chunks, cached waves left out."""
    base = base_bytes(work, costs) + _link_bytes(strategy, work, costs)
    extent = _max_wave_sizes(strategy, work, costs)
    size = work.model.number_bytes
    return chunked_bytes(base, work.model.layer_plans, extent, size, strategy.storage_precision)


def count_cached_waves(strategy: Offload, work: Workload, costs: CostModel) -> int:
    """Return the number of waves that a worker keeps in memory after the first read."""
    assert strategy.chunks is not None
    spare = costs.memory - offload_peak_bytes(strategy, work, costs)
    views = len(set(work.model.views))
    return choose_cached_waves(
        strategy.chunks,
        _max_wave_sizes(strategy, work, costs),
        layer_plans=work.model.layer_plans,
        views=views,
        spare=spare,
    )


def _link_bytes(strategy: Offload, work: Workload, costs: CostModel) -> int:
    return round(whole_graph_link_bytes(work, costs, work.link_step_stats(strategy.partition, costs.layout.workers)))


def _max_wave_sizes(strategy: Offload, work: Workload, costs: CostModel) -> WaveSizes:
    """Return the largest sizes of a wave, over the views of the graph."""
    # The buffers are allocated once and serve every view, so each of their sizes is the largest by itself.
    extents = [waves.max_sizes for waves in chunk_stats_for(strategy, work, costs).waves.values()]
    return WaveSizes(*(max(sizes) for sizes in zip(*extents, strict=True)))


def chunk_stats_for(strategy: Offload, work: Workload, costs: CostModel) -> ChunkStats:
    """Return the statistics of the strategy's chunks."""
    views = tuple(sorted(set(work.model.views)))
    spec = make_chunking_spec(strategy, work, bandwidths_from_profile(costs))
    return work.partitioning.chunk_stats(spec, views, costs.layout.workers, strategy.transfer_options)


def make_chunking_spec(strategy: Offload, work: Workload, bandwidths: Bandwidths) -> ChunkingSpec:
    """Return the specification by which `offload` cuts the graph; the strategy's chunks are set."""
    assert strategy.chunks is not None
    layers = work.model.layers
    # One order of chunks serves all layers, so the mean row decides it.
    row_bytes = round(sum(each.sent_width for each in layers) * work.model.number_bytes / len(layers))
    return ChunkingSpec(strategy.partition, strategy.chunks, strategy.reorganise, row_bytes, bandwidths)


def bandwidths_from_profile(costs: CostModel) -> Bandwidths:
    """Return the bandwidths by which the order of the chunks is chosen."""
    links = costs.profile.links
    copy = costs.profile.device.copy
    between = links.get(Link.PEER) or links.get(Link.NETWORK)
    return Bandwidths(
        host=links[Link.HOST_TO_DEVICE].bytes_per_second,
        device=copy if between is None else between.bytes_per_second,
        reuse=copy,
    )


def _fits_unchunked(strategy: Offload, work: Workload, costs: CostModel) -> bool:
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    # Workers agree on one mode, so the largest part decides.
    part = int(cut.edges.argmax())
    return fits_whole(
        base_bytes(work, costs) + _link_bytes(strategy, work, costs),
        work.model.layer_plans,
        num_own=int(cut.nodes[part]),
        num_edges=int(cut.edges[part]),
        num_nodes=work.graph.nodes,
        number_bytes=work.model.number_bytes,
        edge_row_bytes=work.graph.edge_row_bytes,
        budget=costs.memory,
    )


def offload_traffic(
    strategy: Offload, work: Workload, layout: WorkerLayout, bandwidths: Bandwidths, *, cached_waves: int | None = None
) -> Traffic:
    """Return the traffic: source rows are loaded wave by wave, aggregates stay on HOST (HongTu, algorithms 1 to 3).

    Args:
        strategy: The strategy, with its chunks set.
        work: The graph and the model.
        layout: The workers.
        bandwidths: Bandwidths by which the order of the chunks is chosen.
        cached_waves: Waves that a worker keeps in memory after the first read; None for all.
    """
    assert strategy.chunks is not None
    layers = work.model.layers
    views = tuple(sorted(set(work.model.views)))
    chunked = work.partitioning.chunk_stats(
        make_chunking_spec(strategy, work, bandwidths), views, layout.workers, strategy.transfer_options
    )
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers)
    traffic = training_traffic(work, cut.nodes, cut.owner_bytes, layout, logits=False)
    add_bytes(traffic.once, Kind.TOPOLOGY, layout.broadcast_bytes(chunked.order_bytes))
    # Workers tell each other once, for each view, which rows their waves need.
    for waves in chunked.waves.values():
        add_bytes(traffic.once, Kind.IDS, layout.sum_by_link(waves.requested_ids), ID_BYTES)
    passes = PassTraffic(work, strategy, layout, chunked.waves)
    for moved, found in (
        (traffic.once, passes.setup_bytes()),
        (traffic.epoch, passes.epoch_bytes()),
        (traffic.evaluation, passes.inference_bytes()),
    ):
        moved.update(found)
    kept = strategy.chunks if cached_waves is None else cached_waves
    add_wave_topology(
        traffic,
        layers,
        chunked.waves,
        kept,
        last_passes=_count_last_passes(work),
        transposed=_list_transposed(work),
    )
    return traffic


def _list_transposed(work: Workload) -> list[bool]:
    """Return of each layer whether its backward pass reads the out-edges of waves: not where steps hide edges."""
    hides = work.links is not None and work.links.options.steps.hide > 0
    return [plan.needs_transpose and not hides for plan in work.model.layer_plans]


def _count_last_passes(work: Workload) -> int:
    """Return the passes of the last layer in a step: both ways in one, but for a loss that couples rows of chunks."""
    return 1 if work.links is None else 2


def offload_parts(
    strategy: Offload, work: Workload, costs: CostModel, traffic: Traffic, *, cached_waves: int
) -> list[EpochPart]:
    """Return the parts of an epoch: every layer chunk by chunk, while rows are loaded and written."""
    assert strategy.chunks is not None
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    layers = work.model.layers
    # Waves synchronise the workers, so the one with the most edges counts.
    slowest = int(cut.edges.argmax())
    found = full_graph_parts(work, costs, int(cut.nodes[slowest]), int(cut.edges[slowest]))
    # Only waves that are not cached prepare their edges again.
    passes = 2 * (len(layers) - 1) + _count_last_passes(work)
    reread = 1 - cached_waves / strategy.chunks
    new = costs.new_edge_seconds(passes * reread * int(cut.edges[slowest]))
    found.append(EpochPart(name="new edges", seconds=new))
    found += _recomputation_parts(work, costs, float(cut.nodes[slowest]), float(cut.edges[slowest]))
    # The full-graph estimate includes the fixed cost of one chunk of each layer.
    small = costs.layer_overhead_seconds(_LAYERS_OF_WAVE * len(layers) * (strategy.chunks - 1))
    found.append(EpochPart(name="small steps of chunks", seconds=small))
    added = sum(count for (link, kind), count in traffic.epoch.items() if (link, kind) == _ADDED)
    row_bytes = stored_row_bytes(_WIDE, work.model.number_bytes, strategy.storage_precision)
    numbers = _PASSES_OF_SUM * added * _WIDE / row_bytes / costs.layout.workers
    found.append(EpochPart(name="gradients added in files", seconds=costs.memory_pass_seconds(numbers)))
    busy = sum(part.seconds for part in found)
    waves = strategy.chunks * passes
    # Each wave exchanges rows before and after it is computed, and each of its copies has a latency of its own.
    for link, seconds in costs.transfer_seconds(traffic.epoch, 2 * waves).items():
        loaded = seconds + waves * costs.profile.links[link].message_seconds
        name = name_link(link)
        found.append(
            overlapped_part(costs, name, loaded, busy, WorkKind.TRANSFER)
            if strategy.overlap
            else EpochPart(name=name, seconds=loaded, kind=WorkKind.TRANSFER)
        )
    return found


def _recomputation_parts(work: Workload, costs: CostModel, nodes: float, edges: float) -> list[EpochPart]:
    """Return the parts of what the backward pass computes again: all layers but the last, from kept aggregates."""
    layers = list_whole_layers(work, nodes, edges)
    # Products with sparse features are computed again, as those of layers whose gradients read them.
    sizes = tuple(
        each if not each.skips_source_products or (index == 0 and work.graph.sparse) else _without_source_products(each)
        for index, each in enumerate(work.model.layers)
    )
    done = replace(work, model=replace(work.model, layers=sizes))
    again = step_seconds(done, costs, layers, cached_aggregate=True, backward=False)[:-1]
    kept = [layer.is_parameter_free for layer in work.model.layers]
    # Aggregates without parameters are kept on HOST; others are summed again.
    again = [each._replace(sums=0.0) if is_kept else each for each, is_kept in zip(again, kept, strict=False)]
    return [replace(part, name=f"{part.name}, again") for part in layer_parts(again)] if again else []


def _without_source_products(layer: LayerSizes) -> LayerSizes:
    return replace(layer, weights=(0, layer.weights[1]))


def estimate_offload(strategy: Offload, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `offload`: as `full` where the whole graph fits, else in as few chunks as fit."""
    chosen = choose_chunks(strategy, work, costs)
    if chosen.chunks is None:
        whole = estimate_full(Full(partition=strategy.partition, first_aggregate=EACH_STEP), work, costs)
        return replace(whole, strategy=strategy, chunks=0)
    kept = count_cached_waves(chosen, work, costs)
    traffic = offload_traffic(chosen, work, costs.layout, bandwidths_from_profile(costs), cached_waves=kept)
    share = _OF_MOST if costs.layout.workers == 1 else _OF_MOST_OF_SEVERAL
    process = process_bytes(costs)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(offload_parts(chosen, work, costs, traffic, cached_waves=kept)),
        peak_bytes=process + round(share * (offload_peak_bytes(chosen, work, costs) - process)),
        chunks=chosen.chunks,
    )
