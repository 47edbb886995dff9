"""Sampling of a mini-batch by all workers together.

Every node of every layer belongs to the worker that owns it, and a draw is a function of the node. The batch
is therefore the one that a single worker would sample, divided without overlaps (Polisetty et al.: GSplit:
scaling graph neural network training on large graphs via split-parallelism, 2023, section 3.2). Sources that
belong to other workers are sent to them, and they continue with these nodes in the next hop: no worker
samples for all.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, Fanout, SampledEdges
from outgrow.graph.sampling.layer_sampling import LARGEST, LayerSampling, invalid_seed_error
from outgrow.graph.topology import GraphView
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
    """Nodes whose rows a worker requests.

    Attributes:
        nodes: ``[r]`` int64, ordered by worker.
        sizes: Number of nodes of each worker.
    """

    nodes: Tensor
    sizes: tuple[int, ...]


class SampledSplitBlock(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        block: In-edges of its nodes. The first sources are its own nodes, the first of which are the
            destinations; those of other workers follow, by owner.
        num_owned: Number of own sources.
        recv_counts: Number of sources of each other worker.
        send_index: ``[a]`` int64, own sources whose rows other workers want, ordered by worker.
        send_counts: Number of rows that each worker wants.
        num_local_edges: Number of in-edges from own nodes.
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
        """Return the block on a device; itself if it is there already."""
        return self._replace(block=self.block.to(device), send_index=self.send_index.to(device))


class SplitSampler:
    """Samples a worker's part of batches. Final; samples one batch at a time.

    Args:
        views: See `LayerSampling`.
        fanout: See `LayerSampling`.
        seed: See `LayerSampling`.
        owner: ``[V]`` integer, the worker of each node; None for a single worker.
        rank: Rank of this worker.
        size: Number of workers.
        weighted: See `LayerSampling`.
        sampler: See `LayerSampling`.

    Raises:
        InputError: See `LayerSampling`.
    """

    def __init__(
        self,
        views: Sequence[GraphView],
        fanout: Sequence[Fanout],
        seed: int,
        *,
        owner: Tensor | None,
        rank: int,
        size: int,
        weighted: bool = False,
        sampler: str = NEIGHBOR,
    ) -> None:
        self.sampling = LayerSampling(views, fanout, seed, weighted=weighted, sampler=sampler)
        self.owner = torch.zeros(self.sampling.num_nodes, dtype=torch.int8) if owner is None else owner
        self.rank = rank
        self.size = size
        self._bits = empty_bitset(self.sampling.bitset_size)
        self._table = np.zeros(self.sampling.num_nodes, dtype=np.int32)
        self._base = 1

    def copy_for_thread(self) -> SplitSampler:
        """Return a sampler of the same batches for another thread: what it reads of the graph is shared."""
        other = copy.copy(self)
        other._bits = empty_bitset(self.sampling.bitset_size)
        other._table = np.zeros_like(self._table)
        other._base = 1
        return other

    def sample_hops(
        self, seeds: Tensor, epoch: int, step: int
    ) -> Generator[RemoteRequest, RemoteRequest, list[SampledSplitBlock]]:
        """Sample a worker's part of a batch, exchanging requests with the other workers.

        For each hop outward from the seeds the generator yields its request to the others, and is sent their
        requests.

        Args:
            seeds: ``[n]`` int64, distinct own nodes; may be empty. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.

        Returns:
            One block for each layer of the model, the first layer first.

        Raises:
            InputError: A seed is no node of the graph, or occurs twice.
        """
        try:
            nodes = self._number_seeds(as_numpy(seeds))
            found = list[SampledSplitBlock]()
            for layer in self.sampling.hops_from_seeds:
                chosen = self.sampling.sample_layer(layer, nodes, epoch, step, self._bits)
                first = len(nodes)
                nodes, new, local = self._renumber_sources(layer, chosen, nodes)
                request = RemoteRequest(as_tensor(new.others), new.sizes)
                requested = yield request
                # Nodes that others request join the own ones, as they are destinations of the next hop;
                # sources of other workers therefore follow them, and only now the edges can be renumbered.
                nodes, rows = self._renumber_requested(as_numpy(requested.nodes), nodes)
                num_local = map_sources(local, first, len(nodes), new.remap)
                block = self._make_block(layer, chosen, local, nodes, new.others)
                found.append(
                    SampledSplitBlock(
                        block, len(nodes), request.sizes, as_tensor(rows).long(), requested.sizes, num_local
                    )
                )
        except BaseException:  # includes GeneratorExit, if the exchange ends early
            self._reset_numbers()
            raise
        # A higher base makes all numbers of this batch invalid without clearing the table.
        self._base += len(nodes)
        if self._base > LARGEST - len(self._table):
            self._reset_numbers()
        # Hops start at the seeds, which are the destinations of the last layer.
        return found[::-1]

    def _make_block(self, layer: int, sampled: SampledEdges, local: Rows, nodes: Ids, remote_nodes: Ids) -> Block:
        sources = self.sampling.pool.empty_array(len(nodes) + len(remote_nodes), np.int64)
        sources[: len(nodes)] = nodes
        sources[len(nodes) :] = remote_nodes
        return self.sampling.make_block(
            layer, sampled, local, as_tensor(sources), self.sampling.node_degrees(layer, sources)
        )

    def _number_seeds(self, seeds: Ids) -> Ids:
        # Stops at the first invalid seed, whose position it returns.
        numbered = renumber_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise invalid_seed_error(seeds[numbered], numbered, len(self._table))
        return seeds

    def _renumber_sources(self, layer: int, sampled: SampledEdges, nodes: Ids) -> tuple[Ids, NewNodes, Rows]:
        """Number all sources; return own nodes, the new nodes by owner, and the number of each source."""
        known = len(nodes)
        nodes, local = self._assign_numbers(*self.sampling.locate_sources(layer, sampled), nodes)
        new = group_new_by_owner(nodes, known, as_numpy(self.owner), self.rank, self.size, self._table, self._base)
        return nodes[: new.num_own], new, local

    def _renumber_requested(self, requested: Ids, nodes: Ids) -> tuple[Ids, Rows]:
        """Number the nodes that others request; return own nodes, and the number of each requested node."""
        assert (as_numpy(self.owner)[requested] == self.rank).all()
        return self._assign_numbers(np.arange(len(requested)), requested, nodes)

    def _assign_numbers(self, edges: Ids, indices: Array, nodes: Ids) -> tuple[Ids, Rows]:
        """Number the sources of these edges; return all numbered nodes, and the number of each source."""
        memory = self.sampling.pool
        known = len(nodes)
        local = memory.empty_array(len(edges), np.int32)
        grown = memory.empty_array(known + len(edges), np.int64)
        grown[:known] = nodes
        known = renumber_sources(edges, indices, self._table, self._base, grown, known, local)
        return grown[:known], local

    def _reset_numbers(self) -> None:
        """Forget all numbers."""
        self._table[:] = 0
        self._base = 1


def sample_cooperatively(
    sampler: SplitSampler, comm: Comm, seeds: Tensor, epoch: int, step: int
) -> list[SampledSplitBlock]:
    """Sample a worker's part of a batch, one block for each layer. All workers together, in the same order.

    For each hop it sends a count of 8 bytes to each other worker, and 8 bytes for each node requested
    (``ids``).

    Args:
        sampler: Samples around the worker's own nodes.
        comm: Communicator that no other thread uses.
        seeds: ``[n]`` int64, own seeds of the step.
        epoch: Part of the key.
        step: Part of the key.
    """
    hops = sampler.sample_hops(seeds, epoch, step)
    request = next(hops)
    while True:
        try:
            request = hops.send(_exchange_requests(request, comm))
        except StopIteration as end:
            blocks: list[SampledSplitBlock] = end.value
            return blocks


def _exchange_requests(request: RemoteRequest, comm: Comm) -> RemoteRequest:
    """Send a request and return the requests of the other workers, in the order of the workers."""
    # Counts first: a receiver must know the length of every list of nodes.
    sizes = comm.all_to_all_counts(torch.tensor(request.sizes), Kind.IDS)
    route = SplitSizes(request.sizes, tuple(sizes.tolist()))
    return RemoteRequest(comm.all_to_all(request.nodes, route, Kind.IDS).wait(), route.receive)
