"""What a strategy is, and what the trainer sees of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.timeline import Timeline
from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.engine.goal import Goal
from outgrow.engine.inference import infer_share
from outgrow.engine.inputs import Input, input_of
from outgrow.engine.resident import ResidentPass
from outgrow.engine.seed_labels import SeedLabels
from outgrow.engine.share import Share, share_of
from outgrow.engine.targets import LinkTargets, NodeTargets
from outgrow.graph.edge_choice import EdgeChoice
from outgrow.graph.graph import Graph
from outgrow.graph.partition.method import WITHOUT_CHUNKS, Method
from outgrow.nn.heads import Task
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.runtime.comm import Comm


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What is trained: a model on the nodes of a graph, as one worker sees it.

    Attributes:
        share: What the worker holds of the graph; rows below are those of its own nodes.
        features: ``[V, D]`` of all nodes, as the graph has them: memory-mapped where they are many.
        targets: What its output is trained for.
        model: The model, the same on all workers; its parameters are changed in place.
        seed: Seed of every random draw.
        batches: What mini-batches are made of.
        find_feature_file: Gives the .npy file that dense features are mapped from; None if there is none.
        timeline: Told when what was done.
        facts: What a strategy found out, by name; plain values.
        hints: What a run that went on before has found out, by strategy, and what shall be known when this one is
            resumed; plain values, which change no result, and may be missing.
    """

    share: Share
    features: Features
    targets: NodeTargets | LinkTargets
    model: Model
    seed: int
    batches: Batches = EVERYTHING
    find_feature_file: Callable[[], Path | None] = lambda: None
    timeline: Timeline = field(default_factory=Timeline)
    facts: dict[str, object] = field(default_factory=dict)
    hints: dict[str, object] = field(default_factory=dict)

    @property
    def num_train(self) -> int:
        """Number of nodes or links to train on, over all workers."""
        return self.targets.number

    @property
    def labelled(self) -> NodeTargets:
        """Labelled nodes to train on, where these are what is trained on."""
        assert isinstance(self.targets, NodeTargets)
        return self.targets

    @cached_property
    def input(self) -> Input:
        """Features of the worker's nodes, in memory; made when first asked for, which all workers do together."""
        return input_of(self.model, self.share, self.features)

    @cached_property
    def feature_file(self) -> Path | None:
        """The .npy file of the features; looked for when first asked for, as few strategies read it."""
        return self.find_feature_file()

    @cached_property
    def goal(self) -> Goal:
        """What the output of all own nodes is trained for; made when first asked for, which all workers do together."""
        return self.targets.goal(self.share, self.model)

    @property
    def number_bytes(self) -> int:
        """Of a number that the model computes."""
        return next(self.model.parameters()).element_size()

    @property
    def bytes_beside(self) -> int:
        """Memory that the goal needs beside the layers."""
        return self.goal.bytes_beside(self.model.stages()[-1].widths.out_features, self.number_bytes)

    def seeds(self, epoch: int) -> list[Tensor]:
        """The seeds of each step of an epoch, over all workers."""
        return self.batches.of_epoch(self.labelled.nodes, self.seed, epoch)

    @cached_property
    def seed_labels(self) -> SeedLabels:
        """Labels of all nodes to train on; fetched when first asked for, which all workers do together."""
        return SeedLabels(self.share, self.labelled.labels, self.labelled.nodes)

    def own_labels(self, seeds: Tensor) -> Tensor:
        """``[n, ...]`` labels of some of the worker's own nodes, in the order given."""
        return self.labelled.labels[self.share.places(seeds)]

    def batch_loss(self, logits: Tensor, labels: Tensor, num_seeds: int) -> Tensor:
        """The worker's share of the loss of a batch, differentiable.

        Args:
            logits: ``[n, C]`` of the seeds that it computes.
            labels: ``[n, ...]`` of these.
            num_seeds: Number of seeds over all workers.
        """
        return self.labelled.task.loss(logits, labels.to(logits.device), num_seeds)

    @staticmethod
    def of(
        share: Share,
        *,
        features: Features,
        labels: Tensor,
        train: Tensor,
        task: Task,
        model: Model,
        seed: int,
        batches: Batches = EVERYTHING,
    ) -> Problem:
        """The problem on a share, from what is known of all nodes.

        Args:
            share: What the worker holds of the graph.
            features: ``[V, D]``, as the graph has them.
            labels: ``[V]`` integer, or ``[V, C]`` zeros and ones.
            train: Ids of all nodes to train on.
            task: What the logits mean.
            model: The model, the same on all workers.
            seed: Seed of every random draw.
            batches: What mini-batches are made of.
        """
        own = share.rows(labels)
        assert isinstance(own, Tensor)
        return Problem(
            share=share,
            features=features,
            targets=NodeTargets(labels=own, train=share.places(train), nodes=train, task=task),
            model=model,
            seed=seed,
            batches=batches,
        )


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


class Strategy(ABC):
    """A way to train. Its options are the parameters of its constructor.

    Attributes:
        name: Name on the command line.
        exact: Whether the gradient equals the reference's up to floating-point reassociation.
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
