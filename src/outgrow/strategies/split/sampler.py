"""Cooperative sampling.

Every node of every layer belongs to the worker that owns it, and a draw is a function of the node: so the batch is the
one that a single worker would draw, cut without overlaps (Polisetty et al.: GSplit: scaling graph neural network
training on large graphs via split-parallelism, 2023, section 3.2). The nodes of others that in-edges come from are
passed on to these, which go on with them in the next hop: no worker draws for all.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.graph.sampling.edge_sampler import Chosen, Fanout
from outgrow.graph.sampling.layer_sampling import LARGEST, LayerDraws, refused_seed
from outgrow.graph.topology import Topology
from outgrow.ops.backend import array, tensor
from outgrow.ops.sampling.bitset import new_bits
from outgrow.ops.sampling.renumber import Rows, Sorted, number_seeds, number_sources, place_sources, sort_new
from outgrow.ops.sampling.uniform import Array, Ids
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Comm


class Wish(NamedTuple):
    """Nodes whose rows are wanted.

    Attributes:
        nodes: ``[r]`` int64, by worker.
        sizes: How many belong to each worker.
    """

    nodes: Tensor
    sizes: tuple[int, ...]


class SplitHop(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        block: In-edges of its nodes. The first sources are its own nodes, of which the first are the destinations;
            those of other workers follow, by owner.
        num_own: How many of the sources are its own.
        wanted: How many of the sources each worker owns besides.
        asked: ``[a]`` int64 own sources that other workers want rows of, those that worker 0 wants first.
        asked_sizes: How many each worker wants.
        num_local_edges: In-edges from its own nodes.
    """

    block: Block
    num_own: int
    wanted: tuple[int, ...]
    asked: Tensor
    asked_sizes: tuple[int, ...]
    num_local_edges: int

    @property
    def own(self) -> Tensor:
        """``[num_own]`` int64: the worker's own nodes among the sources."""
        return self.block.src_nodes[: self.num_own]

    def to(self, device: torch.device) -> SplitHop:
        """The same on a device; itself if it is there."""
        return self._replace(block=self.block.to(device), asked=self.asked.to(device))


class SplitSampler:
    """Draws a worker's part of batches. Final; draws one batch at a time.

    Args:
        views: See `LayerDraws`.
        fanout: See `LayerDraws`.
        seed: See `LayerDraws`.
        owner: ``[V]`` integer, the worker of each node; None for a single worker.
        rank: Number of this worker.
        size: Number of workers.
        weighted: See `LayerDraws`.

    Raises:
        InputError: See `LayerDraws`.
    """

    def __init__(
        self,
        views: Sequence[Topology],
        fanout: Sequence[Fanout],
        seed: int,
        *,
        owner: Tensor | None,
        rank: int,
        size: int,
        weighted: bool = False,
    ) -> None:
        self.draws = LayerDraws(views, fanout, seed, weighted=weighted)
        self.owner = torch.zeros(self.draws.num_nodes, dtype=torch.int8) if owner is None else owner
        self.rank, self.size = rank, size
        self._bits = new_bits(self.draws.most_bits)
        self._table, self._base = np.zeros(self.draws.num_nodes, dtype=np.int32), 1

    def hops(self, seeds: Tensor, epoch: int, step: int) -> Generator[Wish, Wish, list[SplitHop]]:
        """A worker's part of a batch, in a conversation with the others.

        For each hop outward from the seeds it yields what it wants of them, and is sent what they want of it.

        Args:
            seeds: ``[n]`` int64, distinct own nodes; may be empty. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.

        Returns:
            One for each layer of the model, the first layer first.

        Raises:
            InputError: A seed is no node of the graph, or comes twice.
        """
        try:
            nodes, found = self._begin(array(seeds)), list[SplitHop]()
            for layer in self.draws.outward:
                chosen = self.draws.choose(layer, nodes, epoch, step, self._bits)
                first = len(nodes)
                nodes, new, local = self._number(layer, chosen, nodes)
                wish = Wish(tensor(new.others), new.sizes)
                asked = yield wish
                nodes, rows = self._number_asked(array(asked.nodes), nodes)
                num_local = place_sources(local, first, len(nodes), new.remap)
                block = self._block(layer, chosen, local, nodes, new.others)
                found.append(SplitHop(block, len(nodes), wish.sizes, tensor(rows).long(), asked.sizes, num_local))
        except BaseException:  # also where the conversation is closed
            self._renew()
            raise
        self._base += len(nodes)
        if self._base > LARGEST - len(self._table):
            self._renew()
        return found[::-1]

    def _block(self, layer: int, chosen: Chosen, local: Rows, nodes: Ids, others: Ids) -> Block:
        sources = self.draws.memory.empty(len(nodes) + len(others), np.int64)
        sources[: len(nodes)], sources[len(nodes) :] = nodes, others
        return self.draws.block(layer, chosen, local, tensor(sources), self.draws.degrees(layer, sources))

    def _begin(self, seeds: Ids) -> Ids:
        numbered = number_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise refused_seed(seeds[numbered], numbered, len(self._table))
        return seeds

    def _number(self, layer: int, chosen: Chosen, nodes: Ids) -> tuple[Ids, Sorted, Rows]:
        """Own nodes that have a number, the new ones told apart, and a number for the source of each edge."""
        known = len(nodes)
        nodes, local = self._numbered(chosen.edges, self.draws.indices(layer), nodes)
        new = sort_new(nodes, known, array(self.owner), self.rank, self.size, self._table, self._base)
        return nodes[: new.num_own], new, local

    def _number_asked(self, asked: Ids, nodes: Ids) -> tuple[Ids, Rows]:
        """Own nodes that have a number, and those of the nodes that others want."""
        assert (array(self.owner)[asked] == self.rank).all()
        return self._numbered(np.arange(len(asked)), asked, nodes)

    def _numbered(self, edges: Ids, indices: Array, nodes: Ids) -> tuple[Ids, Rows]:
        """Nodes that have a number once the sources of these edges have one, and these."""
        memory, known = self.draws.memory, len(nodes)
        local, grown = memory.empty(len(edges), np.int32), memory.empty(known + len(edges), np.int64)
        grown[:known] = nodes
        known = number_sources(edges, indices, self._table, self._base, grown, known, local)
        return grown[:known], local

    def _renew(self) -> None:
        """Forget all numbers."""
        self._table[:], self._base = 0, 1


def drawn(sampler: SplitSampler, line: Comm, seeds: Tensor, epoch: int, step: int) -> list[SplitHop]:
    """A worker's part of a batch, one for each layer. All workers together, in the same order.

    For each hop a count of 8 bytes for each other worker, and 8 bytes for each node that is passed on (``ids``).

    Args:
        sampler: Draws for the worker's own nodes.
        line: A line to the other workers that nobody else uses.
        seeds: ``[n]`` int64, own seeds of the step.
        epoch: Part of the key.
        step: Part of the key.
    """
    talk = sampler.hops(seeds, epoch, step)
    wish = next(talk)
    while True:
        try:
            wish = talk.send(_passed_on(wish, line))
        except StopIteration as end:
            hops: list[SplitHop] = end.value
            return hops


def _passed_on(wish: Wish, line: Comm) -> Wish:
    """What the others want of this worker, told by each of them."""
    sizes = line.swapped(torch.tensor(wish.sizes), Kind.IDS)
    route = Route(wish.sizes, tuple(sizes.tolist()))
    return Wish(line.rows(wish.nodes, route, Kind.IDS).wait(), route.receive)
