"""`Trainer`: the training loop of all strategies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.graph.sampling.edge_sampler import NEIGHBOR
from outgrow.strategies.base import Execution, Problem, Step, Strategy
from outgrow.training import checkpoint
from outgrow.training.checkpoint import TrainingProgress
from outgrow.training.config import TrainConfig
from outgrow.training.divergence import all_finite, divergence_error, has_finite_gradient
from outgrow.training.evaluation import Evaluation, Metrics
from outgrow.training.model_evaluator import ModelEvaluator
from outgrow.training.progress_events import ProgressReporter

EVALUATE, SAVE = "evaluate", "checkpoint"
"""Names of the phases between epochs."""


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """Metrics of one epoch.

    Attributes:
        epoch: Number of the epoch, from 1.
        loss: Training loss.
        val_score: Validation score; None if not evaluated.
        seconds: Wall time of the training part.
        edges_per_second: Edges aggregated, in all layers by all workers, per second of training.
        best_epoch: Epoch of the best validation score so far; 0 if none.
        phases: Seconds of training on rank 0, by what it did or waited for.
        evaluation_seconds: Wall time of the evaluation after the epoch; 0 without one.
    """

    epoch: int
    loss: float
    val_score: float | None
    seconds: float
    edges_per_second: float
    best_epoch: int
    phases: Mapping[str, float] = field(default_factory=dict)
    evaluation_seconds: float = 0.0


class TrainerCallback(Protocol):
    """Receiver of training metrics, such as a progress bar or a metrics file."""

    def on_epoch_end(self, report: EpochReport) -> None:
        """Handle the end of an epoch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainResult:
    """Result of training.

    Attributes:
        progress: Curves and the best epoch.
        val: Metrics of the restored model on the validation set.
        test: Metrics of the restored model on the test set.
        logits: ``[V, C]`` output of the restored model; None on ranks other than 0, if only scored nodes were
            evaluated, and if the rows of all nodes do not fit into memory (`og.predict` or ``outgrow predict``
            compute them).
        stop_reason: Why training stopped: ``"epochs"``, ``"patience"`` or ``"interrupted"``.
    """

    progress: TrainingProgress
    val: Metrics
    test: Metrics
    logits: Tensor | None
    stop_reason: str


class Trainer:
    """Trains a model with a strategy. Final.

    Args:
        problem: Model, graph and objective.
        evaluation: Validation and test sets.
        config: Training options.
        folder: Folder of the checkpoints; None to write none.
        is_interrupted: Called after every epoch; if true on any worker, all workers stop with a checkpoint.
        reporter: Receiver of progress events; None for no events.
        validate_inputs: Called before the results of steps are reported or saved; raises if the data read may
            be wrong.
    """

    def __init__(
        self,
        problem: Problem,
        evaluation: Evaluation,
        config: TrainConfig,
        *,
        folder: Path | None = None,
        is_interrupted: Callable[[], bool] = lambda: False,
        reporter: ProgressReporter | None = None,
        validate_inputs: Callable[[], None] = lambda: None,
    ) -> None:
        self.problem = problem
        self.evaluation = evaluation
        self.config = config
        self.folder = folder
        self.is_interrupted = is_interrupted
        self.reporter = reporter or ProgressReporter()
        self.validate_inputs = validate_inputs
        self.callbacks: list[TrainerCallback] = []
        self.comm = problem.shard.comm
        self.ledger = problem.shard.comm.ledger
        self.optimizer = config.make_optimizer(problem.model)
        self.progress = TrainingProgress.at_start()
        batches = problem.batches
        sampling = f"fanout {batches.describe()}, weighted {batches.weighted}"
        # Not for the default: checkpoints of earlier versions do not name it.
        sampling += "" if batches.sampler == NEIGHBOR else f", sampler {batches.sampler}"
        # All that decides which batches an epoch has: a mid-epoch checkpoint fits only the same ones.
        self.step_signature = (
            f"batch_size {batches.size}, {sampling}, seed {problem.seed}, {problem.num_train} to train on"
        )

    def add_callbacks(self, *callbacks: TrainerCallback) -> None:
        """Add callbacks, called in this order after every epoch."""
        self.callbacks.extend(callbacks)

    def resume(self, path: Path, data: Mapping[str, str] | None = None) -> None:
        """Resume from a checkpoint, with the learning rate and weight decay of this trainer's `TrainConfig`.

        Args:
            path: Path of the checkpoint.
            data: Fingerprint of the data to go on with, if it is known: see `TrainingProgress.adopt_data`.

        Raises:
            InputError: The checkpoint cannot be used, or it was written in the middle of an epoch that this
                trainer would not train, or would train with other batches.
        """
        # Other hosts may not see the file.
        saved = self.comm.broadcast(
            checkpoint.load_checkpoint(path) if self.comm.is_rank_zero else None, Kind.PARAMETERS
        )
        self.progress = checkpoint.restore_checkpoint(saved, path, self.problem.model, self.optimizer)
        self.progress.adopt_data(data or {})
        checkpoint.validate_step_signature(self.progress, path, self.step_signature, self.config.epochs)
        # The saved state brought its own; the user may want to continue with others, such as a lower rate.
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = self.config.lr, self.config.weight_decay

    def run(self, strategy: Strategy) -> TrainResult:
        """Train until the last epoch, lost patience or an interrupt; restore the best model and score it.

        Raises:
            TrainingError: A loss, gradient or parameter is not finite; the step is not applied and nothing is
                saved.
        """
        self.reporter.start_phase("preparing")
        execution = strategy.prepare(self.problem)
        stopped = "epochs"
        saved = self.progress.finished_epochs
        try:
            evaluator = ModelEvaluator(
                self.problem,
                self.evaluation,
                self.config.evaluation,
                execution,
                self.reporter,
                uses_minibatches=strategy.uses_minibatches,
            )
            while self.progress.finished_epochs < self.config.epochs:
                # Before the epoch, so that a resumed run with no patience left trains none.
                if self._is_out_of_patience():
                    stopped = "patience"
                    break
                # Closed at once after an error: the generator may hold threads and buffers of the epoch.
                with closing(execution.steps(self.progress.finished_epochs + 1, self.progress.step)) as steps:
                    report = self._train_epoch(execution, evaluator, steps)
                for callback in self.callbacks:
                    callback.on_epoch_end(report)
                if self._any_interrupted():
                    stopped = "interrupted"
                    break
                if self.progress.finished_epochs % self.config.checkpoint_every == 0:
                    saved = self._save_checkpoint(execution)
            if saved != self.progress.finished_epochs:
                self._save_checkpoint(execution)
            return self._make_result(evaluator, stopped)
        finally:
            execution.close()
            self.problem.close()

    def _train_epoch(self, execution: Execution, evaluator: ModelEvaluator, steps: Generator[Step]) -> EpochReport:
        progress, config, timeline = self.progress, self.config, self.problem.timeline
        self.problem.model.train()
        phases_before = timeline.phases.copy()
        # Of an epoch resumed in the middle, this process has trained only a part: rates use differences.
        edges_before = self.ledger.counters["edges_aggregated"]
        seconds_before = progress.seconds_so_far
        epoch = f"epoch {progress.finished_epochs + 1}"
        num_steps = _steps_per_epoch(self.problem)
        self.reporter.start_phase(epoch, num_steps)
        progress.course = self.step_signature
        began = time.perf_counter()
        for step in steps:
            # Before the optimizer step: afterwards every parameter would be NaN, and its cause unknown.
            if not (math.isfinite(step.loss) and has_finite_gradient(self.problem.model)):
                # The search for the cause runs inference, which needs the buffers of the step.
                steps.close()
                raise divergence_error(
                    self.problem,
                    execution,
                    self._step_label(progress.finished_epochs + 1, progress.step + 1),
                    step.loss,
                )
            with timeline.span("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            progress.add_step(step.loss, step.num_seeds)
            # Before the checkpoint, which saves this number; its own time does not count as training.
            progress.seconds_so_far += time.perf_counter() - began
            self.reporter.advance_to(epoch, progress.step, num_steps)
            if config.checkpoint_steps is not None and progress.step % config.checkpoint_steps == 0:
                # A barrier: nothing is saved until every worker has validated what it has read.
                self._all_reduce_when_valid(0)
                self._save_checkpoint(execution)
            began = time.perf_counter()
        progress.seconds_so_far += time.perf_counter() - began
        seconds = progress.seconds_so_far - seconds_before
        phases = {name: took for name, took in (timeline.phases - phases_before).items() if name != SAVE}
        edges = self.ledger.counters["edges_aggregated"] - edges_before
        progress.end_epoch()
        evaluated = progress.finished_epochs % config.eval_every == 0 and evaluator.validates
        began = time.perf_counter()
        with timeline.span(EVALUATE):
            progress.val_score.append(self._evaluate_model(evaluator) if evaluated else None)
        evaluation_seconds = time.perf_counter() - began if evaluated else 0.0
        return EpochReport(
            epoch=progress.finished_epochs,
            loss=progress.loss[-1],
            val_score=progress.val_score[-1],
            seconds=progress.epoch_seconds[-1],
            edges_per_second=self._all_reduce_when_valid(edges) / seconds,
            best_epoch=progress.best_epoch,
            phases=phases,
            evaluation_seconds=evaluation_seconds,
        )

    def _evaluate_model(self, evaluator: ModelEvaluator) -> float:
        """Return the validation score; keep the model if it is the best so far (ties: lower loss)."""
        progress = self.progress
        metrics = evaluator.validate()
        # Compared as scores of which more is better; the best one so far is -inf before the first.
        sign = 1 if self.evaluation.larger_is_better or not progress.best_epoch else -1
        score = metrics.score if self.evaluation.larger_is_better else -metrics.score
        if (score, -metrics.loss) > (sign * progress.best_score, -progress.best_loss):
            progress.best_epoch = progress.finished_epochs
            progress.best_score = metrics.score
            progress.best_loss = metrics.loss
            # A copy: the optimizer updates parameters in place.
            state = self.problem.model.state_dict()
            progress.best_model = {name: value.to("cpu", copy=True) for name, value in state.items()}
        return metrics.score

    def _is_out_of_patience(self) -> bool:
        patience = self.config.patience
        progress = self.progress
        # An epoch without evaluation may have improved the model.
        if not progress.val_score or progress.val_score[-1] is None:
            return False
        return (
            patience is not None
            and progress.best_epoch > 0
            and progress.finished_epochs - progress.best_epoch >= patience
        )

    def _step_label(self, epoch: int, step: int) -> str:
        num_steps = _steps_per_epoch(self.problem)
        return f"epoch {epoch}, step {step} of {num_steps}" if step and num_steps > 1 else f"epoch {epoch}"

    def _save_checkpoint(self, execution: Execution) -> int:
        progress = self.progress
        # The last optimizer step may have overflowed. Parameters are equal everywhere, so all workers raise.
        if not all_finite(self.problem.model.parameters()):
            epoch = progress.finished_epochs + bool(progress.step)
            seeds = progress.seeds_so_far
            loss = progress.loss_so_far / seeds if seeds else progress.loss[-1]
            raise divergence_error(self.problem, execution, self._step_label(epoch, progress.step), loss)
        if self.folder is not None and self.comm.is_rank_zero:
            with self.problem.timeline.span(SAVE):
                checkpoint.save_checkpoint(self.folder, self.problem.model, self.optimizer, progress)
        return progress.finished_epochs

    def _any_interrupted(self) -> bool:
        return self._all_reduce_count(int(self.is_interrupted())) > 0

    def _all_reduce_when_valid(self, count: int) -> int:
        """Sum over all workers after each has validated its input; if one fails, none continues."""
        self.validate_inputs()
        return self._all_reduce_count(count)

    def _all_reduce_count(self, count: int) -> int:
        return int(self.comm.all_reduce(torch.tensor(count)))

    def _make_result(self, evaluator: ModelEvaluator, stopped: str) -> TrainResult:
        if self.progress.best_model is not None:
            self.problem.model.load_state_dict(self.progress.best_model)
        val, test, logits = evaluator.score_result()
        return TrainResult(progress=self.progress, val=val, test=test, logits=logits, stop_reason=stopped)


def _steps_per_epoch(problem: Problem) -> int:
    """Return the number of steps of an epoch."""
    size = problem.batches.size
    return 1 if size is None else -(-problem.num_train // size)
