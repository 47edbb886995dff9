"""The training loop, written once above every strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.errors import TrainingError
from outgrow.core.types import Kind
from outgrow.engine.resident import between
from outgrow.engine.share import Share
from outgrow.strategies.base import Execution, Problem, Step, Strategy
from outgrow.training import checkpoint
from outgrow.training.checkpoint import Progress
from outgrow.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """What there is to say after an epoch.

    Attributes:
        epoch: Number of the epoch, from 1.
        loss: Training loss.
        val_score: Validation score; None if not evaluated.
        seconds: Wall time of the training part.
        edges_per_second: Edges aggregated, all layers, per second of training.
        best_epoch: Epoch of the best validation score so far; 0 if none.
    """

    epoch: int
    loss: float
    val_score: float | None
    seconds: float
    edges_per_second: float
    best_epoch: int


class Listener(Protocol):
    """Whoever wants to know how training goes: progress bars, files of metrics."""

    def epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Nodes to score a model on.

    Attributes:
        val: ``[n]`` int64, rows of own nodes to validate on, ascending; may be empty.
        test: ``[n]`` int64, rows of own nodes to test on, ascending; may be empty.
        num_val: Number of nodes to validate on, over all workers.
    """

    val: Tensor
    test: Tensor
    num_val: int

    @staticmethod
    def of(share: Share, val: Tensor, test: Tensor) -> Evaluation:
        """The evaluation on a share, from the ids of all nodes to validate and to test on, ascending."""
        return Evaluation(val=share.places(val), test=share.places(test), num_val=len(val))


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How training ended.

    Attributes:
        progress: Curves and the best epoch.
        val_score: Validation score of the restored model; NaN without validation nodes.
        test_score: Test score of the restored model; NaN without test nodes.
        logits: ``[V, C]`` of the restored model; None on workers that do not lead, and where the rows of all nodes are
            more than memory holds: `og.predict` or ``outgrow predict`` compute them.
        stopped: Why the last epoch was the last: ``"epochs"``, ``"patience"`` or ``"interrupted"``.
    """

    progress: Progress
    val_score: float
    test_score: float
    logits: Tensor | None
    stopped: str


class Trainer:
    """Trains a problem under a strategy. Final.

    Args:
        problem: What is trained.
        evaluation: Nodes to score on.
        config: How long and how hard.
        folder: Where checkpoints go; None for none.
        interrupted: Asked after every epoch whether to stop, with a checkpoint. All workers stop if one does.
    """

    def __init__(
        self,
        problem: Problem,
        evaluation: Evaluation,
        config: TrainConfig,
        *,
        folder: Path | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.problem, self.evaluation, self.config = problem, evaluation, config
        self.folder, self.interrupted = folder, interrupted
        self.listeners: list[Listener] = []
        self.comm, self.ledger = problem.share.comm, problem.share.comm.ledger
        self.optimizer = config.make_optimizer(problem.model)
        self.progress = Progress.start()

    def listen(self, *listeners: Listener) -> None:
        """Tell these after every epoch, in this order."""
        self.listeners.extend(listeners)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, with the learning rate and weight decay of this trainer's `TrainConfig`."""
        saved = self.comm.broadcast(checkpoint.load(path) if self.comm.leads else None, Kind.PARAMETERS)
        self.progress = checkpoint.restore(saved, path, self.problem.model, self.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = self.config.lr, self.config.weight_decay

    def run(self, strategy: Strategy) -> Outcome:
        """Train until the epochs, the patience or the user's are at their end; restore the best model; score it."""
        execution = strategy.prepare(self.problem)
        stopped = "epochs"
        saved = self.progress.epoch
        try:
            while self.progress.epoch < self.config.epochs:
                if self._out_of_patience():
                    stopped = "patience"
                    break
                with closing(execution.steps(self.progress.epoch + 1)) as steps:
                    report = self._epoch(execution, steps)
                for listener in self.listeners:
                    listener.epoch(report)
                if self._interrupted():
                    stopped = "interrupted"
                    break
                if self.progress.epoch % self.config.checkpoint_every == 0:
                    saved = self._save()
            if saved != self.progress.epoch:
                self._save()
            return self._outcome(execution, stopped)
        finally:
            execution.close()

    def _epoch(self, execution: Execution, steps: Iterator[Step]) -> EpochReport:
        edges_before = self.ledger.counters["edges_aggregated"]
        began = time.perf_counter()
        total, seeds = 0.0, 0
        for step in steps:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            total += step.loss * step.num_seeds
            seeds += step.num_seeds
        seconds = time.perf_counter() - began
        edges = self._summed(self.ledger.counters["edges_aggregated"] - edges_before)
        progress = self.progress
        progress.loss.append(_finite(total / seeds, progress.epoch + 1))
        progress.epoch_seconds.append(seconds)
        evaluated = progress.epoch % self.config.eval_every == 0
        progress.val_score.append(self._evaluate(execution) if evaluated else None)
        return EpochReport(
            epoch=progress.epoch,
            loss=progress.loss[-1],
            val_score=progress.val_score[-1],
            seconds=seconds,
            edges_per_second=edges / seconds,
            best_epoch=progress.best_epoch,
        )

    def _evaluate(self, execution: Execution) -> float | None:
        """Validation score; remembers the model if it is the best so far (ties: the lower validation loss)."""
        task, progress, num_val = self.problem.task, self.progress, self.evaluation.num_val
        if num_val == 0:
            return None
        tallies, losses = [], []
        for first, logits_NC in execution.inference():
            logits, labels = self._found(self.evaluation.val, first, logits_NC)
            tallies.append(task.tally(logits, labels))
            losses.append(task.loss(logits, labels, num_val).double())
        score = self._score(tallies)
        loss = self.comm.sum_(torch.stack(losses).sum()).item()
        if (score, -loss) > (progress.best_score, -progress.best_loss):
            progress.best_epoch, progress.best_score, progress.best_loss = progress.epoch, score, loss
            state = self.problem.model.state_dict()
            progress.best_model = {name: value.to("cpu", copy=True) for name, value in state.items()}
        return score

    def _out_of_patience(self) -> bool:
        patience, progress = self.config.patience, self.progress
        return patience is not None and progress.best_epoch > 0 and progress.epoch - progress.best_epoch >= patience

    def _save(self) -> int:
        if self.folder is not None and self.comm.leads:
            checkpoint.save(self.folder, self.problem.model, self.optimizer, self.progress)
        return self.progress.epoch

    def _interrupted(self) -> bool:
        return self._summed(int(self.interrupted())) > 0

    def _summed(self, count: int) -> int:
        return int(self.comm.sum_(torch.tensor(count)))

    def _found(self, rows: Tensor, first: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and labels of those of some ascending rows that lie in a piece of the own nodes."""
        found = rows[between(rows, first, first + len(logits))]
        return logits[found - first], self.problem.labels[found]

    def _score(self, tallies: list[Tensor]) -> float:
        return self.problem.task.score_of(self.comm.sum_(torch.stack(tallies).sum(0)))

    def _outcome(self, execution: Execution, stopped: str) -> Outcome:
        problem = self.problem
        if self.progress.best_model is not None:
            problem.model.load_state_dict(self.progress.best_model)
        kept: list[Tensor] = []
        val: list[Tensor] = []
        test: list[Tensor] = []
        for first, logits in execution.inference():
            for tallies, rows in ((val, self.evaluation.val), (test, self.evaluation.test)):
                tallies.append(problem.task.tally(*self._found(rows, first, logits)))
            if execution.in_memory:
                kept.append(logits)
        val_score, test_score = self._score(val), self._score(test)
        whole = problem.share.to_leader(kept[0] if len(kept) == 1 else torch.cat(kept)) if execution.in_memory else None
        return Outcome(
            progress=self.progress, val_score=val_score, test_score=test_score, logits=whole, stopped=stopped
        )


def _finite(loss: float, epoch: int) -> float:
    if math.isfinite(loss):
        return loss
    raise TrainingError(
        f"training diverged in epoch {epoch}",
        needed="a finite loss",
        got=f"a loss of {loss}",
        repair="lower the learning rate and start a new run",
    )
