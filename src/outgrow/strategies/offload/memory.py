"""How much memory training takes, in chunks and as a whole, and how few chunks fit into a budget.

Estimates are upper bounds, made of what a worker is known to hold at the same time; tests hold them against what runs
took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.layer_plan import Traits, Way
from outgrow.engine.memory_model import FIXED_BYTES, INDEX_BYTES, numbers_per_edge, target_width
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.strategies.offload.wave import ARRIVES
from outgrow.strategies.offload.wave_plan import Needs, Techniques, turnover

_HELD_BYTES = 3 * 21
"""Of a row that a wave holds: what is told of it, once more if it arrives, and once more if it leaves."""
_LISTED_BYTES = 8
"""For each row that arrives and leaves: its number in its chunk, both times."""
_MARGIN = 110
"""Percent: for what the system and the allocator round up."""
_AHEAD = 2
"""Chunks whose rows are there at once: that of the wave, and that of the next or of the one before."""
_PENDING = 3
"""Waves whose results may wait to be written, the last one included."""


class Extent(NamedTuple):
    """The largest that waves are.

    Attributes:
        places: Rows of a buffer.
        rows: Destinations.
        edges: In-edges.
        leaving: Rows whose gradients leave at once.
        held: Rows from HOST, from others and to others.
        moved: Rows that arrive from HOST, in all waves together; and as many leave.
    """

    places: int
    rows: int
    edges: int
    leaving: int
    held: int
    moved: int


def extent_of(graph: ChunkGraph, own: Tensor, needs: Needs, techniques: Techniques) -> Extent:
    """An upper bound of the largest wave of a worker, before places are given."""
    load, remote = ([len(nodes) for nodes in lists] for lists in (needs.loads, needs.remote))
    arriving = [int((turn & ARRIVES).sum()) for turn in turnover(needs.loads, reuse=techniques.reuse)]
    following = [*arriving[1:], 0] if techniques.overlap else [0] * len(load)
    sent = [sum(len(nodes) for nodes in lists) for lists in needs.sent]
    edges = [int(graph.row_sizes(own[low:high]).sum()) for low, high in needs.chunks]
    return Extent(
        places=max(a + b + c for a, b, c in zip(load, remote, following, strict=True)),
        rows=max(high - low for low, high in needs.chunks),
        edges=max(edges),
        leaving=max(load),
        held=max(a + b + c for a, b, c in zip(load, remote, sent, strict=True)),
        moved=sum(arriving),
    )


def even_extent(num_own: int, num_edges: int, count: int) -> Extent:
    """A lower bound of the largest of ``count`` waves of a worker."""
    rows = -(-num_own // count)
    return Extent(places=rows // 2, rows=rows // 2, edges=num_edges // count // 2, leaving=0, held=0, moved=0)


def wave_bytes(traits: Sequence[Traits], index: int, extent: Extent, number_bytes: int) -> int:
    """The most that the waves of a layer hold at once, forward or backward, without what does not change with them."""
    layer, last = traits[index], index == len(traits) - 1
    width, aggregate = layer.source_width, layer.aggregate_width
    out = layer.layer.widths.out_features
    following = 0 if last else traits[index + 1].source_width
    targets = layer.layer.widths.in_features if layer.reads_input else 0
    kept_input = 0 if last or not traits[index + 1].own_input else traits[index + 1].layer.widths.in_features
    buffer = extent.places * width
    loaded = extent.rows * (targets + (aggregate if layer.way in (Way.CACHED, Way.CONSTANT) else 0))
    given = extent.rows * (following + kept_input)
    made = extent.rows * (aggregate + 2 * out + following + target_width(layer))
    edges = extent.edges * numbers_per_edge(layer)
    forward = buffer + _AHEAD * loaded + made + edges + given + _PENDING * (given + extent.rows * aggregate)
    buffers = 3 if layer.assembled_backward and layer.trains_source else 1
    leaving = _PENDING * extent.leaving * width if layer.trains_source else 0
    backward = buffers * buffer + _AHEAD * (loaded + given) + given
    backward += 3 * made // 2 + 2 * edges + leaving
    waves = _AHEAD * (extent.held * _HELD_BYTES + extent.edges * INDEX_BYTES)
    transpose = extent.edges * 2 * INDEX_BYTES + extent.places * INDEX_BYTES
    encoding = extent.rows * (layer.encoded + _AHEAD * (width + kept_input))
    return (
        max(forward, backward, encoding) * number_bytes + waves + _AHEAD * transpose + extent.places * 2 * INDEX_BYTES
    )


def chunked_bytes(base: int, traits: Sequence[Traits], extent: Extent, number_bytes: int) -> int:
    """The most that a worker will have resident when it trains in chunks.

    Args:
        base: What it has now.
        traits: The layers.
        extent: Of its waves.
        number_bytes: Of a number of a row.
    """
    waves = max(wave_bytes(traits, index, extent, number_bytes) for index in range(len(traits)))
    return base + FIXED_BYTES + _LISTED_BYTES * extent.moved + waves * _MARGIN // 100


def table_bytes(traits: Sequence[Traits], num_nodes: int, num_moved: int, number_bytes: int) -> int:
    """What is kept of some nodes on a disk.

    Args:
        traits: The layers.
        num_nodes: How many nodes.
        num_moved: How often their rows arrive in the waves of a layer, and leave: they lie there so often.
        number_bytes: Of a number of a row.
    """
    by_node = moved = 0
    for each in traits:
        if not each.raw or each.trains_source:
            moved += each.source_width
        moved += each.source_width * each.trains_source
        by_node += each.aggregate_width * (each.way in (Way.CACHED, Way.CONSTANT))
        by_node += 2 * each.layer.widths.in_features * each.reads_input
    return (by_node * num_nodes + moved * num_moved) * number_bytes


def kept_bytes(extent: Extent) -> int:
    """What one wave takes in memory with all that is derived from its edges, at most."""
    return extent.held * _HELD_BYTES + extent.edges * 4 * INDEX_BYTES + extent.places * INDEX_BYTES
