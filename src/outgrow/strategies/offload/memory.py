"""How much memory training takes, in chunks and as a whole, and how few chunks fit into a budget.

Estimates are upper bounds, made of what a worker is known to hold at the same time; tests hold them against
what runs took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.layer_plan import (
    FIXED_BYTES,
    INDEX_BYTES,
    AggregatePolicy,
    LayerPlan,
    numbers_per_edge,
    pair_index_bytes,
    pair_sum_bytes,
    target_width,
)
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.ops.rows.row_encoding import FULL, stored_row_bytes
from outgrow.strategies.offload.wave import LOADED
from outgrow.strategies.offload.wave_plan import TransferOptions, WaveRequirements, load_evict_events

_HELD_BYTES = 3 * 21
"""Index bytes of a row that a wave holds, again if the wave loads it, and again if the wave evicts it."""
_LISTED_BYTES = 8
"""For each row that arrives and leaves: its number in its chunk, both times."""
_MARGIN = 110
"""Percent: for what the system and the allocator round up."""
_AHEAD = 2
"""Chunks whose rows are there at once: that of the wave, and that of the next or of the one before."""
_PENDING = 3
"""Waves whose results may wait to be written, the last one included."""


class WaveSizes(NamedTuple):
    """The largest that waves are.

    Attributes:
        num_slots: Rows of a buffer.
        num_rows: Destinations.
        num_edges: In-edges.
        evicted_rows: Rows whose gradients leave at once.
        listed_rows: Rows from HOST, from others and to others.
        loaded_rows: Rows that arrive from HOST, in all waves together; and as many leave.
        edge_row_bytes: Bytes of the features of an edge.
    """

    num_slots: int
    num_rows: int
    num_edges: int
    evicted_rows: int
    listed_rows: int
    loaded_rows: int
    edge_row_bytes: int = 0


def max_wave_sizes(
    graph: ChunkGraph, own: Tensor, requirements: WaveRequirements, transfer_options: TransferOptions
) -> WaveSizes:
    """An upper bound of the largest wave of a worker, before places are given."""
    load, remote = ([len(nodes) for nodes in lists] for lists in (requirements.loads, requirements.remote))
    arriving = [
        int((turn & LOADED).sum()) for turn in load_evict_events(requirements.loads, reuse=transfer_options.reuse)
    ]
    following = [*arriving[1:], 0] if transfer_options.overlap else [0] * len(load)
    sent = [sum(len(nodes) for nodes in lists) for lists in requirements.sent]
    edges = [int(graph.row_sizes(own[low:high]).sum()) for low, high in requirements.chunks]
    return WaveSizes(
        num_slots=max(a + b + c for a, b, c in zip(load, remote, following, strict=True)),
        num_rows=max(high - low for low, high in requirements.chunks),
        num_edges=max(edges),
        evicted_rows=max(load),
        listed_rows=max(a + b + c for a, b, c in zip(load, remote, sent, strict=True)),
        loaded_rows=sum(arriving),
        edge_row_bytes=graph.edge_row_bytes,
    )


def min_wave_sizes(num_own: int, num_edges: int, count: int, edge_row_bytes: int = 0) -> WaveSizes:
    """A lower bound of the largest of ``count`` waves of a worker."""
    rows = -(-num_own // count)
    return WaveSizes(
        num_slots=rows // 2,
        num_rows=rows // 2,
        num_edges=num_edges // count // 2,
        evicted_rows=0,
        listed_rows=0,
        loaded_rows=0,
        edge_row_bytes=edge_row_bytes,
    )


def wave_bytes(layer_plans: Sequence[LayerPlan], index: int, wave_sizes: WaveSizes, number_bytes: int) -> int:
    """The most that the waves of a layer hold at once, forward or backward, without what does not change with them."""
    layer = layer_plans[index]
    last = index == len(layer_plans) - 1
    width = layer.source_width
    aggregate = layer.aggregate_width
    out = layer.layer.spec.out_features
    following = 0 if last else layer_plans[index + 1].source_width
    targets = layer.input_numbers if layer.reads_input else 0
    kept_input = 0 if last or not layer_plans[index + 1].keeps_input else layer_plans[index + 1].layer.spec.in_features
    buffer = wave_sizes.num_slots * width
    loaded = wave_sizes.num_rows * (
        targets + (aggregate if layer.aggregate_policy in (AggregatePolicy.CACHED, AggregatePolicy.CONSTANT) else 0)
    )
    given = wave_sizes.num_rows * (following + kept_input)
    made = wave_sizes.num_rows * (aggregate + 2 * out + following + target_width(layer))
    edges = wave_sizes.num_edges * numbers_per_edge(layer)
    forward = buffer + _AHEAD * loaded + made + edges + given + _PENDING * (given + wave_sizes.num_rows * aggregate)
    buffers = 3 if layer.needs_sources_backward and layer.source_requires_grad else 1
    leaving = _PENDING * wave_sizes.evicted_rows * width if layer.source_requires_grad else 0
    backward = buffers * buffer + _AHEAD * (loaded + given) + given
    backward += 3 * made // 2 + 2 * edges + leaving
    of_edge = INDEX_BYTES + wave_sizes.edge_row_bytes
    waves = _AHEAD * (wave_sizes.listed_rows * _HELD_BYTES + wave_sizes.num_edges * of_edge)
    transpose = wave_sizes.num_edges * 2 * INDEX_BYTES + wave_sizes.num_slots * INDEX_BYTES
    pairs = pair_index_bytes(layer, wave_sizes.num_edges)
    pairs += pair_sum_bytes(layer, wave_sizes.num_edges, number_bytes)
    encoding = wave_sizes.num_rows * (layer.encoder_width + _AHEAD * (width + kept_input))
    return (
        max(forward, backward, encoding) * number_bytes
        + waves
        + pairs
        + _AHEAD * transpose
        + wave_sizes.num_slots * 2 * INDEX_BYTES
    )


def chunked_bytes(
    base: int, layer_plans: Sequence[LayerPlan], wave_sizes: WaveSizes, number_bytes: int, precision: str = FULL
) -> int:
    """The most that a worker will have resident when it trains in chunks.

    Args:
        base: What it has now.
        layer_plans: The layers.
        wave_sizes: Of its waves.
        number_bytes: Of a number of a row.
        precision: In which rows are stored.
    """
    waves = max(wave_bytes(layer_plans, index, wave_sizes, number_bytes) for index in range(len(layer_plans)))
    if precision != FULL:
        # Rows that are written are there a second time, as they are stored.
        waves += max(_written_bytes(each, wave_sizes, number_bytes, precision) for each in layer_plans)
    return base + FIXED_BYTES + _LISTED_BYTES * wave_sizes.loaded_rows + waves * _MARGIN // 100


def _written_bytes(plan: LayerPlan, wave_sizes: WaveSizes, number_bytes: int, precision: str) -> int:
    """Return the most bytes that rows of a layer take as they are stored, all at once."""
    widest = max(plan.aggregate_width, plan.source_width, plan.layer.spec.in_features)
    return max(
        wave_sizes.num_rows * stored_row_bytes(widest, number_bytes, precision),
        wave_sizes.evicted_rows * stored_row_bytes(plan.source_width, number_bytes, precision),
    )


def table_bytes(
    layer_plans: Sequence[LayerPlan], num_nodes: int, num_loaded: int, number_bytes: int, precision: str = FULL
) -> int:
    """What is kept of some nodes on a disk.

    Args:
        layer_plans: The layers.
        num_nodes: How many nodes.
        num_loaded: How often their rows arrive in the waves of a layer, and leave: they lie there so often.
        number_bytes: Of a number of a row.
        precision: In which rows are stored.
    """
    by_node = moved = 0
    for each in layer_plans:
        source, aggregate, target = (
            stored_row_bytes(width, number_bytes, precision)
            for width in (each.source_width, each.aggregate_width, each.layer.spec.in_features)
        )
        if not each.source_is_input or each.source_requires_grad:
            moved += source
        moved += source * each.source_requires_grad
        by_node += aggregate * (each.aggregate_policy in (AggregatePolicy.CACHED, AggregatePolicy.CONSTANT))
        by_node += 2 * target * each.reads_input
    return by_node * num_nodes + moved * num_loaded


def cached_wave_bytes(layer_plans: Sequence[LayerPlan], wave_sizes: WaveSizes) -> int:
    """What one wave takes in memory with all that is derived from its edges, at most."""
    return (
        wave_sizes.listed_rows * _HELD_BYTES
        + wave_sizes.num_edges * (4 * INDEX_BYTES + wave_sizes.edge_row_bytes)
        + wave_sizes.num_slots * INDEX_BYTES
        + max(pair_index_bytes(each, wave_sizes.num_edges) for each in layer_plans)
    )
