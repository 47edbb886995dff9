"""`Trainer`: the training loop of all strategies."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outgrow.core.compile_clock import CompileTally, compile_clock, describe_compilation
from outgrow.core.ledger import Kind
from outgrow.strategies.base import Execution, Problem, Step, Strategy
from outgrow.training import checkpoint
from outgrow.training.callback_calls import FAILED, CallbackCalls
from outgrow.training.callbacks import EpochReport
from outgrow.training.checkpoint import TrainingProgress
from outgrow.training.config import TrainConfig
from outgrow.training.divergence import all_finite, divergence_error, has_finite_gradient
from outgrow.training.evaluation import Evaluation, Metrics
from outgrow.training.loop_options import no_score_error
from outgrow.training.model_evaluator import ModelEvaluator
from outgrow.training.optimization import Optimization
from outgrow.training.prepared_training import PreparedTraining
from outgrow.training.progress_events import ProgressReporter
from outgrow.training.trained_embeddings import TrainedEmbeddings

__all__ = ["EpochReport", "TrainResult", "Trainer"]
EVALUATE, SAVE, COMPILE = "evaluate", "checkpoint", "compile"
"""Names of spans beside the training of epochs."""


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
        stop_reason: Why training stopped: ``"epochs"``, ``"patience"``, ``"interrupted"`` or ``"callback"``.
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
        validate_inputs: Called before results are reported or saved; raises if the data read may be wrong.
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
        self.callbacks = CallbackCalls(problem, config)
        self.comm = problem.shard.comm
        self.ledger = problem.shard.comm.ledger
        self.optimization = Optimization.from_config(
            config, problem.model, problem.num_steps, larger_is_better=evaluation.monitor.higher_is_better
        )
        self.progress = TrainingProgress.at_start(evaluation.monitor)
        self.embeddings: TrainedEmbeddings
        self._saved_embeddings: tuple[Path, Mapping[str, Any]] | None = None
        self.compile_tally = CompileTally(compile_clock)
        self.step_signature = checkpoint.describe_steps(problem)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return self.optimization.optimizer

    def add_callbacks(self, *callbacks: object, guarded: bool = False) -> None:
        """Add callbacks: see `CallbackCalls.add`."""
        self.callbacks.add(*callbacks, guarded=guarded)

    def resume(self, path: Path, data: Mapping[str, str] | None = None) -> None:
        """Resume from a checkpoint, with the learning rates and weight decays of this trainer's `TrainConfig`.

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
        self.progress = checkpoint.restore_checkpoint(
            saved, path, self.problem.model, self.optimizer, self.optimization
        )
        # Read when there are tables to read them into.
        self._saved_embeddings = path.parent, saved.get("embeddings") or {}
        self.problem.strategy_state.clear()
        self.problem.strategy_state.update(checkpoint.read_strategy_state(saved, path))
        self.progress.adopt_data(data or {})
        if self.progress.step == 0:
            self.optimization.discard_batches()
        if self.progress.adopt_monitor(self.evaluation.monitor, default=self.evaluation.metric):
            self.reporter.show_note(
                f"{self.evaluation.monitor.name} is monitored now: earlier scores and the best epoch are forgotten"
            )
        checkpoint.validate_step_signature(self.progress, path, self.step_signature, self.config.epochs)

    def run(self, strategy: Strategy) -> TrainResult:
        """Train until the last epoch, lost patience or an interrupt; restore the best model and score it.

        Raises:
            TrainingError: A loss, gradient or parameter is not finite; the step is not applied, nothing is saved.
        """
        stopped = "epochs"
        saved = self.progress.finished_epochs
        saved_rows = self._saved_embeddings
        made = self.problem, self.evaluation, strategy, self.config.evaluation, self.reporter
        with (
            compile_clock.notify(self.tell_compilation),
            closing(PreparedTraining(*made, resumes=saved_rows is not None)) as prepared,
        ):
            execution, evaluator = prepared.execution, prepared.evaluator
            self.optimization.attach_embeddings(prepared.embeddings)
            self.embeddings = TrainedEmbeddings(self.problem, prepared.embeddings, self.folder)
            if saved_rows is not None:
                self.embeddings.load(*saved_rows)
            if self.optimization.needs_score and not evaluator.validates:
                raise no_score_error("nothing to validate on")
            self.callbacks.tell_start(strategy.name, self.progress.finished_epochs)
            while self.progress.finished_epochs < self.config.epochs:
                # Before the epoch, so that a resumed run with no patience left trains none.
                if self._is_out_of_patience():
                    stopped = "patience"
                    break
                # Closed at once after an error: the generator may hold threads and buffers of the epoch.
                with closing(prepared.steps(self.progress.finished_epochs + 1, self.progress.step)) as steps:
                    report = self.train_epoch(execution, evaluator, steps)
                self.callbacks.tell_epoch(report)
                if reason := self.callbacks.stop_reason(self.is_interrupted()):
                    stopped = reason
                    break
                if self.progress.finished_epochs % self.config.checkpoint_every == 0:
                    saved = self._save_checkpoint(execution)
                if self.callbacks.must_end_now():
                    stopped = FAILED
                    break
            if saved != self.progress.finished_epochs:
                self._save_checkpoint(execution)
            if stopped == FAILED:
                raise self.callbacks.make_error(self.progress.finished_epochs, self.folder)
            return self._make_result(evaluator, stopped)

    def train_epoch(self, execution: Execution, evaluator: ModelEvaluator, steps: Generator[Step]) -> EpochReport:
        """Train the next epoch, and evaluate the model if it is due."""
        progress, config, timeline = self.progress, self.config, self.problem.timeline
        phases_before = timeline.phases.copy()
        # Of an epoch resumed in the middle, this process has trained only a part: rates use differences.
        edges_before = self.ledger.counters["edges_aggregated"]
        seconds_before = progress.seconds_so_far
        lr = self.train_steps(execution, steps)
        began = compile_clock.working_time()
        with timeline.span("optimizer"):
            self.optimization.flush()
        progress.seconds_so_far += compile_clock.working_time() - began
        self.embeddings.require_finite(f"epoch {progress.finished_epochs + 1}")
        seconds = progress.seconds_so_far - seconds_before
        phases = {k: took for k, took in (timeline.phases - phases_before).items() if k not in (SAVE, COMPILE)}
        edges = self.ledger.counters["edges_aggregated"] - edges_before
        progress.end_epoch()
        evaluated = progress.finished_epochs % config.eval_every == 0 and evaluator.validates
        began = compile_clock.working_time()
        with timeline.span(EVALUATE):
            metrics = self._evaluate_model(evaluator) if evaluated else None
        progress.val_score.append(None if metrics is None else metrics.score)
        self.optimization.end_epoch(progress.val_score[-1])
        evaluation_seconds = compile_clock.working_time() - began if evaluated else 0.0
        compiled = self.compile_tally.take_fresh()
        return EpochReport(
            epoch=progress.finished_epochs,
            loss=progress.loss[-1],
            val_score=progress.val_score[-1],
            seconds=progress.epoch_seconds[-1],
            edges_per_second=self._all_reduce_when_valid(edges) / seconds,
            best_epoch=progress.best_epoch,
            phases=phases,
            evaluation_seconds=evaluation_seconds,
            compile_seconds=compiled.seconds,
            compiled_kernels=compiled.kernels,
            scores={} if metrics is None else metrics.figures,
            lr=lr,
            control=self.callbacks.control,
        )

    def train_steps(self, execution: Execution, steps: Generator[Step]) -> float:
        """Train steps of the next epoch, all or some; return the learning rate of the last one."""
        progress, config, timeline = self.progress, self.config, self.problem.timeline
        epoch = f"epoch {progress.finished_epochs + 1}"
        num_steps = self.problem.num_steps
        self.reporter.start_phase(epoch, num_steps)
        progress.course = self.step_signature
        lr = self.optimization.lr
        began = compile_clock.working_time()
        for step in steps:
            # Before the optimizer step: afterwards every parameter would be NaN, and its cause unknown.
            if not (math.isfinite(step.loss) and has_finite_gradient(self.problem.model)):
                # The search for the cause runs inference, which needs the buffers of the step.
                steps.close()
                label = self._step_label(progress.finished_epochs + 1, progress.step + 1)
                self.embeddings.require_finite(label)
                raise divergence_error(self.problem, execution, label, step.loss)
            with timeline.span("optimizer"):
                lr = self.optimization.lr
                updated = self.optimization.step_batch(step.num_seeds)
            progress.add_step(step.loss, step.num_seeds)
            # Before the checkpoint, which saves this number; its own time does not count as training.
            took = compile_clock.working_time() - began
            progress.seconds_so_far += took
            if self.callbacks.handle_steps:
                self.callbacks.tell_step(progress, step, lr=lr, updated=updated, seconds=took)
                if self.callbacks.must_end_now(progress.step):
                    self.validate_inputs()
                    self._save_checkpoint(execution)
                    raise self.callbacks.make_error(progress.finished_epochs, self.folder)
            self.reporter.advance_to(epoch, progress.step, num_steps)
            if config.checkpoint_steps is not None and progress.step % config.checkpoint_steps == 0:
                # A barrier: nothing is saved until every worker has validated what it has read.
                self._all_reduce_when_valid(0)
                self._save_checkpoint(execution)
            began = compile_clock.working_time()
        progress.seconds_so_far += compile_clock.working_time() - began
        return lr

    @contextmanager
    def tell_compilation(self, kernel: str) -> Iterator[None]:
        """Report a kernel that is compiled within the context: a `CompileListener`."""
        phase = describe_compilation(compile_clock.num_kernels + 1, kernel)
        with self.reporter.interrupt_phase(phase), self.problem.timeline.span(COMPILE):
            yield

    def _evaluate_model(self, evaluator: ModelEvaluator) -> Metrics:
        """Return the metrics on the validation set; keep the model if it is the best so far (ties: lower loss)."""
        began = compile_clock.working_time()
        with self.optimization.averaged_weights():
            metrics = evaluator.validate()
            is_best = self._compare_with_best(metrics)
            epoch, seconds = self.progress.finished_epochs, compile_clock.working_time() - began
            self.callbacks.tell_evaluation(epoch, metrics, seconds, is_best=is_best)
        return metrics

    def _compare_with_best(self, metrics: Metrics) -> bool:
        progress = self.progress
        is_tie = metrics.score == progress.best_score and metrics.loss < progress.best_loss
        if is_tie or self.evaluation.monitor.is_better(metrics.score, progress.best_score):
            progress.best_epoch = progress.finished_epochs
            progress.best_score = metrics.score
            progress.best_loss = metrics.loss
            # A copy: the optimizer updates parameters in place.
            state = self.problem.model.state_dict()
            progress.best_model = {name: value.to("cpu", copy=True) for name, value in state.items()}
            self.embeddings.keep_best()
        return progress.best_epoch == progress.finished_epochs

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
        num_steps = self.problem.num_steps
        return f"epoch {epoch}, step {step} of {num_steps}" if step and num_steps > 1 else f"epoch {epoch}"

    def _save_checkpoint(self, execution: Execution) -> int:
        progress = self.progress
        # The last optimizer step may have overflowed. Parameters are equal everywhere, so all workers raise.
        if not all_finite(self.problem.model.parameters()):
            epoch = progress.finished_epochs + bool(progress.step)
            seeds = progress.seeds_so_far
            loss = progress.loss_so_far / seeds if seeds else progress.loss[-1]
            raise divergence_error(self.problem, execution, self._step_label(epoch, progress.step), loss)
        with self.problem.timeline.span(SAVE):
            vectors = self.embeddings.save(checkpoint.checkpoint_name(progress))
        if self.folder is not None and self.comm.is_rank_zero:
            with self.problem.timeline.span(SAVE):
                kept = {"embeddings": vectors, "strategy_state": self.problem.strategy_state}
                path = checkpoint.save_checkpoint(
                    self.folder, self.problem.model, self.optimizer, progress, self.optimization.loop_state(), **kept
                )
            self.callbacks.tell_checkpoint(progress, path)
        return progress.finished_epochs

    def _all_reduce_when_valid(self, count: int) -> int:
        """Sum over all workers after each has validated its input; if one fails, none continues."""
        self.validate_inputs()
        return int(self.comm.all_reduce(torch.tensor(count)))

    def _make_result(self, evaluator: ModelEvaluator, stopped: str) -> TrainResult:
        if self.progress.best_model is not None:
            self.problem.model.load_state_dict(self.progress.best_model)
            self.embeddings.restore_best()
        else:
            self.optimization.adopt_averages()
        val, test, logits = evaluator.score_result()
        self.embeddings.give_to_model()
        self.callbacks.tell_end(self.progress, stopped, val, test)
        return TrainResult(progress=self.progress, val=val, test=test, logits=logits, stop_reason=stopped)
