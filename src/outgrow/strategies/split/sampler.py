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
from typing import NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.batches import SamplingOptions
from outgrow.engine.excluded_edges import ExcludedEdges
from outgrow.graph.sampling.batch_numbers import BatchRows, SplitRows, make_batch_numbers
from outgrow.graph.sampling.edge_sampler import Fanout, SampledEdges
from outgrow.graph.sampling.layer_sampling import LayerSampling
from outgrow.graph.topology import GraphView
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.sampling.renumber import map_sources
from outgrow.ops.sampling.uniform import Ids
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

    @staticmethod
    def of_rows(split: SplitRows) -> RemoteRequest:
        """Return the request for the rows of others."""
        nodes, times = split.others
        return RemoteRequest(as_tensor(nodes), split.sizes, None if times is None else as_tensor(times))

    @property
    def rows(self) -> BatchRows:
        """The rows."""
        return BatchRows(as_numpy(self.nodes), None if self.times is None else as_numpy(self.times))


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

    def without_edges(self, excluded: ExcludedEdges, view: GraphView) -> SampledSplitBlock:
        """Return the block without some edges; rows are exchanged as before. ``view`` is the graph of the layer."""
        block = excluded.remove_from(self.block, view)
        return self._replace(block=block, num_local_edges=int((block.edges.indices < self.num_owned).sum()))

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
        **options: See `LayerSampling`.

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
        **options: Unpack[SamplingOptions],
    ) -> None:
        self.sampling = LayerSampling(views, fanout, seed, **options)
        self.owner = torch.zeros(self.sampling.num_nodes, dtype=torch.int8) if owner is None else owner
        self.rank = rank
        self.size = size
        self._numbers = make_batch_numbers(self.sampling)

    def copy_for_thread(self) -> SplitSampler:
        """Return a sampler of the same batches for another thread: what it reads of the graph is shared."""
        other = copy.copy(self)
        other._numbers = make_batch_numbers(self.sampling)
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
        numbers, owner = self._numbers, as_numpy(self.owner)
        try:
            own = numbers.start_batch(as_numpy(seeds))
            found = list[SampledSplitBlock]()
            for layer in self.sampling.hops_from_seeds:
                chosen = numbers.sample_hop(layer, own, epoch, step)
                first = len(own.nodes)
                # All sources are numbered as by a single worker; of those of others the numbers are forgotten.
                rows, local = numbers.number_sources(layer, chosen, own, own)
                split = numbers.split_by_owner(rows, first, owner, self.rank, self.size)
                request = RemoteRequest.of_rows(split)
                requested = yield request
                # Nodes that others request join the own ones, as they are destinations of the next hop;
                # sources of other workers therefore follow them, and only now the edges can be renumbered.
                assert (owner[as_numpy(requested.nodes)] == self.rank).all()
                own, wanted = numbers.add_rows(requested.rows, split.own)
                num_own = len(own.nodes)
                num_local = map_sources(local, first, num_own, split.remap)
                block = self._make_block(layer, chosen, local, own, split.others)
                found.append(
                    SampledSplitBlock(
                        block, num_own, request.sizes, as_tensor(wanted).long(), requested.sizes, num_local
                    )
                )
        except BaseException:  # includes GeneratorExit, if the exchange ends early
            numbers.forget_all()
            raise
        numbers.end_batch(own)
        # Hops start at the seeds, which are the destinations of the last layer.
        return found[::-1]

    def _make_block(
        self, layer: int, sampled: SampledEdges, local: NDArray[np.int32], own: BatchRows, others: BatchRows
    ) -> Block:
        nodes = self._join_rows(own.nodes, others.nodes)
        times = None if own.times is None or others.times is None else self._join_rows(own.times, others.times)
        degrees = self._numbers.row_degrees(layer, BatchRows(nodes, times))
        return self.sampling.make_block(layer, sampled, local, as_tensor(nodes), degrees)

    def _join_rows(self, own: Ids, others: Ids) -> Ids:
        joined = self.sampling.pool.empty_array(len(own) + len(others), np.int64)
        joined[: len(own)] = own
        joined[len(own) :] = others
        return joined


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
