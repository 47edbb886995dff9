"""`TrainConfig`: the options of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_members
from outgrow.core.errors import InputError
from outgrow.core.synonyms import accept_synonyms, rename_keys
from outgrow.core.validation import out_of_range_error, validate_choice
from outgrow.engine.batches import BatchConfig, parse_fanouts
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, SAMPLERS, Fanout
from outgrow.graph.sampling.temporal_sampler import TEMPORAL_STRATEGIES
from outgrow.inference.modes import AUTO, EVALUATION_MODES, EvaluationOptions
from outgrow.nn.losses import ENTRY_LOSSES, validate_weights
from outgrow.training.config_checks import validate_ranges
from outgrow.training.given_objects import describe_choice, record_choice
from outgrow.training.link_training import GIVEN_OR_ALL, validate_link_training
from outgrow.training.loop_options import read_optimizer, read_schedule, split_loop_options
from outgrow.training.metric_request import parse_metrics
from outgrow.training.monitor import MODES
from outgrow.training.optimizers import LR, WEIGHT_DECAY, build_optimizer
from outgrow.training.optimizers import Adam as Adam
from outgrow.training.optimizers import AdamW as AdamW
from outgrow.training.schedules import EPOCH, STEP, Schedule, build_schedule
from outgrow.training.target_request import parse_relations, parse_targets, parse_task

BFLOAT16 = "bfloat16"
_SYNONYMS = {"num_neighbors": "fanout"}


@accept_synonyms(**_SYNONYMS)
@renamed_members(in_bfloat16="uses_bfloat16", batches="batch_config")
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Options of training.

    Attributes:
        epochs: Maximum number of epochs.
        lr: Learning rate.
        weight_decay: L2 penalty (``adam``) or decoupled decay per step (``adamw``).
        optimizer: Name of a class of `torch.optim` in lower case (``adam``, ``adamw``, ``sgd``, ``rmsprop``, ...), an
            optimizer class, or a function ``optimizer(params)`` that returns an optimizer. The function decides all
            options itself, ``lr`` and ``weight_decay`` too.
        optimizer_options: Other options of the optimizer by name, such as ``{"momentum": 0.9}``. `with_options`,
            ``og.train`` and ``--set`` take them as options of their own.
        param_groups: Options of groups of parameters by pattern of their names, such as
            ``{"layers.0.*": {"lr": 0.01}}``: a glob, or ``regex:`` and a regular expression. All others are in a group
            with the options above.
        schedule: Learning rate schedule: the name of one of torch (``cosine``, ``step``, ``multistep``,
            ``exponential``, ``linear``, ``polynomial``, ``onecycle``, ``cosine-restarts``, ``cyclic``, ``plateau``,
            ``constant``), its class, or a function ``schedule(optimizer)`` that returns one. None for constant rates.
        schedule_options: Options of the schedule by name, such as ``{"gamma": 0.1}``, taken like
            ``optimizer_options``. The length of ``cosine``, ``linear``, ``polynomial`` and ``onecycle`` is that of
            training if it is not given.
        schedule_per: What the schedule counts: ``epoch``, or ``step`` for optimizer steps.
        warmup: Number of these before the schedule begins, in which the rate rises linearly.
        clip_grad_norm: Largest norm of the gradient of all parameters, to which a larger one is scaled; None for none.
        accumulate: Number of batches of an optimizer step, whose gradient is the mean over their seeds. The last step
            of an epoch may have fewer.
        ema: Decay of an exponential moving average of the weights, such as 0.999; the averaged weights are evaluated,
            and are those of the best and of the final model. None for none.
        embedding_optimizer: Optimizer of the vectors of a `NodeEmbedding`: ``adam`` (all rows in each step),
            ``sparse-adam`` (rows with a gradient) or ``adagrad``; None for ``adam`` on whole graphs and ``sparse-adam``
            in mini-batches. Weight decay does not apply to them.
        embedding_lr: Their learning rate; None for ``lr``. A schedule scales both.
        patience: Number of epochs without a better validation score after which to stop; None for all epochs.
        seed: Seed of all random draws in training.
        batch_size: Seed nodes, or links, per step, over all workers; None for all to train on.
        fanout: Neighbours to sample per hop, from the seeds outward, -1 for all, as ``(10, 10)`` or
            ``"10,10"``; an entry may be a tuple of one number per relation. None for all neighbours. It is also
            taken as ``num_neighbors``.
        weighted: Whether neighbours are sampled in proportion to edge weights.
        sampler: How neighbours are sampled: ``neighbor`` (without replacement), ``neighbor-with-replacement``,
            ``labor`` (LABOR) or ``fastgcn`` (layer-wise; a fan-out is then the number of nodes drawn for a hop).
        temporal_strategy: Sample only in-edges before the time of the seed: ``uniform`` (drawn by ``sampler``) or
            ``last`` (the most recent); None for in-edges of any time. The graph must have times.
        task: What is predicted of nodes: ``classification`` (one class per node), ``multilabel`` or ``regression``;
            None for classes, as the labels are. Also a mapping of node types to these, or
            ``"paper=classification,author=regression"``; other types have the task of their labels.
        targets: The node types whose labels are predicted, as ``"paper,author=0.5"``, a sequence of such texts, or a
            mapping of names to loss weights, which are 1 otherwise. None for all types with labels.
        class_weight: Classification: a weight for each class, or ``balanced``; see `NodeClassification`.
        label_smoothing: Classification: share of the target that is spread over all classes; of ``link_loss``
            ``k-vs-all``, over all nodes.
        pos_weight: Several labels per node: a weight of the ones of each class, or ``balanced``; see `MultiLabel`.
        loss: Regression: ``mse``, ``mae`` or ``huber``; None for ``mse``.
        link_steps: Link prediction: optimizer steps of an epoch, each of which asks about a part of the linked pairs.
        hide: Link prediction: share of the linked pairs whose edges a step hides from the layers, those that it asks
            about first; 0 for none. Below ``1 / link_steps`` a step asks about this share alone.
        link_loss: Link prediction: ``bce``, ``softmax``, ``self-adversarial``, ``margin`` or ``k-vs-all``.
        margin: Link prediction: margin of the losses ``self-adversarial`` (None for 9) and ``margin`` (None for 1).
        adversarial_temperature: Link prediction: temperature of the loss ``self-adversarial``; None for 1.
        negatives: Link prediction: negatives of a link, or on either side of all links of a step.
        negative_sampling: Link prediction: ``uniform`` (for each link), or for all links of a step ``shared``,
            ``degree``, ``in-batch`` or ``all``.
        filter_negatives: Link prediction: whether known answers among candidates are no negatives.
        regularizer: Link prediction: ``n3`` or ``l2``, a penalty on the rows of links.
        regularizer_weight: Link prediction: factor of that penalty; None for 0.01.
        exclude: Link prediction in mini-batches: ``target`` (layers do not see the edges between the ends of a link of
            the batch) or ``none``; None for ``target``.
        val_links: Link prediction: share of the linked pairs of nodes to validate on.
        test_links: Link prediction: share of the linked pairs to test on.
        split_seed: Seed of the split of links.
        link_relations: Link prediction: the relations whose links are predicted, names joined by commas or a
            sequence of them; empty for all.
        rank_self: Link prediction: whether the queried node itself is ranked too; None for links that are given.
        ranking_candidates: Link prediction: ``given`` (those that held-out links come with, otherwise all nodes),
            ``all`` nodes of the answer's type, or a number of them to draw for each query.
        eval: How nodes are evaluated: ``auto`` (the cheapest exact way that fits into memory), ``exact`` (all
            neighbours, of the scored nodes alone), ``sampled`` (some neighbours, approximate), ``layerwise`` (all
            nodes) or ``none``.
        val: The same for validation nodes, after an epoch and in the end; None for ``eval``.
        test: The same for test nodes; None for ``eval``.
        eval_fanout: Neighbours to sample per hop, by ``sampler``, where evaluation is ``sampled``; None for
            ``fanout``.
        eval_batch_size: Nodes in a batch of a worker where evaluation is ``sampled``; None for ``batch_size``, or 1024.
        eval_every: Number of epochs between evaluations.
        metrics: Names of metrics of nodes to compute beside the task's own, as ``"auroc,f1-macro"`` or a sequence;
            see ``docs/metrics.md``. `og.train` takes objects of torchmetrics too.
        monitor: The metric whose value on validation nodes chooses the best epoch and decides about patience: one of
            ``metrics``, the task's own, or ``"loss"``; None for the task's own (accuracy, micro-F1; of links MRR).
        monitor_mode: Whether a higher (``"max"``) or a lower value (``"min"``) is better; None for what the metric
            says.
        checkpoint_every: Number of epochs between checkpoints, if a run has a directory; the last epoch has one.
        checkpoint_steps: Number of steps between checkpoints within an epoch; None for none.
        precision: ``full``: compute in the dtype of the parameters. ``bfloat16``: products of dense rows with weights
            are in bfloat16, forward and backward (see `outgrow.ops.linear`), and all else as in ``full``.
        inexact: Whether strategy ``auto`` may choose `orchestrate`, which reuses results that are some updates old.
    """

    epochs: int = 200
    lr: float = LR
    weight_decay: float = WEIGHT_DECAY
    optimizer: object = "adam"
    optimizer_options: Mapping[str, object] = field(default_factory=dict, hash=False)
    param_groups: Mapping[str, Mapping[str, object]] = field(default_factory=dict, hash=False)
    schedule: object = None
    schedule_options: Mapping[str, object] = field(default_factory=dict, hash=False)
    schedule_per: str = EPOCH
    warmup: int = 0
    clip_grad_norm: float | None = None
    accumulate: int = 1
    ema: float | None = None
    embedding_optimizer: str | None = None
    embedding_lr: float | None = None
    patience: int | None = None
    seed: int = 0
    batch_size: int | None = None
    fanout: tuple[Fanout, ...] | None = None
    weighted: bool = False
    sampler: str = NEIGHBOR
    temporal_strategy: str | None = None
    task: Mapping[str, str] | str | None = field(default=None, hash=False)
    targets: Mapping[str, float] | Sequence[str] | str | None = field(default=None, hash=False)
    class_weight: Sequence[float] | str | None = None
    label_smoothing: float = 0.0
    pos_weight: Sequence[float] | str | None = None
    loss: str | None = None
    link_steps: int = 1
    hide: float = 0.0
    link_loss: str = "bce"
    margin: float | None = None
    adversarial_temperature: float | None = None
    negatives: int = 1
    negative_sampling: str = "uniform"
    filter_negatives: bool = True
    regularizer: str | None = None
    regularizer_weight: float | None = None
    exclude: str | None = None
    val_links: float = 0.05
    test_links: float = 0.1
    split_seed: int = 0
    link_relations: Sequence[str] | str = ()
    rank_self: bool | None = None
    ranking_candidates: str | int = GIVEN_OR_ALL
    eval: str = AUTO
    val: str | None = None
    test: str | None = None
    eval_fanout: tuple[Fanout, ...] | None = None
    eval_batch_size: int | None = None
    eval_every: int = 1
    metrics: tuple[str, ...] = ()
    monitor: str | None = None
    monitor_mode: str | None = None
    checkpoint_every: int = 10
    checkpoint_steps: int | None = None
    precision: str = "full"
    inexact: bool = False

    def __post_init__(self) -> None:
        # The dataclass is frozen.
        for name in ("fanout", "eval_fanout"):
            object.__setattr__(self, name, parse_fanouts(getattr(self, name)))
        metrics = parse_metrics(self.metrics)
        if metrics.objects:
            raise InputError(
                "the options of training hold names of metrics alone",
                needed="names such as 'auroc,f1-macro'",
                got=f"objects named {', '.join(metrics.names)}",
                repair="give objects to og.train(metrics={...}) itself",
            )
        object.__setattr__(self, "metrics", metrics.names)
        if self.monitor_mode is not None:
            validate_choice("monitor_mode", self.monitor_mode, MODES)
        for name in ("eval", "val", "test"):
            if getattr(self, name) is not None:
                validate_choice(name, getattr(self, name), dict.fromkeys(EVALUATION_MODES))
        for name in ("class_weight", "pos_weight"):
            object.__setattr__(self, name, validate_weights(name, getattr(self, name)))
        object.__setattr__(self, "link_relations", parse_relations(self.link_relations))
        object.__setattr__(self, "targets", parse_targets(self.targets))
        object.__setattr__(self, "task", parse_task(self.task))
        if self.loss is not None:
            validate_choice("loss", self.loss, dict.fromkeys(ENTRY_LOSSES))
        for name, value in {**read_optimizer(self), **read_schedule(self)}.items():
            object.__setattr__(self, name, value)
        validate_choice("sampler", self.sampler, dict.fromkeys(SAMPLERS))
        if self.temporal_strategy is not None:
            validate_choice("temporal_strategy", self.temporal_strategy, dict.fromkeys(TEMPORAL_STRATEGIES))
        validate_choice("precision", self.precision, dict.fromkeys(("full", BFLOAT16)))
        validate_ranges(self)
        validate_link_training(self)

    def with_options(self, /, **options: object) -> TrainConfig:
        """Return a copy with some options changed.

        Options of the optimizer and of the schedule are among them.

        Raises:
            InputError: An option does not exist (the message offers the nearest names), it is given by both of its
                names, or a value has a wrong type or is out of range.
        """
        changed = rename_keys("training", options, _SYNONYMS)
        return replace(self, **split_loop_options(changed, self, [each.name for each in fields(self)]))

    def as_record(self) -> dict[str, Any]:
        """Return the options as ``config.json`` has them: objects are there by name."""
        record: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        record |= {name: record_choice(record[name]) for name in ("optimizer", "schedule")}
        return record

    def task_of_type(self, name: str) -> str | None:
        """Return the task that is named for a node type, or for all; None for that of its labels."""
        task = parse_task(self.task)
        return task.get(name) if isinstance(task, dict) else task

    @property
    def types_with_task(self) -> tuple[str, ...]:
        """The node types that tasks are named for, each its own."""
        return tuple(self.task) if isinstance(self.task, Mapping) else ()

    @property
    def target_weights(self) -> Mapping[str, float] | None:
        """Loss weight of each node type whose labels are predicted; None for all types with labels."""
        return parse_targets(self.targets)

    @property
    def optimizer_name(self) -> str:
        """Name of the optimizer, for people."""
        return describe_choice(self.optimizer)

    @property
    def schedule_name(self) -> str:
        """Name of the schedule, for people; empty for none."""
        return "" if self.schedule is None else describe_choice(self.schedule)

    @property
    def uses_bfloat16(self) -> bool:
        """Whether products are computed in bfloat16."""
        return self.precision == BFLOAT16

    @property
    def batch_config(self) -> BatchConfig:
        """Options of mini-batches."""
        return BatchConfig(
            size=self.batch_size,
            fanout=self.fanout,
            weighted=self.weighted,
            sampler=self.sampler,
            temporal_strategy=self.temporal_strategy,
        )

    @property
    def evaluation(self) -> EvaluationOptions:
        """Options of evaluation."""
        batches = BatchConfig(
            size=self.eval_batch_size or self.batch_size,
            fanout=self.eval_fanout or self.fanout,
            weighted=self.weighted,
            sampler=self.sampler,
            temporal_strategy=self.temporal_strategy,
        )
        sampling = tuple(name for name in ("eval_fanout", "eval_batch_size") if getattr(self, name) is not None)
        return EvaluationOptions(self.val or self.eval, self.test or self.eval, batches, sampling)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer of all parameters of ``model``.

        Raises:
            InputError: The type of the parameters does not hold a number.
        """
        floats = [each.dtype for each in model.parameters()] or [torch.float32]
        largest = max(torch.finfo(each).max for each in floats)
        for name in ("lr", "weight_decay"):
            if getattr(self, name) > largest:
                raise out_of_range_error(name, f"at most {largest:.3g}, for these parameters", getattr(self, name))
        return build_optimizer(
            self.optimizer,
            self.optimizer_name,
            model,
            lr=self.lr,
            weight_decay=self.weight_decay,
            options=self.optimizer_options,
            groups=self.param_groups,
        )

    def make_schedule(
        self, optimizer: torch.optim.Optimizer, steps_per_epoch: int, *, larger_is_better: bool = True
    ) -> Schedule | None:
        """Create the schedule of an optimizer; None for constant rates.

        Args:
            optimizer: The optimizer, from `make_optimizer`.
            steps_per_epoch: Number of optimizer steps of an epoch.
            larger_is_better: Direction of the validation value that ``plateau`` reads.

        Raises:
            InputError: It refuses its options.
        """
        if self.schedule is None:
            return None
        return build_schedule(
            self.schedule,
            self.schedule_name,
            optimizer,
            options=self.schedule_options,
            per=self.schedule_per,
            warmup=self.warmup,
            length=self.epochs * (steps_per_epoch if self.schedule_per == STEP else 1),
            larger_is_better=larger_is_better,
        )
