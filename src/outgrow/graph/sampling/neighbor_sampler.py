"""Neighbour sampling: blocks of a batch, in which each destination keeps some of its in-edges.

Which ones node ``v`` keeps in a layer is a pure function of (seed, epoch, step, layer, v), whoever samples and in
whatever batch (Hamilton, Ying, Leskovec: Inductive representation learning on large graphs, NeurIPS 2017).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.graph.sampling.edge_sampler import Chosen, Fanout
from outgrow.graph.sampling.layer_sampling import LARGEST, LayerDraws, refused_seed
from outgrow.graph.topology import Topology
from outgrow.ops.backend import array, tensor
from outgrow.ops.memory_pool import Memory
from outgrow.ops.sampling.bitset import new_bits
from outgrow.ops.sampling.renumber import number_seeds, number_sources
from outgrow.ops.sampling.uniform import Array, Ids

_ALL = slice(None)


class Sampler:
    """Draws blocks. Final; may be called from several threads at once.

    Args:
        views: See `LayerDraws`.
        fanout: See `LayerDraws`.
        seed: See `LayerDraws`.
        weighted: See `LayerDraws`.

    Raises:
        InputError: See `LayerDraws`.
    """

    def __init__(
        self, views: Sequence[Topology], fanout: Sequence[Fanout], seed: int, *, weighted: bool = False
    ) -> None:
        self.draws = LayerDraws(views, fanout, seed, weighted=weighted)
        self._idle = deque[_Scratch]()

    def blocks(self, seeds: Tensor, epoch: int, step: int, layers: slice = _ALL) -> list[Block]:
        """The blocks of a batch, one for each layer.

        The first source nodes of a block are its destinations, and ``edge_ids`` are positions in the layer's view.

        Args:
            seeds: ``[n]`` int64, distinct; may be empty. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.
            layers: Which layers of the model to draw blocks for, one after the other; by default all.

        Raises:
            InputError: A seed is no node of the graph, or comes twice.
        """
        scratch, draws = self._scratch(), self.draws
        numbers = range(len(draws.views))[layers]
        nodes, hops = scratch.begin(array(seeds)), []
        for layer in reversed(numbers):
            chosen = draws.choose(layer, nodes, epoch, step, scratch.bits)
            nodes, indices = scratch.number(chosen.edges, draws.indices(layer), nodes, draws.memory)
            hops.append(_Hop(chosen, indices, len(nodes)))
        scratch.end(len(nodes))
        self._idle.append(scratch)
        return self._blocks(numbers, hops[::-1], nodes)

    def _scratch(self) -> _Scratch:
        try:
            return self._idle.pop()
        except IndexError:
            return _Scratch(self.draws.num_nodes, self.draws.most_bits)

    def _blocks(self, layers: Sequence[int], hops: Sequence[_Hop], nodes: Ids) -> list[Block]:
        node_ids, degrees, blocks = tensor(nodes), dict[Topology, Tensor](), []
        for layer, hop in zip(layers, hops, strict=True):
            view = self.draws.views[layer]
            if view not in degrees:  # the first layer that wants it has the most sources
                degrees[view] = self.draws.degrees(layer, nodes[: hop.num_src])
            sources = node_ids[: hop.num_src], degrees[view][: hop.num_src]
            blocks.append(self.draws.block(layer, hop.chosen, hop.indices, *sources))
        return blocks


class _Hop(NamedTuple):
    """What was drawn for a layer: in-edges, ``[E]`` rows of their sources, and the number of these sources."""

    chosen: Chosen
    indices: NDArray[np.int32]
    num_src: int


class _Scratch:
    """Memory of one caller at a time: the numbers of nodes, and a set for draws.

    Args:
        num_nodes: ``V``.
        most_bits: Numbers in the set are less.
    """

    def __init__(self, num_nodes: int, most_bits: int) -> None:
        self.bits = new_bits(most_bits)
        self._table, self._base = np.zeros(num_nodes, dtype=np.int32), 1

    def begin(self, seeds: Ids) -> Ids:
        """Number the seeds from 0; returns them, the nodes that have a number."""
        numbered = number_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise refused_seed(seeds[numbered], numbered, len(self._table))
        return seeds

    def number(self, edges: Ids, indices: Array, nodes: Ids, memory: Memory) -> tuple[Ids, NDArray[np.int32]]:
        """Number the sources of edges.

        Args:
            edges: ``[E]``.
            indices: Source of every edge of the view.
            nodes: Those that have a number, in this order.
            memory: For the results.

        Returns:
            The nodes that have a number now, and ``[E]`` the number of each edge's source.
        """
        known, local = len(nodes), memory.empty(len(edges), np.int32)
        grown = memory.empty(known + len(edges), np.int64)
        grown[:known] = nodes
        known = number_sources(edges, indices, self._table, self._base, grown, known, local)
        return grown[:known], local

    def end(self, known: int) -> None:
        """Forget the numbers of a batch of so many nodes."""
        self._base += known
        if self._base > LARGEST - len(self._table):
            self._table[:], self._base = 0, 1
