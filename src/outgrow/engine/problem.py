"""The training problem of one worker: its shard, inputs, targets and model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from outgrow.core.deprecation import renamed_members
from outgrow.core.timeline import Timeline
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.engine.features.assembly import RowSource, choose_row_source
from outgrow.engine.features.inputs import ShardInputs, TrainingLabels, fetch_shard_inputs
from outgrow.engine.features.stored_rows import StoredRows
from outgrow.engine.hidden_edges import BYTES_PER_EDGE
from outgrow.engine.link_batches import Batch, LinkBatch, LinkBatches
from outgrow.engine.objective import LinkTargets, NodeTargets, Objective
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.ops import memory_pool
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.runtime.storage.row_file import IoPool

_SLACK = 0.5
"""Idle memory that is kept between batches, as a share of the peak: no two batches are of one size."""


@renamed_members(share="shard", facts="run_facts", hints="resume_hints", goal="objective")
@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A training problem as one worker sees it: a model, a shard of a graph, and targets.

    Attributes:
        shard: The worker's shard of the graph; rows below are those of its own nodes.
        features: ``[V, D]`` as the graph stores them, possibly memory-mapped: of all nodes, or of own nodes alone.
        targets: Nodes or links to train on.
        model: The model, the same on all workers; its parameters are changed in place.
        seed: Seed of every random draw.
        batches: Configuration of mini-batches.
        checkpoint_steps: Steps between checkpoints within an epoch. A run that resumes from one loses what
            the strategy had in memory, but for ``strategy_state``. None for no such checkpoints.
        memory_limit: Limit on the bytes in the DEVICE tier of the worker; None for what there is.
        find_feature_file: Returns the .npy file from which dense features are mapped; None if there is none.
        run_facts: Facts that a strategy reports about the run, by name; plain values.
        embedding_optimizer: Updates the vectors of node embeddings.
        resume_hints: Hints by strategy, from the interrupted run and for the next one; plain values that
            change no result but its rounding, and may be missing.
        strategy_state: What a strategy's next steps depend on beside the model, by strategy, the same on all workers:
            plain values and tensors in host memory, which checkpoints keep.
    """

    shard: GraphShard
    features: NodeFeatures
    targets: NodeTargets | LinkTargets
    model: Model
    seed: int
    batches: BatchConfig = FULL_GRAPH
    checkpoint_steps: int | None = None
    memory_limit: int | None = None
    find_feature_file: Callable[[], Path | None] = lambda: None
    embedding_optimizer: RowOptimizer = field(default_factory=RowOptimizer)
    run_facts: dict[str, object] = field(default_factory=dict)
    resume_hints: dict[str, object] = field(default_factory=dict)
    strategy_state: dict[str, object] = field(default_factory=dict)

    @property
    def timeline(self) -> Timeline:
        """The timeline that records spans."""
        return self.shard.comm.timeline

    @property
    def num_train(self) -> int:
        """Number of nodes or links to train on, over all workers."""
        return self.targets.num_targets

    @property
    def num_steps(self) -> int:
        """Number of steps of an epoch."""
        if isinstance(self.targets, LinkTargets) and self.batches.is_full_graph:
            return self.targets.options.steps.num_steps
        return self.batches.num_steps(self.num_train)

    @property
    def hides_edges(self) -> bool:
        """Whether layers see another part of the graph in each step, so that nothing computed from it is kept."""
        return isinstance(self.targets, LinkTargets) and self.targets.options.steps.hide > 0

    @property
    def node_targets(self) -> NodeTargets:
        """Labelled nodes to train on; only for problems of nodes."""
        assert isinstance(self.targets, NodeTargets)
        return self.targets

    @property
    def hidden_edge_bytes(self) -> int:
        """Bytes that a step takes for each edge that it has in memory, if it hides some of them."""
        return BYTES_PER_EDGE if self.hides_edges else 0

    def describe_link_steps(self) -> str:
        """Return what decides about the steps of links, for `Trainer`; empty for one step that hides nothing."""
        if not isinstance(self.targets, LinkTargets):
            return ""
        steps = self.targets.options.steps
        if not self.batches.is_full_graph:
            return f", excludes_targets {self.targets.options.excludes_targets}"
        return "" if steps.num_steps == 1 and steps.hide == 0 else f", link_steps {steps.num_steps}, hide {steps.hide}"

    def describe_task(self) -> dict[str, object]:
        """Return the options of a task of nodes, as plain values; nothing for links and edges."""
        return self.targets.task.describe() if isinstance(self.targets, NodeTargets) else {}

    @property
    def all_features(self) -> Features:
        """``features``, for strategies that read those of any node: they cannot train on parts of a graph."""
        assert not isinstance(self.features, OwnedRows)
        return self.features

    @cached_property
    def input(self) -> ShardInputs:
        """Features of the worker's nodes, in memory; fetched on first access, by all workers together."""
        return fetch_shard_inputs(self.model, self.shard, self.features)

    def release_device_input(self) -> None:
        """Forget `input` on a GPU, whose memory batches need; it is fetched again when it is needed."""
        if self.shard.comm.device.type != "cpu":
            vars(self).pop("input", None)

    @cached_property
    def feature_file(self) -> Path | None:
        """The .npy file of the features; searched for on first access, since few strategies read it."""
        return self.find_feature_file()

    @cached_property
    def feature_rows(self) -> RowSource:
        """Features as batches read them: see `choose_row_source`."""
        return choose_row_source(self.features, self.feature_file, lambda: self._io_pool, self.memory_limit)

    @cached_property
    def _io_pool(self) -> IoPool:
        return IoPool()

    def close(self) -> None:
        """Close files, and count what was read of them."""
        pool: IoPool | None = self.__dict__.pop("_io_pool", None)
        rows: RowSource | None = self.__dict__.pop("feature_rows", None)
        if isinstance(rows, StoredRows):
            rows.storage.close()
        if pool is not None:
            pool.close()
            ledger = self.shard.comm.ledger
            ledger.add_count("disk_read_bytes", pool.read_bytes)
            ledger.add_count("disk_reads", pool.read_requests)

    @cached_property
    def objective(self) -> Objective:
        """The objective for the output of all own nodes; made on first access, by all workers together."""
        return self.targets.make_objective(self.shard, self.model)

    @property
    def number_bytes(self) -> int:
        """Bytes of a number that the model computes."""
        # Activations have the type of the parameters.
        return self.model.dtype.itemsize

    @property
    def objective_bytes(self) -> int:
        """Bytes that the objective needs in addition to the layers."""
        return self.objective.extra_bytes(self.model.layers_list()[-1].spec.out_features, self.number_bytes)

    @property
    def read_row_bytes(self) -> int:
        """`objective_bytes` where only output that a step reads is kept."""
        return self.objective.bytes_of_read_rows(self.model.layers_list()[-1].spec.out_features, self.number_bytes)

    def batches_of_epoch(self, epoch: int) -> Sequence[Batch]:
        """Return the batch of each step of an epoch."""
        if isinstance(self.targets, LinkTargets):
            return self.link_batches.of_epoch(epoch)
        return self.batches.seeds_of_epoch(self.targets.nodes, self.seed, epoch)

    @cached_property
    def link_batches(self) -> LinkBatches:
        """Draws batches of links; only for problems of links."""
        assert isinstance(self.targets, LinkTargets)
        return LinkBatches(self.shard, self.targets.options, self.batches, self.seed)

    def select_seeds(self, batch: Batch) -> Tensor:
        """Return the worker's own seeds of a batch, ``[n]`` int64."""
        return batch.seeds if isinstance(batch, LinkBatch) else self.shard.filter_owned(batch)

    def link_loss(self, out: Tensor, batch: LinkBatch) -> Tensor:
        """Return the worker's share of the loss of a batch of links, from rows of its seeds: see `LinkBatch.loss`."""
        assert isinstance(self.targets, LinkTargets)
        assert self.model.decoder is not None
        return batch.loss(out, self.model.decoder, self.targets.options)

    @cached_property
    def seed_labels(self) -> TrainingLabels:
        """Labels (and weights) of all nodes to train on; fetched on first access, by all workers together."""
        return TrainingLabels(self.shard, self._joined_labels, self.node_targets.nodes)

    @cached_property
    def _joined_labels(self) -> Tensor:
        return self.node_targets.join_weights()

    def own_labels(self, seeds: Tensor) -> Tensor:
        """Return labels (and weights) of some own nodes, ``[n, ...]``, in the given order, for `batch_loss`."""
        return self._joined_labels[self.shard.local_index(seeds)]

    def reserve_memory_of_batches(self) -> None:
        """Let freed memory of a batch be kept for the next ones; no more than the peak where memory is limited."""
        # Sizes of batches vary: without slack the pool would return and fetch pages with every step.
        memory_pool.reserve_slack(_SLACK if self.memory_limit is None else 0.0)

    def batch_loss(self, logits: Tensor, labels: Tensor, num_seeds: int) -> Tensor:
        """Return the worker's share of the loss of a batch, differentiable.

        Args:
            logits: ``[n, C]`` of the seeds that it computes.
            labels: ``[n, ...]`` of the same seeds, from `own_labels` or `seed_labels`.
            num_seeds: Number of seeds over all workers.
        """
        targets = self.node_targets
        labels, weights = targets.split_weights(labels.to(logits.device))
        # Divided by the seeds of all workers, so that shares of the loss and of the gradient add up.
        return targets.task.loss(logits, labels, num_seeds, weights_N=weights)

    @staticmethod
    def from_node_labels(
        shard: GraphShard,
        *,
        features: NodeFeatures,
        labels: Tensor,
        train: Tensor,
        task: NodeTask,
        model: Model,
        seed: int,
        batches: BatchConfig = FULL_GRAPH,
    ) -> Problem:
        """Return the problem on a shard, from labels of all nodes.

        Args:
            shard: The worker's shard of the graph.
            features: ``[V, D]``, as the graph stores them.
            labels: ``[V]`` or ``[V, C]``, as the task reads them.
            train: Ids of all nodes to train on; those without a known target are left out.
            task: The task, which defines the loss.
            model: The model, the same on all workers.
            seed: Seed of every random draw.
            batches: Configuration of mini-batches.
        """
        # Each worker keeps labels of own nodes only; others are fetched if a strategy needs them.
        train = task.select_known(labels, train)
        own = shard.select_owned(labels)
        assert isinstance(own, Tensor)
        weights = task.sample_weights()
        own_weights = None if weights is None else shard.select_owned(weights)
        assert own_weights is None or isinstance(own_weights, Tensor)
        targets = NodeTargets(
            labels=own,
            train_rows=shard.local_index(train),
            nodes=train,
            task=task.resolve(labels, train, model.layers_list()[-1].spec.out_features),
            weights=own_weights,
        )
        return Problem(
            shard=shard,
            features=features,
            targets=targets,
            model=model,
            seed=seed,
            batches=batches,
        )
