"""The interface of strategies, and the executions that several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from outgrow.core.deprecation import renamed_members, renamed_names, renamed_options
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.full_graph import FullGraphEpoch
from outgrow.engine.inference import infer_shard
from outgrow.engine.link_batches import Batch
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.minibatch_loop import MicroBatch, MiniBatchLoop, PrefetchConfig
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.engine.problem import Problem as Problem
from outgrow.engine.shard import GraphShard, make_shard, model_topology
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.partitioner import Partitioner
from outgrow.graph.sampling.layer_sampling import require_times_of
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.sampling.temporal_sampler import make_edge_sampler
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.process_memory import trim_memory


@dataclass(frozen=True, kw_only=True)
class Step:
    """A completed gradient: every parameter's ``.grad`` holds the global gradient for one optimizer step.

    Attributes:
        loss: Loss of the step over all workers.
        num_seeds: Number of nodes or links that the loss is the mean of; 0 if there are none, and no gradient.
    """

    loss: float
    num_seeds: int


class Execution(Protocol):
    """The execution of a strategy on a problem."""

    @property
    def in_memory(self) -> bool:
        """Whether rows of all own nodes fit into memory."""

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Yield the steps of an epoch from step ``first`` on; the trainer updates parameters at each yield.

        Closing the generator early stops its background work.
        """

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield logits of the own nodes, in memory, without random draws and gradients.

        They are computed with the current parameters. All workers call it together, between epochs, and
        exhaust it.

        Yields:
            The first row, and the logits ``[n, C]``, of pieces that cover all own nodes, in order where
            ``in_memory``. At least one piece, which has no rows on a worker without nodes.
        """

    def close(self) -> None:
        """Release what the execution holds."""


def full_inference(problem: Problem) -> Iterator[tuple[int, Tensor]]:
    """Yield the logits of all own nodes as one piece, with the rows of whole layers in memory."""
    yield 0, infer_shard(problem.model, problem.shard, problem.input).cpu()


def inference_after_batches(problem: Problem) -> Iterator[tuple[int, Tensor]]:
    """Yield `full_inference` after releasing the memory of batches: both together could exceed it."""
    memory_pool.release_idle_memory()
    trim_memory()
    yield from full_inference(problem)
    problem.release_device_input()


class FullGraphExecution:
    """Training on all nodes at once, with the rows of all layers in memory. Final.

    Args:
        problem: The training problem.
        overlap: Whether to aggregate a worker's own rows while those of others are received.

    Attributes:
        on_close: What ends when the execution is closed.
    """

    in_memory = True

    def __init__(self, problem: Problem, *, overlap: bool = True) -> None:
        self.problem = problem
        self.on_close = ExitStack()
        self.epoch_pass = FullGraphEpoch(
            problem.model,
            problem.shard,
            problem.input,
            problem.objective,
            problem.seed,
            overlap=overlap,
            hides_edges=problem.hides_edges,
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Yield the steps of a full-graph epoch: one, or as many as the links are trained on in."""
        for number in range(first, self.problem.num_steps):
            loss, num_targets = self.epoch_pass.run_step(epoch, number)
            yield Step(loss=loss, num_seeds=num_targets)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of all own nodes as one piece."""
        return full_inference(self.problem)

    def close(self) -> None:
        """Release what the execution holds."""
        self.epoch_pass.close()
        self.on_close.close()


@renamed_options(tour="plan_batch", ahead="prefetch", rows="feature_store")
class MiniBatchExecution:
    """Training on sampled mini-batches, where each worker computes its share of the seeds alone. Final.

    Args:
        problem: The training problem.
        sampler: Samples neighbourhoods.
        feature_store: Fetches features.
        plan_batch: Returns the worker's part of a batch: see `MiniBatchLoop.steps`.
        labels: Returns the labels ``[n, ...]`` of the seeds ``[n]`` that it computes.
        prefetch: How far sampling runs ahead.
        gather_once: See `MiniBatchLoop`.
        batches: Seeds of each step of an epoch; None for those of the problem.
    """

    in_memory = True

    def __init__(
        self,
        problem: Problem,
        sampler: NeighborSampler,
        feature_store: RemoteFeatureStore,
        plan_batch: Callable[[Batch], MicroBatchPlan],
        *,
        labels: Callable[[Tensor], Tensor],
        prefetch: PrefetchConfig,
        gather_once: bool = True,
        batches: Callable[[int], Sequence[Batch]] | None = None,
    ) -> None:
        self.problem = problem
        self.plan_batch = plan_batch
        self.labels = labels
        self.batches = batches
        self.loop = MiniBatchLoop(
            problem.model,
            problem.shard.comm,
            sampler,
            feature_store,
            self._batch_loss,
            prefetch=prefetch,
            gather_once=gather_once,
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Yield the steps of an epoch; an early close ends its threads."""
        self.problem.reserve_memory_of_batches()
        batches = (self.batches or self.problem.batches_of_epoch)(epoch)
        with closing(self.loop.steps(epoch, batches, self.plan_batch, first)) as steps:
            for loss, num_seeds in steps:
                yield Step(loss=loss, num_seeds=num_seeds)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of all own nodes as one piece."""
        return inference_after_batches(self.problem)

    def close(self) -> None:
        """Release what the execution holds."""
        memory_pool.release_idle_memory()

    def _batch_loss(self, logits: Tensor, batch: MicroBatch) -> Tensor:
        if batch.links is not None:
            return self.problem.link_loss(logits, batch.links)
        return self.problem.batch_loss(logits, self.labels(batch.seeds), batch.num_seeds)


@renamed_members(
    takes_batches="uses_minibatches",
    share="shard_graph",
    method="partition_method",
    home="parameter_device",
    require="validate_graph",
    require_model="validate_model",
)
class Strategy(ABC):
    """A way to train. Its options are the parameters of its constructor.

    Attributes:
        name: Name on the command line.
        exact: Whether the gradient equals the reference's up to floating-point reassociation, whatever its options.
        uses_minibatches: Whether steps see samples of the graph, so that nothing computed from it can be cached.
        draws_by_time: Whether it can sample in-edges before the time of a seed: each row of its batches is then one of
            a node at a time, and nothing of a node is used at another time.
        reads_own_features: Whether a worker reads features of its own nodes alone: it can train on parts of a graph.
        fewest_prefetched: Smallest number of batches that it may sample ahead, if it has such an option.
        partition: How nodes are assigned to workers; by default ranges of nodes with equally many in-edges.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    uses_minibatches: ClassVar[bool] = False
    draws_by_time: ClassVar[bool] = False
    reads_own_features: ClassVar[bool] = False
    fewest_prefetched: ClassVar[int] = 1
    partition: str = "range-edges"

    def shard_graph(
        self,
        graph: Graph,
        comm: Comm,
        model: Model,
        batches: BatchConfig = FULL_GRAPH,
        *,
        links: LinkOptions | None = None,
    ) -> GraphShard:
        """Return a worker's shard of a graph: the nodes that it owns by the partition.

        Args:
            graph: The graph.
            comm: Communicator of the workers.
            model: The model to train.
            batches: Configuration of mini-batches.
            links: How links are trained on in mini-batches; None for nodes, and for the whole graph.
        """
        if links is None:
            method = self.partition_method(graph, model, batches)
        else:
            method = self.partition_method_of_links(graph, model, batches, links)
        looped, topology = model.layers_list()[0].spec.self_loops, model_topology(graph.topology, model)
        return make_shard(topology, comm, method, graph.store, self_loops=looped, part=graph.part)

    def partition_method(self, graph: Graph, model: Model, batches: BatchConfig) -> Partitioner:
        """Return the partitioner; by default the one that ``partition`` names, for any model."""
        method = WITHOUT_CHUNKS[self.partition]
        # A worker with more seeds has more work in each batch; on whole graphs all nodes cost alike.
        return method.with_seeds(graph.split.train) if self.uses_minibatches else method

    def partition_method_of_links(
        self, graph: Graph, model: Model, batches: BatchConfig, links: LinkOptions
    ) -> Partitioner:
        """Return the partitioner for mini-batches of links; by default the one that ``partition`` names."""
        return WITHOUT_CHUNKS[self.partition]

    def options(self) -> dict[str, object]:
        """Return the options by name; by default there are none."""
        return {}

    @property
    def memory_limit(self) -> int | None:
        """Limit on the bytes in the DEVICE tier of a worker, its option ``memory``; None for no limit."""
        limit = self.options().get("memory")
        return None if limit is None else parse_bytes(str(limit))

    def computes_read_rows(self, problem: Problem) -> bool:
        """Whether steps compute the rows of the nodes that they ask about, and no others; by default batches do."""
        return self.uses_minibatches

    def is_exact(self, batches: BatchConfig) -> bool:
        """Whether the gradient equals the reference's with these options and batches."""
        return self.exact

    def is_exact_without_edges(self, batches: BatchConfig) -> bool:
        """Return `is_exact` where each batch excludes other edges."""
        return self.is_exact(batches)

    def parameter_device(self, device: torch.device) -> torch.device:
        """Return the device of the parameters, and of the rows computed, for a worker with this device."""
        return device

    def validate_graph(self, graph: Graph, batches: BatchConfig) -> None:
        """Check that it can train on a graph in these batches.

        Raises:
            InputError: It cannot, for example because weights or relations that the fan-outs need are
                missing.
        """
        if batches.is_temporal:
            self._require_temporal(graph)
        if self.uses_minibatches:
            # The constructor makes the checks; nothing is sampled here.
            for hop in {*(batches.fanout or (-1,))}:
                make_edge_sampler(graph.topology, hop, **batches.sampling_options)
        elif not batches.is_full_graph:
            raise InputError(
                f"strategy {self.name} trains on all nodes and neighbours at once",
                needed="no batch_size and no fanout, and nothing that says how to sample",
                got=f"batch_size {batches.size}, {batches.describe_sampling()}",
                repair="leave them out, or choose strategy sampled",
            )

    def _require_temporal(self, graph: Graph) -> None:
        if not self.draws_by_time:
            raise InputError(
                f"strategy {self.name} cannot train on temporal draws",
                needed="a strategy that computes a node anew for each time: sampled, migrate or split",
                got="strategy orchestrate, which reuses the rows of nodes"
                if self.uses_minibatches
                else f"strategy {self.name}, which computes each node once for all times",
                repair="choose strategy sampled, or leave temporal_strategy out",
            )
        for nodes in (graph.split.train, graph.split.val, graph.split.test):
            require_times_of(graph.topology, nodes)

    def validate_model(self, model: Model) -> None:  # noqa: B027 - most strategies refuse none
        """Check that it can train a model; by default any."""

    def validate_workers(self, num_workers: int, num_hosts: int) -> None:  # noqa: B027 - most strategies refuse none
        """Check that its options have a use on so many workers and hosts; by default they have.

        Raises:
            InputError: An option would be ignored.
        """

    @abstractmethod
    def prepare(self, problem: Problem) -> Execution:
        """Prepare training and return its execution, which counts work and traffic in the ledger."""


if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__,
        {
            "BatchExecution": "MiniBatchExecution",
            "WholeExecution": "FullGraphExecution",
            "whole_inference": "full_inference",
        },
    )
