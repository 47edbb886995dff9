"""Training the next steps by a strategy to see how fast it is: results are the same by all, so no step is lost."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from outgrow.core.compile_clock import compile_clock
from outgrow.ops.backend import compile_before_running
from outgrow.strategies.base import Step, Strategy
from outgrow.training import checkpoint
from outgrow.training.prepared_training import PreparedTraining
from outgrow.training.trained_embeddings import TrainedEmbeddings
from outgrow.training.trainer import Trainer

WARM_STEPS, TIMED_STEPS = 4, 12
"""Steps of mini-batches before those that are timed, and these."""
EPOCHS = 2
"""Epochs of a trial where an epoch has few steps: the second one is timed."""


def try_strategy(trainer: Trainer, strategy: Strategy) -> float:
    """Train the next steps, or epochs if they are short; return the seconds of a step. All workers together."""
    problem = trainer.problem
    options = trainer.evaluation, strategy, trainer.config.evaluation, trainer.reporter
    with (
        compile_before_running(),
        compile_clock.notify(trainer.tell_compilation),
        closing(PreparedTraining(problem, *options)) as prepared,
    ):
        trainer.optimization.attach_embeddings(prepared.embeddings)
        trainer.embeddings = TrainedEmbeddings(problem, prepared.embeddings, trainer.folder)
        left = problem.num_steps - trainer.progress.step
        return _try_steps(trainer, prepared) if left > WARM_STEPS + TIMED_STEPS else _try_epochs(trainer, prepared)


def collect_trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Return the state of training, with which another trainer of the same model goes on: see `adopt_trainer_state`."""
    return checkpoint.collect_state(
        trainer.problem.model, trainer.optimizer, trainer.progress, trainer.optimization.loop_state()
    )


def adopt_trainer_state(trainer: Trainer, state: dict[str, Any]) -> None:
    """Go on from where another trainer in this process has stopped."""
    trainer.progress = checkpoint.restore_checkpoint(
        state, Path(), trainer.problem.model, trainer.optimizer, trainer.optimization
    )


def _try_steps(trainer: Trainer, prepared: PreparedTraining) -> float:
    progress = trainer.progress
    with closing(prepared.steps(progress.finished_epochs + 1, progress.step)) as steps:
        trainer.train_steps(prepared.execution, _take(steps, WARM_STEPS))
        before = progress.seconds_so_far
        trainer.train_steps(prepared.execution, _take(steps, TIMED_STEPS))
    return (progress.seconds_so_far - before) / TIMED_STEPS


def _try_epochs(trainer: Trainer, prepared: PreparedTraining) -> float:
    progress = trainer.progress
    for _ in range(EPOCHS):
        with closing(prepared.steps(progress.finished_epochs + 1, progress.step)) as steps:
            report = trainer.train_epoch(prepared.execution, prepared.evaluator, steps)
        trainer.callbacks.tell_epoch(report)
    return report.seconds / trainer.problem.num_steps


def _take(steps: Iterator[Step], count: int) -> Generator[Step]:
    yield from islice(steps, count)
