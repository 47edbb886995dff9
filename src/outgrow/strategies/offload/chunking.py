"""How many chunks: as few as fit into the budget; and what they need, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.engine.layer_plan import Traits
from outgrow.engine.shard import Share
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.strategies.offload.memory import Extent, chunked_bytes, even_extent, extent_of
from outgrow.strategies.offload.reorder import Order, Throughputs, mine, order_of
from outgrow.strategies.offload.wave_plan import Needs, Techniques, chunks_of, needs_of

MOST_CHUNKS = 1024
"""Of a worker."""
CLOSE = 16
"""One chunk in so many more than needed is near enough: to cut takes time too."""
_MIB = 1 << 20


class Chunking(NamedTuple):
    """A way to cut.

    Attributes:
        chunks: Chunks of each worker.
        needs: What the worker needs in each wave, by view of the graph.
        order: The order of the chunks of all workers.
        extent: Of the worker's largest wave, over the views.
        bytes_: The most that any worker will have resident.
    """

    chunks: int
    needs: dict[bool, Needs]
    order: Order
    extent: Extent
    bytes_: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Cutter:
    """Cuts the nodes of a worker into chunks. All workers cut together.

    Attributes:
        share: What the worker owns.
        graphs: The views of the graph that layers see.
        traits: The layers.
        techniques: Which techniques are used.
        reorganise: Whether to look for an order of the chunks.
        rates: What the machine moves in a second.
        number_bytes: Of a number of a row.
        base: Bytes that the worker has resident without chunks.
    """

    share: Share
    graphs: dict[bool, ChunkGraph]
    traits: Sequence[Traits]
    techniques: Techniques
    reorganise: bool
    rates: Throughputs
    number_bytes: int
    base: int

    def cut(self, count: int) -> Chunking:
        """Cut into so many chunks, which are the same in all views of the graph."""
        share, own = self.share, self.share.own
        pieces = chunks_of(next(iter(self.graphs.values())), own, count)
        sources: dict[bool, list[Tensor]] = {
            self_loops: [graph.sources(own[first:last]) for first, last in pieces]
            for self_loops, graph in self.graphs.items()
        }
        read = next(iter(sources.values()))
        order = order_of(share, read, self._row_bytes, self.rates, reorganise=self.reorganise)
        chosen = mine(order, share)
        chunks, sharing = [pieces[i] for i in chosen], self.techniques.sharing
        needs = {
            self_loops: needs_of(share, chunks, [each[i] for i in chosen], sharing=sharing)
            for self_loops, each in sources.items()
        }
        extents = [extent_of(graph, own, needs[view], self.techniques) for view, graph in self.graphs.items()]
        extent = Extent(*(max(sizes) for sizes in zip(*extents, strict=True)))
        return Chunking(count, needs, order, extent, max(share.comm.gather(self._bytes(extent))))

    def fewest(self, budget: int) -> Chunking:
        """Cut into as few chunks as fit into the budget of every worker.

        Raises:
            InputError: Not even the smallest chunks fit.
        """
        budget = min(self.share.comm.gather(budget))
        for too_few, count in self._counts(budget):
            chunking = self.cut(count)
            if chunking.bytes_ <= budget:
                return self._fewer(chunking, too_few, budget)
        needed = -(-chunking.bytes_ * 21 // (20 * _MIB))
        raise InputError(
            "the memory is too small for the smallest chunks of this graph",
            needed=f"{needed:,} MiB for each worker, in {chunking.chunks:,} chunks",
            got=f"{budget / _MIB:,.0f} MiB, of which {self.base / _MIB:,.0f} MiB are in use before training",
            repair=f"give --memory {needed}MiB or more, or a model with smaller layers",
        )

    def _fewer(self, enough: Chunking, too_few: int, budget: int) -> Chunking:
        """About as few chunks as fit, of numbers between one that does not and one that does."""
        while enough.chunks - too_few > 1 + enough.chunks // CLOSE:
            between = self.cut((too_few + enough.chunks) // 2)
            if between.bytes_ <= budget:
                enough = between
            else:
                too_few = between.chunks
        return enough

    def _counts(self, budget: int) -> Iterator[tuple[int, int]]:
        """Numbers of chunks to try, each after one that does not fit: those below the first cannot."""
        comm, edges = self.share.comm, [graph.row_sizes(self.share.own).sum() for graph in self.graphs.values()]
        num_edges, too_few, count = int(max(edges)), 0, 1
        finest = min(MOST_CHUNKS, max(comm.gather(len(self.share.own))))
        while count < finest:
            least = self._bytes(even_extent(len(self.share.own), num_edges, count))
            if max(comm.gather(least)) <= budget:
                yield too_few, count
            too_few, count = count, count + max(1, count // 3)
        yield too_few, finest

    def _bytes(self, extent: Extent) -> int:
        return chunked_bytes(self.base, self.traits, extent, self.number_bytes)

    @property
    def _row_bytes(self) -> int:
        """Of a row of sources, in the mean over layers."""
        return sum(each.source_width for each in self.traits) * self.number_bytes // len(self.traits)
