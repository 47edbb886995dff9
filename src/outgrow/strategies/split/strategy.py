"""`split`: one mini-batch split over workers, so that nothing is loaded or computed twice.

Polisetty, Liu, Falus, Fung, Lim, Guan, Serafini: GSplit: scaling graph neural network training on large
graphs via split-parallelism, 2023. Every node of every layer of a batch belongs to the worker that owns it by
a fixed partition; that worker loads its features or caches them on its device. Hidden features are exchanged
along cut edges. Workers sample later batches, each for its own nodes, while they compute one.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_options
from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import validate_memory_limit
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.batches import BatchConfig, count_sampled_layer
from outgrow.engine.device_staging import Copied, copy_ahead
from outgrow.engine.features.cache import compute_hotness, hottest_owned, validate_cache
from outgrow.engine.features.remote import input_dtype
from outgrow.engine.features.store import FeatureRequest, FeatureStore
from outgrow.engine.link_batches import LinkBatch
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.prefetch import BackgroundWorker
from outgrow.engine.shard import PartitionShard, sampling_view
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.partitioner import Partitioner
from outgrow.graph.partition.presampled import PresampledMetis
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, layer_key
from outgrow.ops import memory_pool
from outgrow.ops.backend import num_threads
from outgrow.ops.kernels.numerics import is_half
from outgrow.ops.rng import fold_in
from outgrow.ops.sparse import index_rows
from outgrow.runtime.distributed.comm import MAX_BACKGROUND_COMMS, Comm
from outgrow.strategies.base import Execution, Problem, Step, Strategy, inference_after_batches
from outgrow.strategies.split.features import OwnFeatureStore
from outgrow.strategies.split.layers import (
    RowBytes,
    SplitBlock,
    forward_cooperatively,
    plan_partial_sums,
    supports_partial_sums,
)
from outgrow.strategies.split.presampling import (
    PRESAMPLING_EPOCH,
    make_partition_presampled_for_links,
    make_presampled_partition,
)
from outgrow.strategies.split.sampler import SampledSplitBlock, SplitSampler, sample_cooperatively

PRESAMPLED_PARTITION = PresampledMetis.name


@renamed_options(ahead="prefetch", partial="partial_sums")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class SplitParallel(Strategy):
    """Training on sampled mini-batches, each computed by all workers together.

    Attributes:
        partition: How nodes, and with them all work and all features, are assigned to workers: see ``outgrow
            partition``; or ``metis-access``, METIS balanced by seeds and by the in-edges of an epoch that is
            sampled first and not trained.
        sampling_threads: Threads of a worker that sample batches, each with those of the other workers that
            sample the same batch; None for half as many as compute.
        prefetch: Batches sampled, or being sampled, ahead of the one being computed.
        memory: Limit on the memory of a worker, such as ``"2GiB"``, on its GPU if it has one: fewer batches are ahead,
            features are read from their file in coalesced runs, and evaluations keep to what is left. None for no
            limit.
        cache: Size of a worker's cache on its device, for rows of its own nodes, as bytes (``"64MiB"``) or as
            a share of all rows of the graph (0.1).
        cache_by: Which rows are cached: those of the nodes with most out-edges (``"degree"``), or those
            requested most often in an epoch that is sampled first and not trained (``"presampling"``).
        partial_sums: Whether workers send partial sums instead of sources if these are fewer bytes.
    """

    name = "split"
    exact = True
    uses_minibatches = True
    reads_own_features = True
    draws_by_time = True

    partition: str = PRESAMPLED_PARTITION
    sampling_threads: int | None = None
    prefetch: int = 4
    memory: str | None = None
    cache: str | float = 0.0
    cache_by: str = "degree"
    partial_sums: bool = True

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, dict.fromkeys((PRESAMPLED_PARTITION, *WITHOUT_CHUNKS)))
        validate_cache(self.cache, "worker", self.cache_by)
        validate_positive(self.name, sampling_threads=self.sampling_threads, prefetch=self.prefetch)
        validate_memory_limit(self.memory)

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def partition_method(self, graph: Graph, model: Model, batches: BatchConfig) -> Partitioner:
        """Return the partitioner, which depends on the batches if it presamples."""
        if self.partition != PRESAMPLED_PARTITION:
            return super().partition_method(graph, model, batches)
        views = [sampling_view(graph.topology, layer) for layer in model.layers_list()]
        return make_presampled_partition(views, graph.split.train, batches)

    def partition_method_of_links(
        self, graph: Graph, model: Model, batches: BatchConfig, links: LinkOptions
    ) -> Partitioner:
        """Return the partitioner, which depends on the batches of links if it presamples."""
        if self.partition != PRESAMPLED_PARTITION:
            return super().partition_method_of_links(graph, model, batches, links)
        views = [sampling_view(graph.topology, layer) for layer in model.layers_list()]
        return make_partition_presampled_for_links(graph.topology, views, batches, links)

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem."""
        return _SplitExecution(problem, self)


class _SplitBatch(NamedTuple):
    """A worker's part of one step.

    Attributes:
        step: Number of the step in the epoch.
        seeds: ``[n]`` int64, those that the worker owns.
        num_seeds: Number of seeds over all workers.
        blocks: The worker's part of each layer.
        request: Request for the features of its nodes.
        positions: ``[m]`` int64, which of the requested rows each own row of the first layer has; None for all in
            order.
        links: The links whose seeds these are; None for a batch of nodes.
        rows: ``[n, D]`` features of own nodes of the first layer; they and the blocks are on the device. None before.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    blocks: list[SplitBlock]
    request: FeatureRequest
    positions: Tensor | None
    links: LinkBatch | None
    rows: Features | None = None


class _SamplingThread(NamedTuple):
    """What one thread samples with.

    Attributes:
        sampler: Its sampler.
        comm: Its communicator.
        lock: Held as long as the thread runs: that of an epoch that was closed early may still be sampling when the
            next epoch starts its own.
    """

    sampler: SplitSampler
    comm: Comm
    lock: threading.Lock


class _SplitExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: SplitParallel) -> None:
        self.problem = problem
        self.shard = problem.shard
        self.comm = problem.shard.comm
        self.prefetch = options.prefetch
        self.layers = problem.model.layers_list()
        self.partial_sums = options.partial_sums
        layers = self.layers
        topology = self.shard.topology
        sampler = SplitSampler(
            [sampling_view(topology, layer) for layer in layers],
            problem.batches.fanout_per_hop(len(layers)),
            problem.seed,
            owner=self.shard.owner if isinstance(self.shard, PartitionShard) else None,
            rank=self.comm.rank,
            size=self.comm.size,
            **problem.batches.sampling_options,
        )
        sampler.sampling.set_memory_limit(problem.memory_limit)
        first, *others = self.comm.background_comms(self._num_sampling_threads(options.sampling_threads))
        self.sampling_threads = [
            _SamplingThread(sampler, first, threading.Lock()),
            *(_SamplingThread(sampler.copy_for_thread(), comm, threading.Lock()) for comm in others),
        ]
        kept = self._cached_nodes(options) if options.cache else None
        given = input_dtype(problem.model, problem.features)
        self.feature_store: FeatureStore = OwnFeatureStore(self.comm, problem.feature_rows, given, kept)
        self.costs = [_row_cost(problem.model, index, given) for index in range(len(layers))]

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        batches_of_epoch = self.problem.batches_of_epoch(epoch)
        self.problem.reserve_memory_of_batches()

        timeline = self.comm.timeline

        def sample_step(step: int, thread: _SamplingThread) -> _SplitBatch:
            batch = batches_of_epoch[step]
            links = batch if isinstance(batch, LinkBatch) else None
            own_seeds = self.problem.select_seeds(batch)
            with timeline.span("draw"):
                hops = sample_cooperatively(thread.sampler, thread.comm, own_seeds, epoch, step)
                if links is not None and links.excluded is not None:
                    views = thread.sampler.sampling.views
                    hops = [hop.without_edges(links.excluded, view) for hop, view in zip(hops, views, strict=True)]
            with timeline.span("gather"):
                nodes, positions = hops[0].own_nodes, None
                if self.problem.batches.is_temporal:
                    # Several rows of a node, each for another time, have the same features.
                    nodes, positions = torch.unique(nodes, return_inverse=True)
                request = self.feature_store.prepare_request(nodes)
            blocks = [self._plan_block(*each, thread.comm) for each in zip(self.layers, hops, self.costs, strict=True)]
            return _SplitBatch(step, own_seeds, len(batch), blocks, request, positions, links)

        # Sampling communicates, so all workers must sample a batch in the thread of the same number, in order.
        count = len(self.sampling_threads)
        with ExitStack() as stack:
            samplers = [
                stack.enter_context(
                    closing(
                        BackgroundWorker(
                            partial(sample_step, thread=thread),
                            range(first + number, len(batches_of_epoch), count),
                            max_ahead=-(-(self.prefetch - number) // count),
                            lock=thread.lock,
                            name="outgrow-ahead" if count == 1 else f"outgrow-ahead-{number + 1}",
                        )
                    )
                )
                for number, thread in enumerate(self.sampling_threads)
            ]
            batches = (samplers[place % count].result() for place in range(len(batches_of_epoch) - first))
            ready = stack.enter_context(closing(self._copy_ahead(batches)))
            for batch in timeline.record_waits("wait for batches", ready):
                yield self._train_step(epoch, batch)

    def _copy_ahead(self, batches: Generator[_SplitBatch]) -> Generator[_SplitBatch]:
        """Yield batches on the device, each copied while the one before is computed; on a CPU as they are."""

        def copy(batch: _SplitBatch) -> Copied[_SplitBatch]:
            moved = self._move_to_device(batch)
            return moved, (moved.rows, moved.blocks)

        yield from batches if self.comm.device.type == "cpu" else copy_ahead(batches, copy, self.comm)

    def _num_sampling_threads(self, threads: int | None) -> int:
        """Return the number of threads that sample, equal on all workers."""
        wanted: list[int] = self.comm.all_gather_object(threads or max(1, num_threads() // 2))
        return min(*wanted, self.prefetch, MAX_BACKGROUND_COMMS)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return inference_after_batches(self.problem)

    def close(self) -> None:
        memory_pool.release_idle_memory()

    def _move_to_device(self, batch: _SplitBatch) -> _SplitBatch:
        """Return a batch with the features of its nodes; these and its blocks are on the device."""
        device = self.comm.device
        rows = self.feature_store.send_request(batch.request).wait()
        if batch.positions is not None:
            rows = index_rows(rows, batch.positions.to(device))
        return batch._replace(blocks=[block.to(device) for block in batch.blocks], rows=rows)

    def _train_step(self, epoch: int, batch: _SplitBatch) -> Step:
        problem = self.problem
        comm = self.comm
        with comm.timeline.span("forward"):
            moved = batch if batch.rows is not None else self._move_to_device(batch)
            logits = self._compute_logits(moved, fold_in(problem.seed, epoch, batch.step))
            # Its features may be freed before the backward pass.
            del moved
            if batch.links is None:
                loss = problem.batch_loss(logits, problem.own_labels(batch.seeds), batch.num_seeds)
            else:
                loss = problem.link_loss(logits, batch.links)
        with comm.timeline.span("backward"):
            torch.autograd.backward(loss)
        comm.all_reduce_gradients(problem.model)
        for hop in batch.blocks:
            count_sampled_layer(comm.ledger, hop.sampled.block.edges)
            comm.ledger.add_count("local_edges", hop.sampled.num_local_edges)
            comm.ledger.add_count("remote_rows", hop.remote_rows)
        return Step(loss=comm.all_reduce(loss.detach().double().cpu()).item(), num_seeds=batch.num_seeds)

    def _compute_logits(self, batch: _SplitBatch, key: int) -> Tensor:
        """Return logits of the worker's own seeds, ``[n, C]``. All workers together."""
        model = self.problem.model
        assert batch.rows is not None
        x = model.encode_input(batch.rows, batch.blocks[0].sampled.own_nodes, key)
        for index, (layer, block) in enumerate(zip(self.layers, batch.blocks, strict=True)):
            kind = Kind.FEATURES if index == 0 and model.source_is_features else Kind.ACTIVATIONS
            x = forward_cooperatively(layer, block, x, layer_key(key, index), self.comm, kind)
        assert isinstance(x, Tensor)
        return x

    def _plan_block(self, layer: Layer, sampled: SampledSplitBlock, cost: RowBytes, comm: Comm) -> SplitBlock:
        """Plan the exchange of a layer. All workers together, in the same order."""
        # Sums of half-precision rows are wider than the rows, but `RowBytes` counts one type for both.
        if self.comm.size == 1 or not supports_partial_sums(layer) or is_half(cost.dtype):
            return SplitBlock(sampled)
        return SplitBlock(sampled, plan_partial_sums(layer, sampled, cost, comm, partial_sums=self.partial_sums))

    def _cached_nodes(self, options: SplitParallel) -> Tensor:
        """Return the nodes whose rows are cached on the device. All workers together."""
        hotness = compute_hotness(options.cache_by, self.shard.topology, self._presample_nodes)
        return hottest_owned(hotness, self.shard.owned_nodes, options.cache, self.problem.features)

    def _presample_nodes(self) -> Iterator[Tensor]:
        """Yield the nodes whose rows each batch of an untrained epoch requests. All workers together."""
        thread = self.sampling_threads[0]
        for step, batch in enumerate(self.problem.batches_of_epoch(PRESAMPLING_EPOCH)):
            own_seeds = self.problem.select_seeds(batch)
            yield sample_cooperatively(thread.sampler, thread.comm, own_seeds, PRESAMPLING_EPOCH, step)[0].own_nodes


def _row_cost(model: Model, index: int, feature_dtype: torch.dtype) -> RowBytes:
    """Return the bytes of a row that layer ``index`` sends, for features of type ``feature_dtype``."""
    widths = model.layers_list()[index].spec
    raw = index == 0 and model.source_is_features
    dtype = feature_dtype if raw else model.dtype
    return RowBytes(dtype=dtype, columns=widths.source[0] * widths.source[1], has_gradient=not raw)
