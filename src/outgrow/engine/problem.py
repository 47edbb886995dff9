"""What is trained, as one worker sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from outgrow.core.deprecation import renamed_members
from outgrow.core.timeline import Timeline
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.features.inputs import ShardInputs, TrainingLabels, fetch_shard_inputs
from outgrow.engine.objective import LinkTargets, NodeTargets, Objective
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask


@renamed_members(share="shard", facts="run_facts", hints="resume_hints", goal="objective")
@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What is trained: a model on the nodes of a graph, as one worker sees it.

    Attributes:
        shard: What the worker holds of the graph; rows below are those of its own nodes.
        features: ``[V, D]`` of all nodes, as the graph has them: memory-mapped where they are many.
        targets: What its output is trained for.
        model: The model, the same on all workers; its parameters are changed in place.
        seed: Seed of every random draw.
        batches: What mini-batches are made of.
        checkpoint_steps: Steps of an epoch between checkpoints within it, after which what a strategy has in
            memory is lost if the run goes on from there; None for none.
        find_feature_file: Gives the .npy file that dense features are mapped from; None if there is none.
        run_facts: What a strategy found out, by name; plain values.
        resume_hints: What a run that went on before has found out, by strategy, and what shall be known when
            this one is resumed; plain values, which change no result, and may be missing.
    """

    shard: GraphShard
    features: Features
    targets: NodeTargets | LinkTargets
    model: Model
    seed: int
    batches: BatchConfig = FULL_GRAPH
    checkpoint_steps: int | None = None
    find_feature_file: Callable[[], Path | None] = lambda: None
    run_facts: dict[str, object] = field(default_factory=dict)
    resume_hints: dict[str, object] = field(default_factory=dict)

    @property
    def timeline(self) -> Timeline:
        """Told when what was done."""
        return self.shard.comm.timeline

    @property
    def num_train(self) -> int:
        """Number of nodes or links to train on, over all workers."""
        return self.targets.num_targets

    @property
    def node_targets(self) -> NodeTargets:
        """Labelled nodes to train on, where these are what is trained on."""
        assert isinstance(self.targets, NodeTargets)
        return self.targets

    @cached_property
    def input(self) -> ShardInputs:
        """Features of the worker's nodes, in memory; made when first asked for, which all workers do together."""
        return fetch_shard_inputs(self.model, self.shard, self.features)

    @cached_property
    def feature_file(self) -> Path | None:
        """The .npy file of the features; looked for when first asked for, as few strategies read it."""
        return self.find_feature_file()

    @cached_property
    def objective(self) -> Objective:
        """What the output of all own nodes is trained for; made when first asked for, which all workers do together."""
        return self.targets.make_objective(self.shard, self.model)

    @property
    def number_bytes(self) -> int:
        """Of a number that the model computes."""
        return next(self.model.parameters()).element_size()

    @property
    def objective_bytes(self) -> int:
        """Memory that the goal needs beside the layers."""
        return self.objective.extra_bytes(self.model.layers_list()[-1].spec.out_features, self.number_bytes)

    def seeds_of_epoch(self, epoch: int) -> list[Tensor]:
        """The seeds of each step of an epoch, over all workers."""
        return self.batches.seeds_of_epoch(self.node_targets.nodes, self.seed, epoch)

    @cached_property
    def seed_labels(self) -> TrainingLabels:
        """Labels of all nodes to train on; fetched when first asked for, which all workers do together."""
        return TrainingLabels(self.shard, self.node_targets.labels, self.node_targets.nodes)

    def own_labels(self, seeds: Tensor) -> Tensor:
        """``[n, ...]`` labels of some of the worker's own nodes, in the order given."""
        return self.node_targets.labels[self.shard.local_index(seeds)]

    def batch_loss(self, logits: Tensor, labels: Tensor, num_seeds: int) -> Tensor:
        """The worker's share of the loss of a batch, differentiable.

        Args:
            logits: ``[n, C]`` of the seeds that it computes.
            labels: ``[n, ...]`` of these.
            num_seeds: Number of seeds over all workers.
        """
        return self.node_targets.task.loss(logits, labels.to(logits.device), num_seeds)

    @staticmethod
    def from_node_labels(
        shard: GraphShard,
        *,
        features: Features,
        labels: Tensor,
        train: Tensor,
        task: NodeTask,
        model: Model,
        seed: int,
        batches: BatchConfig = FULL_GRAPH,
    ) -> Problem:
        """The problem on a share, from what is known of all nodes.

        Args:
            shard: The worker's shard of the graph.
            features: ``[V, D]``, as the graph stores them.
            labels: ``[V]`` integer, or ``[V, C]`` zeros and ones.
            train: Ids of all nodes to train on.
            task: What the logits mean.
            model: The model, the same on all workers.
            seed: Seed of every random draw.
            batches: What mini-batches are made of.
        """
        own = shard.select_owned(labels)
        assert isinstance(own, Tensor)
        return Problem(
            shard=shard,
            features=features,
            targets=NodeTargets(labels=own, train_rows=shard.local_index(train), nodes=train, task=task),
            model=model,
            seed=seed,
            batches=batches,
        )
