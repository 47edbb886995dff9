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
from outgrow.graph.sampling.batch_numbers import BatchRows, NodeNumbers, PairNumbers, make_batch_numbers
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, Fanout, SampledEdges
from outgrow.graph.sampling.layer_sampling import LayerSampling
from outgrow.graph.topology import GraphView
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.sampling.uniform import Ids

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
        temporal_strategy: See `LayerSampling`.

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
        temporal_strategy: str | None = None,
    ) -> None:
        self.sampling = LayerSampling(
            views, fanout, seed, weighted=weighted, sampler=sampler, temporal_strategy=temporal_strategy
        )
        self.sampling.set_memory_limit(memory_limit)
        # Appending to and popping from a deque are atomic, so threads need no lock.
        self._idle = deque[NodeNumbers | PairNumbers]()

    def sample_blocks(self, seeds: Tensor, epoch: int, step: int, layers: slice = _ALL) -> list[Block]:
        """Sample the blocks of a batch, one for each layer.

        The first source nodes of a block are its destinations; ``edge_ids`` are positions in the layer's
        view. With a temporal strategy the rows of a block are pairs of a node and the time of the seed that it is
        drawn for: a node may be there several times, and degrees are of in-edges before that time.

        Args:
            seeds: ``[n]`` int64, distinct; may be empty. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.
            layers: The consecutive layers of the model to sample blocks for; all by default.

        Raises:
            InputError: A seed is not a node of the graph, or is repeated.
        """
        numbers = self._acquire_numbers()
        chosen = range(len(self.sampling.views))[layers]
        rows = numbers.start_batch(as_numpy(seeds))
        hops = []
        # From the seeds outward: the sources of a hop are the destinations of the next one.
        for layer in reversed(chosen):
            sampled = numbers.sample_hop(layer, rows, epoch, step)
            rows, indices = numbers.number_sources(layer, sampled, rows, rows)
            hops.append(_SampledHop(sampled, indices, len(rows.nodes)))
        numbers.end_batch(rows)
        blocks = self._make_blocks(chosen, hops[::-1], rows, numbers)
        # Not returned after an error, since the table may be in any state then.
        self._idle.append(numbers)
        return blocks

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
        numbers = self._acquire_numbers()
        rows = numbers.start_batch(as_numpy(seeds))
        first, parts = 0, list[_SubgraphHop]()
        for layer in self.sampling.hops_from_seeds:
            expanded = rows.slice_from(first)
            sampled = numbers.sample_hop(layer, expanded, epoch, step)
            destinations = np.repeat(np.arange(first, len(rows.nodes)), np.diff(sampled.indptr))
            first = len(rows.nodes)
            rows, indices = numbers.number_sources(layer, sampled, expanded, rows)
            parts.append(_SubgraphHop(indices, destinations, sampled.edges))
        numbers.end_batch(rows)
        self._idle.append(numbers)
        edges = np.stack([np.concatenate([hop.sources for hop in parts]), np.concatenate([hop.dst for hop in parts])])
        return SampledSubgraph(
            nodes=as_tensor(rows.nodes),
            times=None if rows.times is None else as_tensor(rows.times),
            edge_index=as_tensor(edges),
            edge_ids=as_tensor(np.concatenate([hop.edges for hop in parts])),
        )

    def _acquire_numbers(self) -> NodeNumbers | PairNumbers:
        try:
            return self._idle.pop()
        # No length test before: another thread may take the last one in between.
        except IndexError:
            return make_batch_numbers(self.sampling)

    def _make_blocks(
        self, layers: Sequence[int], hops: Sequence[_SampledHop], rows: BatchRows, numbers: NodeNumbers | PairNumbers
    ) -> list[Block]:
        node_ids = as_tensor(rows.nodes)
        degrees = dict[GraphView, Tensor]()
        blocks = []
        for layer, hop in zip(layers, hops, strict=True):
            view = self.sampling.views[layer]
            # The first layer with a view has the most sources, and those of later layers are a prefix of them.
            if view not in degrees:
                degrees[view] = numbers.row_degrees(layer, rows.slice_to(hop.num_src))
            sources = node_ids[: hop.num_src], degrees[view][: hop.num_src]
            blocks.append(self.sampling.make_block(layer, hop.sampled, hop.indices, *sources))
        return blocks


class SampledSubgraph(NamedTuple):
    """Neighbourhood of a batch as one graph.

    Attributes:
        nodes: ``[n]`` int64, its nodes: the seeds, then those that each hop has found. With times, a node is there
            once for each time.
        times: ``[n]`` int64, the time that each is drawn for: that of its seed; None without.
        edge_index: ``[2, E]`` int64, rows of sources above rows of destinations, hop after hop, sorted by destination.
        edge_ids: ``[E]`` int64, positions of the edges in the view.
    """

    nodes: Tensor
    times: Tensor | None
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
