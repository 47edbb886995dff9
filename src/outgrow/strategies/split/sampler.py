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
from outgrow.graph.sampling.edge_sampler import Fanout, SampledEdges
from outgrow.graph.sampling.layer_sampling import LARGEST, LayerSampling, invalid_seed_error
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.sampling.bitset import empty_bitset
from outgrow.ops.sampling.renumber import (
    NewNodes,
    Rows,
    group_new_by_owner,
    map_sources,
    renumber_seeds,
    renumber_sources,
)
from outgrow.ops.sampling.uniform import Array, Ids
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm


class RemoteRequest(NamedTuple):
    """Nodes whose rows are wanted.

    Attributes:
        nodes: ``[r]`` int64, by worker.
        sizes: How many belong to each worker.
    """

    nodes: Tensor
    sizes: tuple[int, ...]


class SampledSplitBlock(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        block: In-edges of its nodes. The first sources are its own nodes, of which the first are the destinations;
            those of other workers follow, by owner.
        num_owned: How many of the sources are its own.
        recv_counts: How many of the sources each worker owns besides.
        send_index: ``[a]`` int64 own sources that other workers want rows of, those that worker 0 wants first.
        send_counts: How many each worker wants.
        num_local_edges: In-edges from its own nodes.
    """

    block: Block
    num_owned: int
    recv_counts: tuple[int, ...]
    send_index: Tensor
    send_counts: tuple[int, ...]
    num_local_edges: int

    @property
    def own_nodes(self) -> Tensor:
        """``[num_own]`` int64: the worker's own nodes among the sources."""
        return self.block.src_nodes[: self.num_owned]

    def to(self, device: torch.device) -> SampledSplitBlock:
        """The same on a device; itself if it is there."""
        return self._replace(block=self.block.to(device), send_index=self.send_index.to(device))


class SplitSampler:
    """Draws a worker's part of batches. Final; draws one batch at a time.

    Args:
        views: See `LayerSampling`.
        fanout: See `LayerSampling`.
        seed: See `LayerSampling`.
        owner: ``[V]`` integer, the worker of each node; None for a single worker.
        rank: Number of this worker.
        size: Number of workers.
        weighted: See `LayerSampling`.

    Raises:
        InputError: See `LayerSampling`.
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
        self.sampling = LayerSampling(views, fanout, seed, weighted=weighted)
        self.owner = torch.zeros(self.sampling.num_nodes, dtype=torch.int8) if owner is None else owner
        self.rank, self.size = rank, size
        self._bits = empty_bitset(self.sampling.bitset_size)
        self._table, self._base = np.zeros(self.sampling.num_nodes, dtype=np.int32), 1

    def sample_hops(
        self, seeds: Tensor, epoch: int, step: int
    ) -> Generator[RemoteRequest, RemoteRequest, list[SampledSplitBlock]]:
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
            nodes, found = self._number_seeds(as_numpy(seeds)), list[SampledSplitBlock]()
            for layer in self.sampling.hops_from_seeds:
                chosen = self.sampling.sample_layer(layer, nodes, epoch, step, self._bits)
                first = len(nodes)
                nodes, new, local = self._renumber_sources(layer, chosen, nodes)
                wish = RemoteRequest(as_tensor(new.others), new.sizes)
                asked = yield wish
                nodes, rows = self._renumber_requested(as_numpy(asked.nodes), nodes)
                num_local = map_sources(local, first, len(nodes), new.remap)
                block = self._make_block(layer, chosen, local, nodes, new.others)
                found.append(
                    SampledSplitBlock(block, len(nodes), wish.sizes, as_tensor(rows).long(), asked.sizes, num_local)
                )
        except BaseException:  # also where the conversation is closed
            self._reset_numbers()
            raise
        self._base += len(nodes)
        if self._base > LARGEST - len(self._table):
            self._reset_numbers()
        return found[::-1]

    def _make_block(self, layer: int, sampled: SampledEdges, local: Rows, nodes: Ids, remote_nodes: Ids) -> Block:
        sources = self.sampling.pool.empty_array(len(nodes) + len(remote_nodes), np.int64)
        sources[: len(nodes)], sources[len(nodes) :] = nodes, remote_nodes
        return self.sampling.make_block(
            layer, sampled, local, as_tensor(sources), self.sampling.node_degrees(layer, sources)
        )

    def _number_seeds(self, seeds: Ids) -> Ids:
        numbered = renumber_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise invalid_seed_error(seeds[numbered], numbered, len(self._table))
        return seeds

    def _renumber_sources(self, layer: int, sampled: SampledEdges, nodes: Ids) -> tuple[Ids, NewNodes, Rows]:
        """Own nodes that have a number, the new ones told apart, and a number for the source of each edge."""
        known = len(nodes)
        nodes, local = self._assign_numbers(sampled.edges, self.sampling.edge_sources(layer), nodes)
        new = group_new_by_owner(nodes, known, as_numpy(self.owner), self.rank, self.size, self._table, self._base)
        return nodes[: new.num_own], new, local

    def _renumber_requested(self, requested: Ids, nodes: Ids) -> tuple[Ids, Rows]:
        """Own nodes that have a number, and those of the nodes that others want."""
        assert (as_numpy(self.owner)[requested] == self.rank).all()
        return self._assign_numbers(np.arange(len(requested)), requested, nodes)

    def _assign_numbers(self, edges: Ids, indices: Array, nodes: Ids) -> tuple[Ids, Rows]:
        """Nodes that have a number once the sources of these edges have one, and these."""
        memory, known = self.sampling.pool, len(nodes)
        local, grown = memory.empty_array(len(edges), np.int32), memory.empty_array(known + len(edges), np.int64)
        grown[:known] = nodes
        known = renumber_sources(edges, indices, self._table, self._base, grown, known, local)
        return grown[:known], local

    def _reset_numbers(self) -> None:
        """Forget all numbers."""
        self._table[:], self._base = 0, 1


def sample_cooperatively(
    sampler: SplitSampler, comm: Comm, seeds: Tensor, epoch: int, step: int
) -> list[SampledSplitBlock]:
    """A worker's part of a batch, one for each layer. All workers together, in the same order.

    For each hop a count of 8 bytes for each other worker, and 8 bytes for each node that is passed on (``ids``).

    Args:
        sampler: Draws for the worker's own nodes.
        comm: A line to the other workers that nobody else uses.
        seeds: ``[n]`` int64, own seeds of the step.
        epoch: Part of the key.
        step: Part of the key.
    """
    talk = sampler.sample_hops(seeds, epoch, step)
    wish = next(talk)
    while True:
        try:
            wish = talk.send(_exchange_requests(wish, comm))
        except StopIteration as end:
            hops: list[SampledSplitBlock] = end.value
            return hops


def _exchange_requests(request: RemoteRequest, comm: Comm) -> RemoteRequest:
    """What the others want of this worker, told by each of them."""
    sizes = comm.all_to_all_counts(torch.tensor(request.sizes), Kind.IDS)
    route = SplitSizes(request.sizes, tuple(sizes.tolist()))
    return RemoteRequest(comm.all_to_all(request.nodes, route, Kind.IDS).wait(), route.receive)
