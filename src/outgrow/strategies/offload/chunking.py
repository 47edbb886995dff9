"""How many chunks: as few as fit into the budget; and what they need, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.engine.layer_plan import LayerPlan, full_graph_bytes
from outgrow.engine.shard import GraphShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.ops.rows.row_encoding import FULL
from outgrow.strategies.offload.memory import (
    WaveSizes,
    cached_wave_bytes,
    chunked_bytes,
    max_wave_sizes,
    min_wave_sizes,
)
from outgrow.strategies.offload.reorder import Bandwidths, ChunkOrder, choose_chunk_order, local_order
from outgrow.strategies.offload.wave_plan import TransferOptions, WaveRequirements, cut_chunks, exchange_requirements

MAX_CHUNKS = 1024
"""Largest number of chunks of a worker."""
CHUNK_COUNT_TOLERANCE = 16
"""One chunk in so many more than needed is near enough: to cut takes time too."""
_STEP = 3
"""The number of chunks grows by a third until it fits: a cut into many more than needed takes longer than one more."""
_MIB = 1 << 20


def fits_whole(
    base: int,
    traits: Sequence[LayerPlan],
    *,
    num_own: int,
    num_edges: int,
    num_nodes: int,
    number_bytes: int,
    edge_row_bytes: int,
    budget: int,
) -> bool:
    """Tell whether a worker can train all its nodes at once, without chunks.

    Args:
        base: Bytes that it has resident before training.
        traits: The layers.
        num_own: Nodes of the worker.
        num_edges: In-edges of these, without loops.
        num_nodes: Nodes of the graph.
        number_bytes: Of a number of a row.
        edge_row_bytes: Of the features of an edge.
        budget: The most bytes that it may have resident.
    """
    with_loops = num_edges + num_own
    num_sources = min(num_nodes, num_own + with_loops)
    whole = full_graph_bytes(base, traits, num_own, num_sources, with_loops, number_bytes, edge_row_bytes)
    return whole <= budget


def fewest_chunks(
    bytes_of: Callable[[int], int],
    most: int,
    *,
    budget: int,
    step: int,
    least_bytes_of: Callable[[int], int] | None = None,
) -> int | None:
    """Find about as few chunks as fit into a budget.

    One chunk in `CHUNK_COUNT_TOLERANCE` more than needed is near enough.

    The number grows until it fits; then numbers between it and the one before are tried by bisection. The
    last call of ``bytes_of`` whose result fits is the one for the number that is returned.

    Args:
        bytes_of: What a worker has resident with so many chunks.
        most: The largest number of chunks.
        budget: The most bytes that it may have resident.
        step: The number grows by one ``step``-th of itself, and by at least one.
        least_bytes_of: A lower bound of ``bytes_of``, where one is cheaper: numbers that it rules out are
            passed over, except for ``most``.

    Returns:
        The number; None if not even ``most`` chunks fit.
    """
    too_few = 0
    for count in _growing_counts(most, step):
        ruled_out = least_bytes_of is not None and count < most and least_bytes_of(count) > budget
        if not ruled_out and bytes_of(count) <= budget:
            return _bisect_counts(bytes_of, too_few, count, budget)
        too_few = count
    return None


def choose_cached_waves(
    chunks: int, extent: WaveSizes, *, layer_plans: Sequence[LayerPlan], views: int, spare: int
) -> int:
    """Choose how many waves of a worker stay in memory once they were read.

    Args:
        chunks: Chunks of the worker, each of which is part of one wave.
        extent: Of its largest wave.
        layer_plans: The layers.
        views: Number of views of the graph, each of which has waves of its own.
        spare: Bytes of the budget that chunks do not need; may be negative.
    """
    return min(chunks, max(0, spare) // (views * cached_wave_bytes(layer_plans, extent) + 1))


def _growing_counts(most: int, step: int) -> Iterator[int]:
    """Yield numbers of chunks from 1 to ``most``, each larger by one ``step``-th than the one before."""
    count = 1
    while count < most:
        yield count
        count += max(1, count // step)
    yield most


def _bisect_counts(bytes_of: Callable[[int], int], too_few: int, enough: int, budget: int) -> int:
    """Find about the fewest chunks that fit, of numbers between one that does not and one that does."""
    while enough - too_few > 1 + enough // CHUNK_COUNT_TOLERANCE:
        between = (too_few + enough) // 2
        if bytes_of(between) <= budget:
            enough = between
        else:
            too_few = between
    return enough


class ChunkPlan(NamedTuple):
    """A way to cut.

    Attributes:
        num_chunks: Chunks of each worker.
        requirements: What the worker needs in each wave, by view of the graph.
        order: The order of the chunks of all workers.
        wave_sizes: Of the worker's largest wave, over the views.
        peak_bytes: The most that any worker will have resident.
    """

    num_chunks: int
    requirements: dict[bool, WaveRequirements]
    order: ChunkOrder
    wave_sizes: WaveSizes
    peak_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkPlanner:
    """Cuts the nodes of a worker into chunks. All workers cut together.

    Attributes:
        share: What the worker owns.
        graphs: The views of the graph that layers see.
        layer_plans: The layers.
        transfer_options: Which techniques are used.
        reorganise: Whether to look for an order of the chunks.
        bandwidths: What the machine moves in a second.
        number_bytes: Of a number of a row.
        base_bytes: Bytes that the worker has resident without chunks.
        edge_bytes: Bytes that a step takes besides for each edge of a wave.
        precision: In which rows are stored.
    """

    shard: GraphShard
    graphs: dict[bool, ChunkGraph]
    layer_plans: Sequence[LayerPlan]
    transfer_options: TransferOptions
    reorganise: bool
    bandwidths: Bandwidths
    number_bytes: int
    base_bytes: int
    edge_bytes: int = 0
    precision: str = FULL

    def plan_chunks(self, count: int) -> ChunkPlan:
        """Cut into so many chunks, which are the same in all views of the graph."""
        share = self.shard
        own = self.shard.owned_nodes
        pieces = cut_chunks(next(iter(self.graphs.values())), own, count)
        sources: dict[bool, list[Tensor]] = {
            self_loops: [graph.source_ids(own[first:last]) for first, last in pieces]
            for self_loops, graph in self.graphs.items()
        }
        read = next(iter(sources.values()))
        order = choose_chunk_order(share, read, self._mean_row_bytes, self.bandwidths, reorganise=self.reorganise)
        chosen = local_order(order, share)
        chunks = [pieces[i] for i in chosen]
        sharing = self.transfer_options.sharing
        needs = {
            self_loops: exchange_requirements(share, chunks, [each[i] for i in chosen], sharing=sharing)
            for self_loops, each in sources.items()
        }
        extents = [
            max_wave_sizes(graph, own, needs[view], self.transfer_options) for view, graph in self.graphs.items()
        ]
        extent = WaveSizes(*(max(sizes) for sizes in zip(*extents, strict=True)))
        return ChunkPlan(count, needs, order, extent, max(share.comm.all_gather_object(self._peak_bytes(extent))))

    def fewest_chunks(self, budget: int) -> ChunkPlan:
        """Cut into as few chunks as fit into the budget of every worker.

        Raises:
            InputError: Not even the smallest chunks fit.
        """
        share = self.shard
        budget = min(share.comm.all_gather_object(budget))
        num_edges = int(max(graph.row_sizes(share.owned_nodes).sum() for graph in self.graphs.values()))
        feature_bytes = share.topology.edge_row_bytes
        most = min(MAX_CHUNKS, max(share.comm.all_gather_object(len(share.owned_nodes))))
        chunking: ChunkPlan

        def bytes_of(count: int) -> int:
            """Cut, and keep the last that fits, which is the one found, or the smallest for the refusal."""
            nonlocal chunking
            tried = self.plan_chunks(count)
            if tried.peak_bytes <= budget or count == most:
                chunking = tried
            return tried.peak_bytes

        def least_bytes_of(count: int) -> int:
            return int(
                max(
                    share.comm.all_gather_object(
                        self._peak_bytes(min_wave_sizes(len(share.owned_nodes), num_edges, count, feature_bytes))
                    )
                )
            )

        found = fewest_chunks(bytes_of, most, budget=budget, step=_STEP, least_bytes_of=least_bytes_of)
        if found is not None:
            return chunking
        needed = -(-chunking.peak_bytes * 21 // (20 * _MIB))
        raise InputError(
            "the memory is too small for the smallest chunks of this graph",
            needed=f"{needed:,} MiB for each worker, in {chunking.num_chunks:,} chunks",
            got=f"{budget / _MIB:,.0f} MiB, of which {self.base_bytes / _MIB:,.0f} MiB are in use before training",
            repair=f"give --memory {needed}MiB or more, or a model with smaller layers",
        )

    def _peak_bytes(self, wave_sizes: WaveSizes) -> int:
        waves = chunked_bytes(self.base_bytes, self.layer_plans, wave_sizes, self.number_bytes, self.precision)
        return waves + wave_sizes.num_edges * self.edge_bytes

    @property
    def _mean_row_bytes(self) -> int:
        """Mean bytes of a source row over all layers."""
        return sum(each.source_width for each in self.layer_plans) * self.number_bytes // len(self.layer_plans)
