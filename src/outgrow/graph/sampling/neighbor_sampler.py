"""Sampling of neighbourhoods: the blocks of a batch, in which each destination keeps some of its in-edges.

The in-edges that node ``v`` keeps in a layer are a pure function of (seed, epoch, step, layer, v), whichever
worker samples and whatever else is in the batch (Hamilton, Ying, Leskovec: Inductive representation learning
on large graphs, NeurIPS 2017).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, Fanout, SampledEdges
from outgrow.graph.sampling.layer_sampling import LARGEST, LayerSampling, invalid_seed_error
from outgrow.graph.topology import GraphView
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.sampling.bitset import empty_bitset
from outgrow.ops.sampling.renumber import renumber_seeds, renumber_sources
from outgrow.ops.sampling.uniform import Array, Ids

_ALL = slice(None)


class NeighborSampler:
    """Sampler of the blocks of a batch. Final; may be called from several threads at once.

    Args:
        views: See `LayerSampling`.
        fanout: See `LayerSampling`.
        seed: See `LayerSampling`.
        weighted: See `LayerSampling`.
        sampler: See `LayerSampling`.
        memory_limit: See `LayerSampling.set_memory_limit`.

    Raises:
        InputError: Views or fan-outs that `LayerSampling` rejects.
    """

    def __init__(
        self,
        views: Sequence[GraphView],
        fanout: Sequence[Fanout],
        seed: int,
        *,
        weighted: bool = False,
        sampler: str = NEIGHBOR,
        memory_limit: int | None = None,
    ) -> None:
        self.sampling = LayerSampling(views, fanout, seed, weighted=weighted, sampler=sampler)
        self.sampling.set_memory_limit(memory_limit)
        # Appending to and popping from a deque are atomic, so threads need no lock.
        self._idle = deque[_RenumberScratch]()

    def sample_blocks(self, seeds: Tensor, epoch: int, step: int, layers: slice = _ALL) -> list[Block]:
        """Sample the blocks of a batch, one for each layer.

        The first source nodes of a block are its destinations; ``edge_ids`` are positions in the layer's
        view.

        Args:
            seeds: ``[n]`` int64, distinct; may be empty. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.
            layers: The consecutive layers of the model to sample blocks for; all by default.

        Raises:
            InputError: A seed is not a node of the graph, or is repeated.
        """
        scratch = self._acquire_scratch()
        sampling = self.sampling
        numbers = range(len(sampling.views))[layers]
        nodes = scratch.start_batch(as_numpy(seeds))
        hops = []
        # From the seeds outward: the sources of a hop are the destinations of the next one.
        for layer in reversed(numbers):
            sampled = sampling.sample_layer(layer, nodes, epoch, step, scratch.bits)
            sources = sampling.locate_sources(layer, sampled)
            nodes, indices = scratch.renumber_edges(*sources, nodes, sampling.pool)
            hops.append(_SampledHop(sampled, indices, len(nodes)))
        scratch.end_batch(len(nodes))
        # Not returned after an error, since the table may be in any state then.
        self._idle.append(scratch)
        return self._make_blocks(numbers, hops[::-1], nodes)

    def sample_subgraph(self, seeds: Tensor, epoch: int, step: int) -> SampledSubgraph:
        """Sample the neighbourhood of a batch as one graph, in which every node is expanded once.

        A hop expands only the nodes that the hop before has found, so that no node keeps more in-edges than the
        fan-out of its hop. These in-edges are those that it has in the hop's block of `sample_blocks`.

        Args:
            seeds: ``[n]`` int64, distinct; may be empty.
            epoch: Part of the key.
            step: Part of the key.

        Raises:
            InputError: A seed is not a node of the graph, or is repeated.
        """
        scratch = self._acquire_scratch()
        sampling = self.sampling
        nodes = scratch.start_batch(as_numpy(seeds))
        first, parts = 0, list[_SubgraphHop]()
        for layer in sampling.hops_from_seeds:
            sampled = sampling.sample_layer(layer, nodes[first:], epoch, step, scratch.bits)
            sources = sampling.locate_sources(layer, sampled)
            destinations = np.repeat(np.arange(first, len(nodes)), np.diff(sampled.indptr))
            first = len(nodes)
            nodes, indices = scratch.renumber_edges(*sources, nodes, sampling.pool)
            parts.append(_SubgraphHop(indices, destinations, sampled.edges))
        scratch.end_batch(len(nodes))
        self._idle.append(scratch)
        edges = np.stack([np.concatenate([hop.sources for hop in parts]), np.concatenate([hop.dst for hop in parts])])
        return SampledSubgraph(
            nodes=as_tensor(nodes),
            edge_index=as_tensor(edges),
            edge_ids=as_tensor(np.concatenate([hop.edges for hop in parts])),
        )

    def _acquire_scratch(self) -> _RenumberScratch:
        try:
            return self._idle.pop()
        # No length test before: another thread may take the last one in between.
        except IndexError:
            return _RenumberScratch(self.sampling.num_nodes, self.sampling.bitset_size)

    def _make_blocks(self, layers: Sequence[int], hops: Sequence[_SampledHop], nodes: Ids) -> list[Block]:
        node_ids = as_tensor(nodes)
        degrees = dict[GraphView, Tensor]()
        blocks = []
        for layer, hop in zip(layers, hops, strict=True):
            view = self.sampling.views[layer]
            # The first layer with a view has the most sources, and those of later layers are a prefix of them.
            if view not in degrees:
                degrees[view] = self.sampling.node_degrees(layer, nodes[: hop.num_src])
            sources = node_ids[: hop.num_src], degrees[view][: hop.num_src]
            blocks.append(self.sampling.make_block(layer, hop.sampled, hop.indices, *sources))
        return blocks


class SampledSubgraph(NamedTuple):
    """Neighbourhood of a batch as one graph.

    Attributes:
        nodes: ``[n]`` int64, its nodes: the seeds, then those that each hop has found.
        edge_index: ``[2, E]`` int64, rows of sources above rows of destinations, hop after hop, sorted by destination.
        edge_ids: ``[E]`` int64, positions of the edges in the view.
    """

    nodes: Tensor
    edge_index: Tensor
    edge_ids: Tensor


class _SubgraphHop(NamedTuple):
    """In-edges that a hop has sampled: ``[E]`` rows of sources and of destinations, positions in the view."""

    sources: NDArray[np.int32]
    dst: NDArray[np.int64]
    edges: Ids


class _SampledHop(NamedTuple):
    """Samples of a layer: in-edges, ``[E]`` rows of their sources, and the number of sources."""

    sampled: SampledEdges
    indices: NDArray[np.int32]
    num_src: int


class _RenumberScratch:
    """Scratch memory for one caller at a time: the table of local node numbers, and a bit set.

    Args:
        num_nodes: ``V``.
        most_bits: Bound on the numbers in the bit set.
    """

    def __init__(self, num_nodes: int, most_bits: int) -> None:
        self.bits = empty_bitset(most_bits)
        self._table = np.zeros(num_nodes, dtype=np.int32)
        self._base = 1

    def start_batch(self, seeds: Ids) -> Ids:
        """Number the seeds from 0, and return them as the nodes that have a number."""
        numbered = renumber_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise invalid_seed_error(seeds[numbered], numbered, len(self._table))
        return seeds

    def renumber_edges(self, edges: Ids, indices: Array, nodes: Ids, pool: ArrayPool) -> tuple[Ids, NDArray[np.int32]]:
        """Number the sources of edges.

        Args:
            edges: ``[E]``, positions of the edges in the view.
            indices: Source of every edge of the view.
            nodes: The nodes that have a number, in this order.
            pool: Provides the memory of the results.

        Returns:
            The nodes that have a number now, and ``[E]``, the number of each edge's source.
        """
        known = len(nodes)
        local = pool.empty_array(len(edges), np.int32)
        # Room for the worst case, in which every edge has a new source.
        grown = pool.empty_array(known + len(edges), np.int64)
        grown[:known] = nodes
        known = renumber_sources(edges, indices, self._table, self._base, grown, known, local)
        return grown[:known], local

    def end_batch(self, known: int) -> None:
        """Forget the numbers of a batch of ``known`` nodes."""
        # A larger base makes all entries of this batch count as unset, without a pass over the table.
        self._base += known
        # Cleared only before the numbers of the next batch could overflow.
        if self._base > LARGEST - len(self._table):
            self._table[:] = 0
            self._base = 1
