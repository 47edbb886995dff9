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
from outgrow.graph.sampling.batch_numbers import BatchRows, PairNumbers, to_pairs
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
from outgrow.ops.sampling.renumber_pairs import PairRows
from outgrow.ops.sampling.uniform import Array, Ids
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm


class RemoteRequest(NamedTuple):
    """Nodes whose rows a worker requests.

    Attributes:
        nodes: ``[r]`` int64, ordered by worker.
        sizes: Number of nodes of each worker.
        times: ``[r]`` int64, the time that each is drawn for; None if rows are drawn of all in-edges.
    """

    nodes: Tensor
    sizes: tuple[int, ...]
    times: Tensor | None = None


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
    """Samples a worker's part of batches; one batch at a time.

    Args:
        views: See `LayerSampling`.
        fanout: See `LayerSampling`.
        seed: See `LayerSampling`.
        owner: ``[V]`` integer, the worker of each node; None for a single worker.
        rank: Rank of this worker.
        size: Number of workers.
        weighted: See `LayerSampling`.
        sampler: See `LayerSampling`.
        temporal_strategy: See `LayerSampling`.

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
        temporal_strategy: str | None = None,
    ) -> None:
        self.sampling = LayerSampling(
            views, fanout, seed, weighted=weighted, sampler=sampler, temporal_strategy=temporal_strategy
        )
        self.owner = torch.zeros(self.sampling.num_nodes, dtype=torch.int8) if owner is None else owner
        self.rank = rank
        self.size = size
        self._start_numbers()

    def _start_numbers(self) -> None:
        self._bits = empty_bitset(self.sampling.bitset_size)
        self._table = np.zeros(self.sampling.num_nodes, dtype=np.int32)
        self._base = 1

    def copy_for_thread(self) -> SplitSampler:
        """Return a sampler of the same batches for another thread: what it reads of the graph is shared."""
        other = copy.copy(self)
        other._start_numbers()
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
            own = self._number_seeds(as_numpy(seeds))
            found = list[SampledSplitBlock]()
            for layer in self.sampling.hops_from_seeds:
                chosen = self._sample_hop(layer, own, epoch, step)
                first = len(own.nodes)
                own, new, local = self._renumber_sources(layer, chosen, own)
                request = RemoteRequest(as_tensor(new.others), new.sizes, self._times_of_others)
                requested = yield request
                # Nodes that others request join the own ones, as they are destinations of the next hop;
                # sources of other workers therefore follow them, and only now the edges can be renumbered.
                assert (as_numpy(self.owner)[as_numpy(requested.nodes)] == self.rank).all()
                own, rows = self._renumber_requested(requested, own)
                num_own = len(own.nodes)
                num_local = map_sources(local, first, num_own, new.remap)
                block = self._make_block(layer, chosen, local, own, request)
                found.append(
                    SampledSplitBlock(block, num_own, request.sizes, as_tensor(rows).long(), requested.sizes, num_local)
                )
        except BaseException:  # includes GeneratorExit, if the exchange ends early
            self._reset_numbers()
            raise
        # A higher base makes all numbers of this batch invalid without clearing the table.
        self._base += len(own.nodes)
        if self._base > LARGEST - len(self._table):
            self._reset_numbers()
        # Hops start at the seeds, which are the destinations of the last layer.
        return found[::-1]

    def _make_block(
        self, layer: int, sampled: SampledEdges, local: Rows, own: BatchRows, request: RemoteRequest
    ) -> Block:
        nodes = self._join_rows(own.nodes, as_numpy(request.nodes))
        times = None if own.times is None else self._join_rows(own.times, as_numpy(_times_of(request)))
        degrees = self._row_degrees(layer, BatchRows(nodes, times))
        return self.sampling.make_block(layer, sampled, local, as_tensor(nodes), degrees)

    def _join_rows(self, own: Ids, others: Ids) -> Ids:
        joined = self.sampling.pool.empty_array(len(own) + len(others), np.int64)
        joined[: len(own)] = own
        joined[len(own) :] = others
        return joined

    _times_of_others: Tensor | None = None
    """Times of the nodes that `_renumber_sources` has found to belong to others."""

    def _row_degrees(self, layer: int, rows: BatchRows) -> Tensor:
        return self.sampling.node_degrees(layer, rows.nodes)

    def _sample_hop(self, layer: int, own: BatchRows, epoch: int, step: int) -> SampledEdges:
        return self.sampling.sample_layer(layer, own.nodes, epoch, step, self._bits)

    def _number_seeds(self, seeds: Ids) -> BatchRows:
        # Stops at the first invalid seed, whose position it returns.
        numbered = renumber_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise invalid_seed_error(seeds[numbered], numbered, len(self._table))
        return BatchRows(seeds)

    def _renumber_sources(self, layer: int, sampled: SampledEdges, own: BatchRows) -> tuple[BatchRows, NewNodes, Rows]:
        """Number all sources; return own nodes, the new nodes by owner, and the number of each source."""
        known = len(own.nodes)
        nodes, local = self._assign_numbers(*self.sampling.locate_sources(layer, sampled), own.nodes)
        new = group_new_by_owner(nodes, known, as_numpy(self.owner), self.rank, self.size, self._table, self._base)
        return BatchRows(nodes[: new.num_own]), new, local

    def _renumber_requested(self, requested: RemoteRequest, own: BatchRows) -> tuple[BatchRows, Rows]:
        """Number the nodes that others request; return own nodes, and the number of each requested node."""
        nodes, rows = self._assign_numbers(np.arange(len(requested.nodes)), as_numpy(requested.nodes), own.nodes)
        return BatchRows(nodes), rows

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

    For each hop it sends a count of 8 bytes to each other worker, and 8 bytes for each node requested, 16 where
    it is drawn for a time (``ids``).

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
    nodes = comm.all_to_all(request.nodes, route, Kind.IDS)
    times = None if request.times is None else comm.all_to_all(request.times, route, Kind.IDS)
    return RemoteRequest(nodes.wait(), route.receive, None if times is None else times.wait())


class TemporalSplitSampler(SplitSampler):
    """Samples a worker's part of batches whose rows are pairs of a node and a time; the node's owner has the row."""

    def _start_numbers(self) -> None:
        # No table of all nodes: pairs have a table of their own.
        self._table, self._base = np.zeros(0, np.int32), 1
        self._numbers = PairNumbers(self.sampling)

    def _row_degrees(self, layer: int, rows: BatchRows) -> Tensor:
        return self._numbers.row_degrees(layer, rows)

    def _sample_hop(self, layer: int, own: BatchRows, epoch: int, step: int) -> SampledEdges:
        return self._numbers.sample_hop(layer, own, epoch, step)

    def _number_seeds(self, seeds: Ids) -> BatchRows:
        return self._numbers.start_batch(seeds)

    def _renumber_sources(self, layer: int, sampled: SampledEdges, own: BatchRows) -> tuple[BatchRows, NewNodes, Rows]:
        known = len(own.nodes)
        rows, local = self._numbers.number_sources(layer, sampled, own, own)
        found = to_pairs(rows.slice_from(known))
        owners = as_numpy(self.owner)[found.nodes]
        is_own = owners == self.rank
        # By owner, and in the order of the batch among the rows of one.
        others = np.flatnonzero(~is_own)
        others = others[np.argsort(owners[others], kind="stable")]
        remap = np.empty(len(owners), np.int32)
        remap[is_own] = known + np.arange(np.count_nonzero(is_own))
        remap[others] = -1 - np.arange(len(others))
        kept = np.concatenate([np.arange(known), known + np.flatnonzero(is_own)])
        # Rows of others are forgotten: a later hop may need them again.
        own = self._numbers.number_rows(PairRows(*(each[kept] for each in to_pairs(rows))))
        sizes = tuple(np.bincount(owners[others], minlength=self.size).tolist())
        self._times_of_others = as_tensor(found.times[others])
        return own, NewNodes(len(kept), found.nodes[others], sizes, remap), local

    def _renumber_requested(self, requested: RemoteRequest, own: BatchRows) -> tuple[BatchRows, Rows]:
        return self._numbers.add_rows(PairRows(as_numpy(requested.nodes), as_numpy(_times_of(requested))), own)


def _times_of(request: RemoteRequest) -> Tensor:
    assert request.times is not None
    return request.times
