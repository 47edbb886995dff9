"""In how many chunks `offload` trains, and what it holds then."""

from __future__ import annotations

from dataclasses import replace

from outgrow.core.ledger import Link
from outgrow.planning.cost_model import Pace
from outgrow.planning.graph_stats.chunk_waves import Cutting
from outgrow.planning.peak_memory import base_bytes
from outgrow.planning.traffic import Place
from outgrow.planning.workload import Chunked, Workload
from outgrow.strategies.offload.chunking import MOST_CHUNKS, choose_cached_waves, fewest_chunks, fits_whole
from outgrow.strategies.offload.memory import Extent, chunked_bytes
from outgrow.strategies.offload.reorder import Throughputs
from outgrow.strategies.offload.strategy import Offload

_STEP = 1
"""The number of chunks doubles until it fits: few numbers are estimated."""


def with_chunks(strategy: Offload, work: Workload, pace: Pace) -> Offload:
    """With as few chunks as fit into the memory of a worker, and no more than 1024; None if all at once does."""
    if strategy.chunks is not None or _fits_whole(strategy, work, pace):
        return strategy
    most = finest(work, pace.place)
    found = fewest_chunks(
        lambda count: held_bytes(replace(strategy, chunks=count), work, pace), most, budget=pace.memory, step=_STEP
    )
    return replace(strategy, chunks=most if found is None else found)


def finest(work: Workload, place: Place) -> int:
    """The most chunks of each worker."""
    return min(MOST_CHUNKS, max(1, work.graph.nodes // place.workers))


def held_bytes(strategy: Offload, work: Workload, pace: Pace) -> int:
    """The most that a worker holds that trains in so many chunks, at most; besides waves that it keeps."""
    base, extent = base_bytes(work, pace), _extent(strategy, work, pace)
    return chunked_bytes(base, work.model.traits, extent, work.model.number_bytes)


def kept_waves(strategy: Offload, work: Workload, pace: Pace) -> int:
    """How many waves of a worker stay in memory once they were read."""
    assert strategy.chunks is not None
    spare = pace.memory - held_bytes(strategy, work, pace)
    views = len(set(work.model.views))
    return choose_cached_waves(strategy.chunks, _extent(strategy, work, pace), views=views, spare=spare)


def _extent(strategy: Offload, work: Workload, pace: Pace) -> Extent:
    """Of the largest wave, over the views of the graph."""
    extents = [waves.extent for waves in chunks_for(strategy, work, pace).waves.values()]
    return Extent(*(max(sizes) for sizes in zip(*extents, strict=True)))


def chunks_for(strategy: Offload, work: Workload, pace: Pace) -> Chunked:
    """How the graph is cut."""
    views = tuple(sorted(set(work.model.views)))
    return work.shape.chunked(
        cutting_of(strategy, work, rates_of(pace)), views, pace.place.workers, strategy.techniques
    )


def cutting_of(strategy: Offload, work: Workload, rates: Throughputs) -> Cutting:
    """How `offload` cuts the graph whose chunks are given."""
    assert strategy.chunks is not None
    layers = work.model.layers
    row_bytes = sum(each.source_row for each in layers) * work.model.number_bytes // len(layers)
    return Cutting(strategy.partition, strategy.chunks, strategy.reorganise, row_bytes, rates)


def rates_of(pace: Pace) -> Throughputs:
    """What the machine moves in a second, by which the order of the chunks is chosen."""
    links, copy = pace.profile.links, pace.profile.device.copy
    between = links.get(Link.PEER) or links.get(Link.NETWORK)
    return Throughputs(
        host=links[Link.HOST_TO_DEVICE].bytes_per_second,
        device=copy if between is None else between.bytes_per_second,
        reuse=copy,
    )


def _fits_whole(strategy: Offload, work: Workload, pace: Pace) -> bool:
    cut = work.shape.cut(strategy.partition, pace.place.workers)
    part = int(cut.edges.argmax())
    return fits_whole(
        base_bytes(work, pace),
        work.model.traits,
        num_own=int(cut.nodes[part]),
        num_edges=int(cut.edges[part]),
        num_nodes=work.graph.nodes,
        number_bytes=work.model.number_bytes,
        budget=pace.memory,
    )
