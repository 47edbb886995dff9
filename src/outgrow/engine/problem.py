"""What is trained, as one worker sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from outgrow.core.timeline import Timeline
from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.engine.features.inputs import Input, SeedLabels, input_of
from outgrow.engine.objective import Goal, LinkTargets, NodeTargets
from outgrow.engine.shard import Share
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.nn.tasks import Task


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
        checkpoint_steps: Steps of an epoch between checkpoints within it, after which what a strategy has in memory is
            lost if the run goes on from there; None for none.
        find_feature_file: Gives the .npy file that dense features are mapped from; None if there is none.
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
    checkpoint_steps: int | None = None
    find_feature_file: Callable[[], Path | None] = lambda: None
    facts: dict[str, object] = field(default_factory=dict)
    hints: dict[str, object] = field(default_factory=dict)

    @property
    def timeline(self) -> Timeline:
        """Told when what was done."""
        return self.share.comm.timeline

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
