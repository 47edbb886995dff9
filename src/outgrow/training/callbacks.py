"""`Callback`: what users, displays and files are told while training goes on, and the reports that they get."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from outgrow.core.errors import InputError
from outgrow.core.validation import describe_value
from outgrow.nn.model import Model

SomeReport = TypeVar("SomeReport", bound="Report")


class RunControl:
    """The model of a run, and the wish to end it. Final.

    Args:
        model: The model.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.is_stop_requested = False


@dataclass(frozen=True, kw_only=True)
class Report(ABC):  # noqa: B024 - it has no method to override
    """What a callback is told.

    Attributes:
        control: Access to the run, on the worker that trains; None in another process.
    """

    control: RunControl | None = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> Model | None:
        """The model as it is now, to be read only; None outside of the worker's process."""
        return None if self.control is None else self.control.model

    def stop(self) -> None:
        """End training after this epoch, on all workers, as if it were the last one."""
        if self.control is not None:
            self.control.is_stop_requested = True


def detach(report: SomeReport) -> SomeReport:
    """Return a report that can be sent to another process."""
    return replace(report, control=None)


@dataclass(frozen=True, kw_only=True)
class StartReport(Report):
    """A run is about to train.

    Attributes:
        epoch: Number of finished epochs: 0, or more where a run is resumed.
        epochs: Maximum number of epochs.
        steps_per_epoch: Number of batches of an epoch.
        strategy: Name of the strategy.
        workers: Number of workers.
        options: Options of training, as ``config.json`` has them.
    """

    epoch: int
    epochs: int
    steps_per_epoch: int
    strategy: str
    workers: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepReport(Report):
    """A batch is done.

    Attributes:
        epoch: Number of the epoch, from 1.
        step: Number of the batch in the epoch, from 1.
        steps_per_epoch: Number of batches of an epoch.
        loss: Loss of the batch, over all workers.
        num_seeds: Number of nodes or links that the loss is the mean of.
        lr: Learning rate of the step, of the first group of parameters.
        updated: Whether the parameters have changed: with ``accumulate`` only some batches change them.
        seconds: Wall time of the step.
    """

    epoch: int
    step: int
    steps_per_epoch: int
    loss: float
    num_seeds: int
    lr: float
    updated: bool
    seconds: float

    @property
    def total_steps(self) -> int:
        """Number of batches since the first epoch."""
        return (self.epoch - 1) * self.steps_per_epoch + self.step


@dataclass(frozen=True, kw_only=True)
class EvaluationReport(Report):
    """The validation set has been scored. The model has the weights that were scored.

    Attributes:
        epoch: Number of the epoch, from 1.
        score: The score by which models are compared.
        loss: Validation loss.
        scores: All scores by name.
        seconds: Wall time of the evaluation.
        is_best: Whether this is the best model so far.
    """

    epoch: int
    score: float
    loss: float
    scores: Mapping[str, float]
    seconds: float
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class EpochReport(Report):
    """An epoch is done, with its evaluation.

    Attributes:
        epoch: Number of the epoch, from 1.
        loss: Training loss.
        val_score: Validation score: the value of the monitored metric; None if not evaluated.
        seconds: Wall time of the training part, without that of compiling kernels.
        edges_per_second: Edges aggregated, in all layers by all workers, per second of training.
        best_epoch: Epoch of the best validation score so far; 0 if none.
        phases: Seconds of training on rank 0, by what it did or waited for.
        evaluation_seconds: Wall time of the evaluation after the epoch; 0 without one.
        compile_seconds: Wall time of compiling kernels, since the start of training for the first epoch.
        compiled_kernels: Number of these kernels.
        lr: Learning rate of the last step of the epoch, of the first group of parameters.
        scores: All metrics on the validation set by name; empty if not evaluated.
    """

    epoch: int
    loss: float
    val_score: float | None
    seconds: float
    edges_per_second: float
    best_epoch: int
    phases: Mapping[str, float] = field(default_factory=dict)
    evaluation_seconds: float = 0.0
    compile_seconds: float = 0.0
    compiled_kernels: int = 0
    lr: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointReport(Report):
    """A checkpoint has been written.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished batches in the current epoch; 0 between epochs.
        path: The file.
    """

    epoch: int
    step: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class EndReport(Report):
    """Training is over. The model is the final one: that of the best epoch, if there was an evaluation.

    Attributes:
        epochs: Number of finished epochs.
        stop_reason: Why training stopped: ``"epochs"``, ``"patience"``, ``"interrupted"`` or ``"callback"``.
        best_epoch: Epoch of the best validation score; 0 if none.
        val: Scores of the validation set by name.
        test: Scores of the test set by name.
    """

    epochs: int
    stop_reason: str
    best_epoch: int
    val: Mapping[str, float]
    test: Mapping[str, float]


class Callback(ABC):  # noqa: B024 - a callback overrides what it wants to be told
    """Base class of callbacks of ``og.train``. Methods that are not overridden do nothing.

    Callbacks are called in their order, on worker 0. They must neither change the model nor draw from torch's
    generator. One that raises ends the run after the epoch, with a checkpoint and its traceback; `on_start` ends it at
    once. With worker processes the callback is a copy in the process of worker 0, whose attributes the one of the
    caller has after the run.

    Attributes:
        all_workers: Whether each worker calls a copy of its own.
    """

    all_workers: bool = False

    def on_start(self, report: StartReport) -> None:  # noqa: B027
        """Handle the start of training, or of a run that is resumed."""

    def on_step(self, report: StepReport) -> None:  # noqa: B027
        """Handle the end of a batch."""

    def on_evaluation(self, report: EvaluationReport) -> None:  # noqa: B027
        """Handle the evaluation after an epoch."""

    def on_epoch(self, report: EpochReport) -> None:  # noqa: B027
        """Handle the end of an epoch."""

    def on_checkpoint(self, report: CheckpointReport) -> None:  # noqa: B027
        """Handle a new checkpoint, on worker 0."""

    def on_end(self, report: EndReport) -> None:  # noqa: B027
        """Handle the end of training."""


def require_callbacks(given: object) -> tuple[Callback, ...]:
    """Return callbacks that a user has given as a list.

    Raises:
        InputError: It is none, or holds something else.
    """
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    wrong = [each for each in found if not isinstance(each, Callback)]
    if wrong or not isinstance(given, list | tuple):
        raise InputError(
            "callbacks is no list of callbacks",
            needed="objects of classes that extend og.Callback",
            got=describe_value(wrong[0] if wrong else given),
            repair="give a list, such as callbacks=[MyCallback()]",
        )
    return found
