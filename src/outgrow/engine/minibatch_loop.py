"""Training on sampled neighbourhoods: each worker samples around its seeds, fetches features, and computes.

Sampling and gathering of later batches overlap with the computation, and so do the exchange of rows with workers of
other hosts and copies to a GPU, each by a thread of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.deprecation import renamed_arguments, renamed_members
from outgrow.engine.batches import BatchConfig, count_sampled_layer
from outgrow.engine.device_staging import Copied, copy_ahead
from outgrow.engine.embeddings.exchange import complete_embedding_gradients, fetch_embedding_rows
from outgrow.engine.features.assembly import AwaitableFeatures
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.features.store import FeatureRequest
from outgrow.engine.link_batches import Batch, LinkBatch, empty_rows
from outgrow.engine.model_migration import MicroBatchPlan, send_model
from outgrow.engine.prefetch import BackgroundWorker, prefetch_results
from outgrow.engine.shard import sampling_view
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings
from outgrow.ops.backend import num_threads
from outgrow.ops.rng import fold_in
from outgrow.ops.sparse import index_rows
from outgrow.runtime.distributed.comm import Comm

EXCHANGED_AHEAD = 3
"""Batches beside those being sampled while requests are exchanged: one to be sent, one on its way, one received."""


@renamed_members(of="from_options")
class PrefetchConfig(NamedTuple):
    """How far sampling runs ahead of the computation.

    Attributes:
        threads: Threads of a worker that draw batches.
        batches: Batches sampled, or being sampled, ahead of the one being computed.
    """

    threads: int
    batches: int

    @staticmethod
    @renamed_arguments(ahead="batches")
    def from_options(threads: int | None, batches: int) -> PrefetchConfig:
        """Return the configuration; ``threads`` of None stands for half as many as compute."""
        return PrefetchConfig(threads or max(1, num_threads() // 2), batches)


def make_sampler(
    topology: Topology, model: Model, batches: BatchConfig, seed: int, memory_limit: int | None = None
) -> NeighborSampler:
    """Return the sampler of a model's batches; ``memory_limit`` in bytes, of the worker, None for what there is."""
    layers = model.layers_list()
    views = [sampling_view(topology, layer) for layer in layers]
    return NeighborSampler(
        views, batches.fanout_per_hop(len(layers)), seed, memory_limit=memory_limit, **batches.sampling_options
    )


class MicroBatch(NamedTuple):
    """A worker's part of one time step of a batch.

    Attributes:
        step: Number of the batch in the epoch.
        seeds: ``[n]`` int64, the worker's seeds in this time step.
        num_seeds: Number of seeds of the batch, over all workers and time steps.
        blocks: Their sampled neighbourhood, a block for each layer.
        request: Features to request now; None if an earlier time step has fetched them.
        row_positions: ``[m]`` int64, which of the fetched rows the neighbourhood needs; None for all in
            order.
        hop: By how many workers models move before this time step; 0 for the first of a batch.
        is_last: Whether it is the last of its batch.
        batch_nodes: ``[m]`` int64, the source nodes of all time steps of the batch, in its first one if there are
            vectors of nodes to fetch; else None.
        links: The links whose seeds these are; None for a batch of nodes.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    blocks: list[Block]
    request: FeatureRequest | None
    row_positions: Tensor | None
    hop: int
    is_last: bool
    batch_nodes: Tensor | None
    links: LinkBatch | None


Loss = Callable[[Tensor, MicroBatch], Tensor]
"""Returns the worker's share of the loss, from logits ``[n, C]`` of the seeds of a micro-batch."""
_FetchedMicroBatch = tuple[MicroBatch, AwaitableFeatures | None]
"""A micro-batch with its rows on the way; None if an earlier time step has them."""


class _RowsOnDevice(NamedTuple):
    """Rows that are there."""

    rows: Features

    def wait(self) -> Features:
        return self.rows


class MiniBatchLoop:
    """Mini-batch epochs of one worker. Final.

    Args:
        model: The model; gradients are left in its parameters.
        comm: Communicator of the workers.
        sampler: Samples neighbourhoods.
        feature_store: Fetches features.
        loss: See `Loss`.
        prefetch: How far sampling runs ahead.
        gather_once: Whether the rows of all time steps of a batch are fetched before the first one, each row
            once; else each time step fetches its own.
    """

    def __init__(
        self,
        model: Model,
        comm: Comm,
        sampler: NeighborSampler,
        feature_store: RemoteFeatureStore,
        loss: Loss,
        *,
        prefetch: PrefetchConfig,
        gather_once: bool = True,
    ) -> None:
        self.model = model
        self.comm = comm
        self.sampler = sampler
        self.feature_store = feature_store
        self.loss = loss
        self.prefetch = prefetch
        self.gather_once = gather_once
        self.has_embeddings = bool(find_embeddings(model))
        # The thread of an epoch that was closed early may still be exchanging when the next epoch starts its own.
        self._exchange_lock = threading.Lock()

    def steps(
        self, epoch: int, batches: Sequence[Batch], plan_batch: Callable[[Batch], MicroBatchPlan], first: int = 0
    ) -> Generator[tuple[float, int]]:
        """Yield the loss and the number of seeds or links, over all workers, of each batch. All workers together.

        Args:
            epoch: Number of the epoch; with the sampler's seed and the batch number it determines all random
                draws.
            batches: The batches.
            plan_batch: Returns the worker's part of a batch; with equally many time steps on all workers, and with one
                for links.
            first: Number of the first batch to train on.
        """

        def sample_step(step: int) -> list[MicroBatch]:
            batch = batches[step]
            return self._sample_batch(epoch, step, plan_batch(batch), batch)

        with closing(self._copy_ahead(self._fetch_ahead(sample_step, range(first, len(batches))))) as arriving:
            total = torch.zeros((), dtype=torch.float64)
            timeline = self.comm.timeline
            ready = timeline.record_waits("wait for batches", arriving)
            fetched: Features | None = None
            for micro_batch, pending in ready:
                # Later time steps of a batch read the rows that its first one has fetched.
                if pending is not None:
                    fetched = pending.wait()
                assert fetched is not None
                if micro_batch.batch_nodes is not None:
                    # Not ahead, as features are: the step before has changed the rows.
                    fetch_embedding_rows(self.model, micro_batch.batch_nodes)
                if micro_batch.hop:
                    with timeline.span("models travel"):
                        send_model(self.model, self.comm, micro_batch.hop)
                total += self._train_micro_batch(epoch, micro_batch, fetched)
                # Gradients of all models meet only here: until the batch ends, all hold the same parameters.
                if micro_batch.is_last:
                    # Freed before the next batch is waited for, whose rows may need the memory.
                    fetched = None
                    self.comm.all_reduce_gradients(self.model)
                    complete_embedding_gradients(self.model)
                    yield self.comm.all_reduce(total).item(), micro_batch.num_seeds
                    total = torch.zeros((), dtype=torch.float64)

    def _sample_batch(self, epoch: int, step: int, plan: MicroBatchPlan, batch: Batch) -> list[MicroBatch]:
        """Sample a batch and gather local features; runs in any thread."""
        timeline = self.comm.timeline
        links = batch if isinstance(batch, LinkBatch) else None
        with timeline.span("draw"):
            blocks = [self.sampler.sample_blocks(seeds, epoch, step) for seeds in plan.groups]
            if links is not None and links.excluded is not None:
                blocks = [links.excluded.remove_from_all(each, self.sampler.sampling.views) for each in blocks]
        nodes = [each[0].src_nodes for each in blocks]
        with timeline.span("gather"):
            requests, positions = self._request_rows(nodes)
        hops = (0, *plan.hops)
        last = len(nodes) - 1
        of_batch = [torch.cat(nodes) if self.has_embeddings else None, *[None] * last]
        parts = zip(plan.groups, blocks, requests, positions, hops, of_batch, strict=True)
        return [
            MicroBatch(step, seeds, len(batch), sampled, request, rows, hop, index == last, each, links)
            for index, (seeds, sampled, request, rows, hop, each) in enumerate(parts)
        ]

    def _request_rows(self, nodes: list[Tensor]) -> tuple[list[FeatureRequest | None], list[Tensor | None]]:
        if len(nodes) == 1 or not self.gather_once:
            parts = [self._distinct_rows(each) for each in nodes]
            return [self.feature_store.prepare_request(each) for each, _ in parts], [rows for _, rows in parts]
        # One request before the first time step: a node that several of them need is fetched once.
        distinct, positions = torch.unique(torch.cat(nodes), return_inverse=True)
        later: list[FeatureRequest | None] = [None] * (len(nodes) - 1)
        return [self.feature_store.prepare_request(distinct), *later], [
            *torch.split(positions, [len(each) for each in nodes])
        ]

    def _distinct_rows(self, nodes: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the nodes to fetch, and which of them each row is; None for all in order."""
        # A node may have several rows only where rows are drawn for times.
        return torch.unique(nodes, return_inverse=True) if self.sampler.sampling.is_temporal else (nodes, None)

    def _fetch_ahead(
        self, sample_step: Callable[[int], list[MicroBatch]], steps: Sequence[int]
    ) -> Generator[_FetchedMicroBatch]:
        """Yield the micro-batches of some steps, sampled in threads, with their rows on the way."""
        exchanges = self.feature_store.exchanges_rows
        in_flight = EXCHANGED_AHEAD if exchanges else 0
        sampled = prefetch_results(
            sample_step, steps, threads=self.prefetch.threads, max_ahead=max(0, self.prefetch.batches - in_flight)
        )
        if not exchanges:
            with closing(sampled):
                for micro_batch in _flatten(sampled):
                    request = micro_batch.request
                    yield micro_batch, None if request is None else self.feature_store.send_request(request)
            return
        # One thread, not a pool: all workers must send the requests of batches in the same order.
        worker = BackgroundWorker(
            _identity, self._exchange_requests(sampled), lock=self._exchange_lock, name="outgrow-exchange"
        )
        with closing(worker):
            yield from worker

    def _exchange_requests(self, sampled: Generator[list[MicroBatch]]) -> Iterator[_FetchedMicroBatch]:
        """Yield micro-batches whose requests were sent; in the thread that exchanges them."""
        waiting = deque[MicroBatch]()

        def note_requests() -> Iterator[FeatureRequest]:
            for micro_batch in _flatten(sampled):
                waiting.append(micro_batch)
                if micro_batch.request is not None:
                    yield micro_batch.request

        # Ended here, in the thread that it runs in.
        with closing(sampled), closing(self.feature_store.send_requests(note_requests())) as answered:
            for pending in answered:
                yield waiting.popleft(), pending
                # Time steps without a request of their own follow the one that asked for all.
                while waiting and waiting[0].request is None:
                    yield waiting.popleft(), None

    def _copy_ahead(self, arriving: Generator[_FetchedMicroBatch]) -> Generator[_FetchedMicroBatch]:
        """Yield micro-batches on the device, each copied while the one before is computed; on a CPU as they are."""
        fetched: Features | None = None

        def copy(arrived: _FetchedMicroBatch) -> Copied[_FetchedMicroBatch]:
            nonlocal fetched
            micro_batch, pending = arrived
            if pending is not None:
                fetched = pending.wait()
            assert fetched is not None
            rows, positions = fetched, micro_batch.row_positions
            if micro_batch.is_last:
                fetched = None
            if not len(micro_batch.seeds):
                return (micro_batch, _RowsOnDevice(rows)), ()
            blocks = [block.to(self.comm.device) for block in micro_batch.blocks]
            rows = move_features_to_device(rows if positions is None else index_rows(rows, positions), self.comm)
            moved = micro_batch._replace(blocks=blocks, row_positions=None)
            return (moved, _RowsOnDevice(rows)), (*blocks, rows)

        ahead = self.comm.device.type != "cpu" and self.prefetch.batches > 0
        yield from copy_ahead(arriving, copy, self.comm) if ahead else arriving

    def _train_micro_batch(self, epoch: int, micro_batch: MicroBatch, fetched: Features) -> Tensor:
        """Return the worker's share of the loss, from the rows fetched for the batch; add to the gradients."""
        comm = self.comm
        loss = torch.zeros((), dtype=torch.float64)
        # Without seeds a worker computes nothing, but still takes part in all exchanges: of links in those of the loss.
        if len(micro_batch.seeds) or micro_batch.links is not None:
            with comm.timeline.span("forward"):
                share = self.loss(self._compute_logits(epoch, micro_batch, fetched), micro_batch)
            with comm.timeline.span("backward"):
                torch.autograd.backward(share)
            loss += share.detach().cpu()
        # Counted without seeds as well, so that ledgers of all workers have the same entries.
        for block in micro_batch.blocks:
            count_sampled_layer(comm.ledger, block.edges)
        return loss

    def _compute_logits(self, epoch: int, micro_batch: MicroBatch, fetched: Features) -> Tensor:
        """Return the output for the seeds of a micro-batch, ``[n, C]``."""
        comm = self.comm
        if not len(micro_batch.seeds):
            return empty_rows(self.model, comm.device)
        blocks = [block.to(comm.device) for block in micro_batch.blocks]
        positions = micro_batch.row_positions
        x = fetched if positions is None else index_rows(fetched, positions)
        return self.model(  # type: ignore[no-any-return]
            blocks,
            move_features_to_device(x, comm),
            fold_in(self.sampler.sampling.seed, epoch, micro_batch.step),
            # No other time step reads these rows: they are copies, or fetched for this one.
            overwrite_input=True,
        )


def _flatten(batches: Iterable[list[MicroBatch]]) -> Iterator[MicroBatch]:
    return (micro_batch for batch in batches for micro_batch in batch)


def _identity(fetched: _FetchedMicroBatch) -> _FetchedMicroBatch:
    return fetched
