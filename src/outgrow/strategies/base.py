"""What a strategy is, and what the trainer sees of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.engine.features.store import FeatureStore
from outgrow.engine.full_graph import ResidentPass
from outgrow.engine.inference import infer_share
from outgrow.engine.minibatch_loop import Ahead, MicroBatches
from outgrow.engine.model_migration import Tour
from outgrow.engine.problem import Problem as Problem
from outgrow.engine.shard import Share, share_of
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS, Method
from outgrow.graph.sampling.edge_sampler import EdgeChoice
from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.process_memory import trim_memory


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step is due: every parameter's ``.grad`` holds the global gradient.

    Attributes:
        loss: Loss of the step, over all workers.
        num_seeds: Nodes or links that it is the mean of.
    """

    loss: float
    num_seeds: int


class Execution(Protocol):
    """A strategy at work on a problem."""

    @property
    def in_memory(self) -> bool:
        """Whether rows of all own nodes fit into memory."""

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """The steps of an epoch from step ``first`` on. The trainer steps the optimizer at each yield, then resumes.

        Closed early, it ends what it has begun.
        """

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Logits of the own nodes in memory, without draws and gradients, by the parameters as they are.

        All workers call it together, between epochs, and exhaust it.

        Yields:
            The first row, and the logits ``[n, C]``, of pieces that cover all own nodes, in order where ``in_memory``.
            At least one piece, which has no rows on a worker without nodes.
        """

    def close(self) -> None:
        """Release what the execution holds."""


def whole_inference(problem: Problem) -> Iterator[tuple[int, Tensor]]:
    """See `Execution.inference`: the logits of all own nodes as one piece, with the rows of whole layers in memory."""
    yield 0, infer_share(problem.model, problem.share, problem.input).cpu()


def inference_after_batches(problem: Problem) -> Iterator[tuple[int, Tensor]]:
    """`whole_inference`, before which memory is given back that batches have left: whole layers are of other sizes."""
    memory_pool.clear()
    trim_memory()
    yield from whole_inference(problem)


class WholeExecution:
    """Training on all nodes at once, with the rows of all layers in memory. Final.

    Args:
        problem: What is trained.
        overlap: Whether to aggregate a worker's own rows while those of others are under way.
    """

    in_memory = True

    def __init__(self, problem: Problem, *, overlap: bool = True) -> None:
        self.problem = problem
        self.work = ResidentPass(
            problem.model, problem.share, problem.input, problem.goal, problem.seed, overlap=overlap
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`: one step."""
        if first == 0:
            yield Step(loss=self.work.epoch(epoch), num_seeds=self.problem.num_train)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        return whole_inference(self.problem)

    def close(self) -> None:
        """See `Execution.close`."""
        self.work.close()


class BatchExecution:
    """Training on sampled mini-batches, of which each worker computes some seeds by itself. Final.

    Args:
        problem: What is trained.
        sampler: Draws neighbourhoods.
        rows: Features.
        tour: What the worker computes of a batch: see `MicroBatches.steps`.
        labels: ``[n, ...]`` labels of the seeds ``[n]`` that it computes.
        ahead: How much is made before its use.
        gather_once: See `MicroBatches`.
        batches: Seeds of each step of an epoch; None for those of the problem.
    """

    in_memory = True

    def __init__(
        self,
        problem: Problem,
        sampler: Sampler,
        rows: FeatureStore,
        tour: Callable[[Tensor], Tour],
        *,
        labels: Callable[[Tensor], Tensor],
        ahead: Ahead,
        gather_once: bool = True,
        batches: Callable[[int], Sequence[Tensor]] | None = None,
    ) -> None:
        self.problem, self.tour, self.labels, self.batches = problem, tour, labels, batches
        self.work = MicroBatches(
            problem.model, problem.share.comm, sampler, rows, self._loss, ahead=ahead, gather_once=gather_once
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """See `Execution.steps`."""
        batches = (self.batches or self.problem.seeds)(epoch)
        with closing(self.work.steps(epoch, batches, self.tour, first)) as steps:
            for loss, num_seeds in steps:
                yield Step(loss=loss, num_seeds=num_seeds)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """See `Execution.inference`."""
        return inference_after_batches(self.problem)

    def close(self) -> None:
        """See `Execution.close`."""
        memory_pool.clear()

    def _loss(self, logits: Tensor, seeds: Tensor, num_seeds: int) -> Tensor:
        return self.problem.batch_loss(logits, self.labels(seeds), num_seeds)


class Strategy(ABC):
    """A way to train. Its options are the parameters of its constructor.

    Attributes:
        name: Name on the command line.
        exact: Whether the gradient equals the reference's up to floating-point reassociation, whatever its options.
        takes_batches: Whether steps see samples of the graph, so that nothing computed from it can be kept.
        partition: How nodes are dealt out to workers; by default ranges of nodes with equally many in-edges.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    takes_batches: ClassVar[bool] = False
    partition: str = "range-edges"

    def share(self, graph: Graph, comm: Comm, model: Model, batches: Batches = EVERYTHING) -> Share:
        """What each worker holds of a graph: the nodes that it owns by the partition.

        Args:
            graph: The graph.
            comm: The line to the other workers.
            model: What is to be trained on it.
            batches: What mini-batches are made of.
        """
        method = self.method(graph, model, batches)
        looped = model.stages()[0].widths.self_loops
        return share_of(graph.topology, comm, method, graph.store, self_loops=looped)

    def method(self, graph: Graph, model: Model, batches: Batches) -> Method:
        """How nodes are dealt out; by default as ``partition`` says, whatever is trained."""
        return WITHOUT_CHUNKS[self.partition]

    def options(self) -> dict[str, object]:
        """Its options by name; by default it has none."""
        return {}

    def is_exact(self, batches: Batches) -> bool:
        """Whether the gradient equals the reference's, with these options and in these batches."""
        return self.exact

    def home(self, device: torch.device) -> torch.device:
        """Where a model's parameters are, and the rows that it makes, of a worker that computes on ``device``."""
        return device

    def require(self, graph: Graph, batches: Batches) -> None:
        """Check that it can train on a graph in these batches: on any as a whole, or in any that can be drawn.

        Raises:
            InputError: It cannot: weights to draw by are missing, say, or relations for numbers of their own.
        """
        if self.takes_batches:
            for hop in {*(batches.fanout or (-1,))}:
                EdgeChoice(graph.topology, hop, weighted=batches.weighted)
        elif not batches.everything:
            raise InputError(
                f"strategy {self.name} trains on all nodes and neighbours at once",
                needed="no batch_size and no fanout",
                got=f"batch_size {batches.size}, fanout {batches.spelled()}",
                repair="leave them out, or choose strategy sampled",
            )

    def require_model(self, model: Model) -> None:
        """Check that it can train a model; by default any, but in batches none of links.

        Raises:
            InputError: It cannot.
        """
        if self.takes_batches and model.decoder is not None:
            raise InputError(
                f"strategy {self.name} cannot train a model of links",
                needed="a model of nodes, or a strategy that trains on the whole graph",
                got=f"a model with the decoder {type(model.decoder).__name__}",
                repair="leave batch_size and fanout out, or choose strategy full, offload or tensor",
            )

    @abstractmethod
    def prepare(self, problem: Problem) -> Execution:
        """Get ready to train; what crosses links and what is computed is counted in the ledger of the worker's line."""
