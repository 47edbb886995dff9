"""`TrainConfig` and the optimizers.

Torch wraps the methods of optimizers to exclude them from its compiler, and the first call of one imports
`torch._dynamo`: a second or more at the start of every run, although nothing here is ever compiled. The
classes below are torch's own with these wrappers removed. If torch changes how it wraps methods, the wrappers
stay in place: results are the same, and only the second is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import nn

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_members
from outgrow.core.synonyms import accept_synonyms, rename_keys
from outgrow.core.validation import out_of_range_error, validate_choice
from outgrow.engine.batches import BatchConfig, parse_fanouts
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, SAMPLERS, Fanout
from outgrow.inference.modes import AUTO, EVALUATION_MODES, EvaluationOptions
from outgrow.nn.losses import ENTRY_LOSSES, validate_weights
from outgrow.nn.tasks import NODE_TASKS

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

_WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")


def _unwrap_methods(kind: type[Kind]) -> type[Kind]:
    """Remove the wrappers from an optimizer's methods; of their effects only `torch.no_grad` is needed."""
    for name in _WRAPPED:
        setattr(kind, name, inspect.unwrap(getattr(kind, name)))
    setattr(kind, "step", torch.no_grad()(kind.step))  # noqa: B010 - mypy refuses the assignment to a method
    return kind


@_unwrap_methods
class Adam(torch.optim.Adam):
    """`torch.optim.Adam` with bit-identical results and the same state. Steps are not differentiable."""


@_unwrap_methods
class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with bit-identical results and the same state. Steps are not differentiable."""


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
        optimizer: ``adam`` or ``adamw``.
        patience: Number of epochs without a better validation score after which to stop; None for all epochs.
        seed: Seed of all random draws in training.
        batch_size: Seed nodes per step, over all workers; None for all training nodes.
        fanout: Neighbours to sample per hop, from the seeds outward, -1 for all, as ``(10, 10)`` or
            ``"10,10"``; an entry may be a tuple of one number per relation. None for all neighbours. It is also
            taken as ``num_neighbors``.
        weighted: Whether neighbours are sampled in proportion to edge weights.
        sampler: How neighbours are sampled: ``neighbor`` (without replacement), ``neighbor-with-replacement``,
            ``labor`` (LABOR) or ``fastgcn`` (layer-wise; a fan-out is then the number of nodes drawn for a hop).
        task: What is predicted of nodes: ``classification`` (one class per node), ``multilabel`` or ``regression``;
            None for classes, as the labels are.
        class_weight: Classification: a weight for each class, or ``balanced``; see `NodeClassification`.
        label_smoothing: Classification: share of the target that is spread over all classes.
        pos_weight: Several labels per node: a weight of the ones of each class, or ``balanced``; see `MultiLabel`.
        loss: Regression: ``mse``, ``mae`` or ``huber``; None for ``mse``.
        negatives: Link prediction: negative links per link of the graph.
        val_links: Link prediction: share of the linked pairs of nodes to validate on.
        test_links: Link prediction: share of the linked pairs to test on.
        split_seed: Seed of the split of links.
        eval: How nodes are evaluated: ``auto`` (the cheapest exact way that fits into memory), ``exact`` (all
            neighbours, of the scored nodes alone), ``sampled`` (some neighbours, approximate), ``layerwise`` (all
            nodes) or ``none``.
        val: The same for validation nodes, after an epoch and in the end; None for ``eval``.
        test: The same for test nodes; None for ``eval``.
        eval_fanout: Neighbours to sample per hop, by ``sampler``, where evaluation is ``sampled``; None for
            ``fanout``.
        eval_batch_size: Nodes in a batch of a worker where evaluation is ``sampled``; None for ``batch_size``, or 1024.
        eval_every: Number of epochs between evaluations.
        checkpoint_every: Number of epochs between checkpoints, if a run has a directory; training always ends
            with one.
        checkpoint_steps: Number of steps between checkpoints within an epoch; None for none.
        precision: ``full``: compute in the dtype of the parameters. ``bfloat16``: compute products of dense
            rows with weights in bfloat16, forward and backward (see `outgrow.ops.linear`), and all else as in
            ``full``.
    """

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 0.0
    optimizer: str = "adam"
    patience: int | None = None
    seed: int = 0
    batch_size: int | None = None
    fanout: tuple[Fanout, ...] | None = None
    weighted: bool = False
    sampler: str = NEIGHBOR
    task: str | None = None
    class_weight: Sequence[float] | str | None = None
    label_smoothing: float = 0.0
    pos_weight: Sequence[float] | str | None = None
    loss: str | None = None
    negatives: int = 1
    val_links: float = 0.05
    test_links: float = 0.1
    split_seed: int = 0
    eval: str = AUTO
    val: str | None = None
    test: str | None = None
    eval_fanout: tuple[Fanout, ...] | None = None
    eval_batch_size: int | None = None
    eval_every: int = 1
    checkpoint_every: int = 10
    checkpoint_steps: int | None = None
    precision: str = "full"

    def __post_init__(self) -> None:
        # The dataclass is frozen.
        for name in ("fanout", "eval_fanout"):
            object.__setattr__(self, name, parse_fanouts(getattr(self, name)))
        for name in ("eval", "val", "test"):
            if getattr(self, name) is not None:
                validate_choice(name, getattr(self, name), dict.fromkeys(EVALUATION_MODES))
        for name in ("class_weight", "pos_weight"):
            object.__setattr__(self, name, validate_weights(name, getattr(self, name)))
        for name, choices in (("task", NODE_TASKS), ("loss", ENTRY_LOSSES)):
            if getattr(self, name) is not None:
                validate_choice(name, getattr(self, name), dict.fromkeys(choices))
        if not 0 <= self.label_smoothing < 1:
            raise out_of_range_error("label_smoothing", "at least 0, below 1", self.label_smoothing)
        validate_choice("optimizer", self.optimizer, _OPTIMIZERS)
        validate_choice("sampler", self.sampler, dict.fromkeys(SAMPLERS))
        validate_choice("precision", self.precision, dict.fromkeys(("full", BFLOAT16)))
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise out_of_range_error(name, "at least 1", value)
        if not 0 < self.lr < float("inf"):
            raise out_of_range_error("lr", "a positive number", self.lr)
        if not 0 <= self.weight_decay < float("inf"):
            raise out_of_range_error("weight_decay", "zero or a positive number", self.weight_decay)
        for name in ("val_links", "test_links"):
            if not 0 <= getattr(self, name) < 1:
                raise out_of_range_error(name, "zero or more, below 1", getattr(self, name))
        if self.val_links + self.test_links >= 1:
            raise out_of_range_error(
                "val_links + test_links",
                "below 1, so that links are left to train on",
                self.val_links + self.test_links,
            )
        for name in ("seed", "split_seed"):
            if not 0 <= getattr(self, name) < 1 << 63:
                raise out_of_range_error(name, "from 0 to 2^63 - 1", getattr(self, name))

    def with_options(self, /, **options: object) -> TrainConfig:
        """Return a copy with some options changed.

        Raises:
            InputError: An option does not exist (the message offers the nearest names), it is given by both of its
                names, or a value has a wrong type or is out of range.
        """
        changed = rename_keys("training", options, _SYNONYMS)
        known = {field.name: field for field in fields(self)}
        for name in changed:
            validate_choice("training option", name, known)
        return replace(self, **changed)

    @property
    def uses_bfloat16(self) -> bool:
        """Whether products are computed in bfloat16."""
        return self.precision == BFLOAT16

    @property
    def batch_config(self) -> BatchConfig:
        """Options of mini-batches."""
        return BatchConfig(size=self.batch_size, fanout=self.fanout, weighted=self.weighted, sampler=self.sampler)

    @property
    def evaluation(self) -> EvaluationOptions:
        """Options of evaluation."""
        batches = BatchConfig(
            size=self.eval_batch_size or self.batch_size,
            fanout=self.eval_fanout or self.fanout,
            weighted=self.weighted,
            sampler=self.sampler,
        )
        sampling = tuple(name for name in ("eval_fanout", "eval_batch_size") if getattr(self, name) is not None)
        return EvaluationOptions(self.val or self.eval, self.test or self.eval, batches, sampling)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer of all parameters of ``model``.

        Raises:
            InputError: The type of the parameters does not hold a number.
        """
        largest = max(torch.finfo(each.dtype).max for each in model.parameters())
        for name in ("lr", "weight_decay"):
            if getattr(self, name) > largest:
                raise out_of_range_error(name, f"at most {largest:.3g}, for these parameters", getattr(self, name))
        kind = _OPTIMIZERS[self.optimizer]
        return kind(model.parameters(), lr=self.lr, weight_decay=self.weight_decay)


_COUNTS = (
    "epochs",
    "eval_every",
    "eval_batch_size",
    "checkpoint_every",
    "checkpoint_steps",
    "patience",
    "batch_size",
    "negatives",
)
_OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {"adam": Adam, "adamw": AdamW}
