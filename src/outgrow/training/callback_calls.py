"""`CallbackCalls`: calls the callbacks of a run, and ends the run for them on all workers."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from outgrow.core.errors import TrainingError
from outgrow.strategies.base import Problem, Step
from outgrow.training.callbacks import (
    Callback,
    CheckpointReport,
    EndReport,
    EpochReport,
    EvaluationReport,
    Report,
    RunControl,
    StartReport,
    StepReport,
)
from outgrow.training.checkpoint import TrainingProgress
from outgrow.training.config import TrainConfig
from outgrow.training.evaluation import Metrics

FAILED = "failed"
"""Why training stops after a callback has raised."""
# Counts of workers, each in bits of its own of one number.
_STOP, _FAILURE = 1 << 20, 1 << 40
_HOOKS = ("on_start", "on_step", "on_evaluation", "on_epoch", "on_checkpoint", "on_end")


class CallbackFailure(NamedTuple):
    """An error of a callback.

    Attributes:
        error: What it raised.
        where: Names of the class and of the method.
    """

    error: Exception
    where: str

    def describe(self) -> tuple[str, str]:
        """Return a line that names the callback and its error, and the traceback in its code."""
        trace = self.error.__traceback__.tb_next if self.error.__traceback__ else None
        lines = "".join(traceback.format_exception(type(self.error), self.error, trace)).rstrip()
        message = " ".join(str(self.error).split())[:200]
        return f"callback {self.where} raised {type(self.error).__name__}: {message}", lines


class CallbackCalls:
    """The callbacks of a run on one worker. Final.

    Args:
        problem: The training problem.
        config: Options of training.
    """

    def __init__(self, problem: Problem, config: TrainConfig) -> None:
        self.comm = problem.shard.comm
        self.config = config
        self.control = RunControl(problem.model)
        self.failure: CallbackFailure | None = None
        self._steps_per_epoch = problem.num_steps
        self._entries: list[tuple[Any, bool]] = []
        self._by_hook: dict[str, list[tuple[Any, bool]]] = {hook: [] for hook in _HOOKS}

    def add(self, *callbacks: object, guarded: bool = False) -> None:
        """Add callbacks, called in this order.

        Args:
            *callbacks: The callbacks.
            guarded: Whether an error of theirs ends the run after the epoch, with a checkpoint; other errors end it at
                once.
        """
        for callback in callbacks:
            for hook, entries in self._by_hook.items():
                own = getattr(type(callback), hook, None)
                # Most callbacks handle few events; steps may be many.
                if own is not None and own is not getattr(Callback, hook):
                    entries.append((callback, guarded))

    @property
    def handle_steps(self) -> bool:
        """Whether a callback wants to be told of steps."""
        return bool(self._by_hook["on_step"])

    def _call(self, hook: str, report: Report) -> None:
        for callback, guarded in self._by_hook[hook]:
            if not guarded:
                getattr(callback, hook)(report)
            elif self.failure is None:
                try:
                    getattr(callback, hook)(report)
                except Exception as error:
                    self.failure = CallbackFailure(error, f"{type(callback).__qualname__}.{hook}")

    def tell_start(self, strategy: str, epoch: int) -> None:
        """Tell that training begins after ``epoch`` epochs.

        Raises:
            TrainingError: A callback has raised.
        """
        report = StartReport(
            epoch=epoch,
            epochs=self.config.epochs,
            steps_per_epoch=self._steps_per_epoch,
            strategy=strategy,
            workers=self.comm.size,
            options=self.config.as_record(),
            control=self.control,
        )
        self._call("on_start", report)
        if self.failure is not None:
            # Nothing was trained, so nothing is to be saved; other workers are ended by whoever started them.
            raise _make_error(*self.failure.describe(), "nothing was trained") from self.failure.error

    def tell_step(self, progress: TrainingProgress, step: Step, *, lr: float, updated: bool, seconds: float) -> None:
        """Tell that a batch is done: see `StepReport`."""
        report = StepReport(
            epoch=progress.finished_epochs + 1,
            step=progress.step,
            steps_per_epoch=self._steps_per_epoch,
            loss=step.loss,
            num_seeds=step.num_seeds,
            lr=lr,
            updated=updated,
            seconds=seconds,
            control=self.control,
        )
        self._call("on_step", report)

    def must_end_now(self, step: int = 0) -> bool:
        """Whether a callback has raised, and neither other workers nor the end of the epoch are to be waited for.

        Args:
            step: Number of finished batches of the current epoch.
        """
        return self.failure is not None and self.comm.size == 1 and step < self._steps_per_epoch

    def tell_evaluation(self, epoch: int, metrics: Metrics, seconds: float, *, is_best: bool) -> None:
        """Tell that the validation set was scored: see `EvaluationReport`."""
        report = EvaluationReport(
            epoch=epoch,
            score=metrics.score,
            loss=metrics.loss,
            scores=metrics.figures,
            seconds=seconds,
            is_best=is_best,
            control=self.control,
        )
        self._call("on_evaluation", report)

    def tell_epoch(self, report: EpochReport) -> None:
        """Tell that an epoch is done."""
        self._call("on_epoch", report)

    def tell_checkpoint(self, progress: TrainingProgress, path: Path) -> None:
        """Tell that a checkpoint was written."""
        epoch, step = progress.finished_epochs, progress.step
        self._call("on_checkpoint", CheckpointReport(epoch=epoch, step=step, path=path, control=self.control))

    def tell_end(self, progress: TrainingProgress, stop_reason: str, val: Metrics, test: Metrics) -> None:
        """Tell that training is over."""
        report = EndReport(
            epochs=progress.finished_epochs,
            stop_reason=stop_reason,
            best_epoch=progress.best_epoch,
            val=val.figures,
            test=test.figures,
            control=self.control,
        )
        self._call("on_end", report)

    def stop_reason(self, is_interrupted: bool) -> str:
        """Return why all workers stop now, if any of them wants to; empty if none does. Collective."""
        stops, fails = self.control.is_stop_requested, self.failure is not None
        wishes = torch.tensor(is_interrupted + _STOP * stops + _FAILURE * fails)
        count = int(self.comm.all_reduce(wishes))
        if count >= _FAILURE:
            return FAILED
        if count % _STOP:
            return "interrupted"
        return "callback" if count >= _STOP else ""

    def make_error(self, epoch: int, folder: Path | None) -> TrainingError:
        """Return the same error on all workers: that of the first callback that has raised. Collective.

        Args:
            epoch: Number of finished epochs.
            folder: Folder of the checkpoints, if any.
        """
        found = self.comm.all_gather_object(None if self.failure is None else self.failure.describe())
        saved = "no checkpoint: the run has no directory"
        if self.comm.broadcast(folder is not None):
            saved = f"there is a checkpoint, after epoch {epoch} or later"
        what, trace = next(each for each in found if each is not None)
        error = _make_error(what, trace, saved)
        error.__cause__ = None if self.failure is None else self.failure.error
        return error

    def late_error(self) -> TrainingError | None:
        """Return the error of a callback that has raised when all was trained and saved, if one has."""
        if self.failure is None:
            return None
        error = _make_error(*self.failure.describe(), "training was over")
        error.__cause__ = self.failure.error
        return error


def _make_error(what: str, trace: str, saved: str) -> TrainingError:
    return TrainingError(
        what,
        needed="callbacks that return",
        got=f"an exception; {saved}\n\n{trace}\n",
        repair="correct the callback; where there is a checkpoint, go on from it with resume=True",
    )
