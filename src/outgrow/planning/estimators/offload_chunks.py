"""In how many chunks `offload` trains, and what it holds then."""

from __future__ import annotations

from dataclasses import replace

from outgrow.core.ledger import Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec
from outgrow.planning.peak_memory import base_bytes
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import ChunkStats, Workload
from outgrow.strategies.offload.chunking import MAX_CHUNKS, choose_cached_waves, fewest_chunks, fits_whole
from outgrow.strategies.offload.memory import WaveSizes, chunked_bytes
from outgrow.strategies.offload.reorder import Bandwidths
from outgrow.strategies.offload.strategy import Offload

_STEP = 1
"""The number of chunks doubles until it fits: few numbers are estimated."""


def choose_chunks(strategy: Offload, work: Workload, costs: CostModel) -> Offload:
    """With as few chunks as fit into the memory of a worker, and no more than 1024; None if all at once does."""
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
    """The most chunks of each worker."""
    return min(MAX_CHUNKS, max(1, work.graph.nodes // layout.workers))


def offload_peak_bytes(strategy: Offload, work: Workload, costs: CostModel) -> int:
    """The most that a worker holds that trains in so many chunks, at most; besides waves that it keeps."""
    base, extent = base_bytes(work, costs), _max_wave_sizes(strategy, work, costs)
    return chunked_bytes(base, work.model.layer_plans, extent, work.model.number_bytes)


def count_cached_waves(strategy: Offload, work: Workload, costs: CostModel) -> int:
    """How many waves of a worker stay in memory once they were read."""
    assert strategy.chunks is not None
    spare = costs.memory - offload_peak_bytes(strategy, work, costs)
    views = len(set(work.model.views))
    return choose_cached_waves(strategy.chunks, _max_wave_sizes(strategy, work, costs), views=views, spare=spare)


def _max_wave_sizes(strategy: Offload, work: Workload, costs: CostModel) -> WaveSizes:
    """Of the largest wave, over the views of the graph."""
    extents = [waves.max_sizes for waves in chunk_stats_for(strategy, work, costs).waves.values()]
    return WaveSizes(*(max(sizes) for sizes in zip(*extents, strict=True)))


def chunk_stats_for(strategy: Offload, work: Workload, costs: CostModel) -> ChunkStats:
    """How the graph is cut."""
    views = tuple(sorted(set(work.model.views)))
    return work.partitioning.chunk_stats(
        make_chunking_spec(strategy, work, bandwidths_from_profile(costs)),
        views,
        costs.layout.workers,
        strategy.transfer_options,
    )


def make_chunking_spec(strategy: Offload, work: Workload, bandwidths: Bandwidths) -> ChunkingSpec:
    """How `offload` cuts the graph whose chunks are given."""
    assert strategy.chunks is not None
    layers = work.model.layers
    row_bytes = sum(each.source_width for each in layers) * work.model.number_bytes // len(layers)
    return ChunkingSpec(strategy.partition, strategy.chunks, strategy.reorganise, row_bytes, bandwidths)


def bandwidths_from_profile(costs: CostModel) -> Bandwidths:
    """What the machine moves in a second, by which the order of the chunks is chosen."""
    links, copy = costs.profile.links, costs.profile.device.copy
    between = links.get(Link.PEER) or links.get(Link.NETWORK)
    return Bandwidths(
        host=links[Link.HOST_TO_DEVICE].bytes_per_second,
        device=copy if between is None else between.bytes_per_second,
        reuse=copy,
    )


def _fits_unchunked(strategy: Offload, work: Workload, costs: CostModel) -> bool:
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    part = int(cut.edges.argmax())
    return fits_whole(
        base_bytes(work, costs),
        work.model.layer_plans,
        num_own=int(cut.nodes[part]),
        num_edges=int(cut.edges[part]),
        num_nodes=work.graph.nodes,
        number_bytes=work.model.number_bytes,
        budget=costs.memory,
    )
