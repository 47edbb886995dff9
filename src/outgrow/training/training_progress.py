"""`TrainingProgress`: how far training has come, which checkpoints keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from outgrow.graph.store.fingerprint import IDS, changed_parts
from outgrow.training.monitor import MAX, Monitor


@dataclass(kw_only=True)
class TrainingProgress:
    """Progress of training. Epochs count from 1; lists hold one entry per finished epoch.

    Attributes:
        loss: Training loss.
        val_score: Validation score: the value of the monitored metric; None for an epoch that was not evaluated.
        epoch_seconds: Wall time of the training part of the epoch.
        best_epoch: Epoch of the best validation score; 0 before the first.
        best_score: Best validation score.
        best_loss: Validation loss of the best epoch; breaks ties.
        best_model: State of the model after the best epoch; None before the first.
        step: Number of finished steps in the current epoch; 0 between epochs.
        loss_so_far: Sum of the losses of the seeds in these steps.
        seeds_so_far: Number of these seeds.
        seconds_so_far: Wall time of these steps.
        course: Options that decide the batches of the current epoch.
        exact: Whether every step so far, under any strategy, used the exact gradient.
        data: Fingerprint of the data that were trained on last; empty if it was not recorded.
        monitor: Name of the monitored metric; empty in checkpoints that only knew the task's own.
        monitor_mode: ``"max"`` if a higher score is better, else ``"min"``.
    """

    loss: list[float]
    val_score: list[float | None]
    epoch_seconds: list[float]
    best_epoch: int = 0
    best_score: float = float("-inf")
    best_loss: float = float("inf")
    best_model: dict[str, torch.Tensor] | None = None
    step: int = 0
    loss_so_far: float = 0.0
    seeds_so_far: int = 0
    seconds_so_far: float = 0.0
    course: str = ""
    exact: bool = True
    data: dict[str, str] = field(default_factory=dict)
    monitor: str = ""
    monitor_mode: str = MAX

    @property
    def finished_epochs(self) -> int:
        """Number of finished epochs."""
        return len(self.loss)

    def add_step(self, loss: float, num_seeds: int) -> None:
        """Add a finished step of the current epoch, with the mean loss of its seeds."""
        self.step += 1
        self.loss_so_far += loss * num_seeds
        self.seeds_so_far += num_seeds

    def end_epoch(self) -> None:
        """Close the current epoch, after its last step."""
        # With few links and a small share of them in a step, an epoch may have asked about none.
        self.loss.append(self.loss_so_far / max(1, self.seeds_so_far))
        self.epoch_seconds.append(self.seconds_so_far)
        self.step = 0
        self.loss_so_far = 0.0
        self.seeds_so_far = 0
        self.seconds_so_far = 0.0

    def adopt_data(self, data: Mapping[str, str]) -> None:
        """Go on with data of this fingerprint; if more than ids has changed, forget what was measured before."""
        if self.data and data and changed_parts(self.data, data) not in ([], [IDS]):
            self._forget_scores()
            # The rest of an unfinished epoch would have other batches: it begins again.
            self.step, self.loss_so_far = 0, 0.0
            self.seeds_so_far = 0
            self.seconds_so_far = 0.0
        self.data = dict(data) or self.data

    def adopt_monitor(self, monitor: Monitor, *, default: str) -> bool:
        """Go on with this metric; return whether scores were forgotten, since they were those of another one.

        Args:
            monitor: The metric to monitor from now on.
            default: Name of the task's own metric.
        """
        is_other = (self.monitor or default, self.monitor_mode) != (monitor.name, monitor.mode)
        has_scores = any(score is not None for score in self.val_score)
        self.monitor, self.monitor_mode = monitor.name, monitor.mode
        if is_other:
            self._forget_scores()
        return is_other and has_scores

    def _forget_scores(self) -> None:
        self.val_score = [None] * self.finished_epochs
        self.best_epoch = 0
        self.best_score = -math.inf if self.monitor_mode == MAX else math.inf
        self.best_loss = math.inf
        self.best_model = None

    @staticmethod
    def at_start(monitor: Monitor | None = None) -> TrainingProgress:
        """Return the progress before the first epoch; ``monitor`` is the metric to monitor, if known."""
        monitor = monitor or Monitor("")
        return TrainingProgress(
            loss=[],
            val_score=[],
            epoch_seconds=[],
            best_score=monitor.worst,
            monitor=monitor.name,
            monitor_mode=monitor.mode,
        )
