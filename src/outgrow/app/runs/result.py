"""A finished run, as Python sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.nn.model import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What came of training.

    Attributes:
        model: The trained model, as it was in its best epoch.
        logits: ``[V, C]`` of that model for every node; of a model of links what its decoder takes, over the graph
            without the links that were set aside; None on a worker of a cluster that does not lead, and where the
            rows of all nodes are more than memory holds: `og.predict` or ``outgrow predict`` compute them.
        summary: Content of ``summary.json``: strategy and its options, workers, device, seed, epochs, ``loss`` and
            ``epoch_seconds`` (one per epoch), ``val_accuracy``, ``test_accuracy``, ``peak_bytes``, ``ledger``,
            ``counters`` (both of the last session, if resumed), ``exact``, and what was trained.
        directory: Where the run's files are; None if none were asked for.
    """

    model: Model
    logits: Tensor | None
    summary: dict[str, Any]
    directory: Path | None

    @property
    def loss(self) -> list[float]:
        """Training loss of each epoch."""
        return list(self.summary["loss"])

    @property
    def epoch_seconds(self) -> list[float]:
        """Wall time of the training part of each epoch."""
        return list(self.summary["epoch_seconds"])

    @property
    def val_accuracy(self) -> float:
        """Accuracy on the validation nodes (with several labels each, micro-F1) or MRR of links; NaN without any."""
        return _nan_if_none(self.summary["val_accuracy"])

    @property
    def test_accuracy(self) -> float:
        """Accuracy on the test nodes (micro-F1 with several labels per node), or MRR of links; NaN without such."""
        return _nan_if_none(self.summary["test_accuracy"])

    @property
    def ledger(self) -> dict[str, dict[str, int]]:
        """Bytes that crossed each link, by what they were: ``{link: {kind: bytes}}``."""
        return dict(self.summary["ledger"])

    def report(self, path: str | Path) -> Path:
        """Write a page that shows what happened and where time went: see ``outgrow report``.

        Args:
            path: The file, which ends in ``.html``.

        Raises:
            InputError: The run has no directory, or the file cannot be written.
        """
        from outgrow.app.report.page import write_report

        if self.directory is None:
            raise InputError(
                "a run without a directory has nothing to report",
                needed="the files of a run",
                got="og.train without out",
                repair='give og.train a directory: og.train(..., out="runs/first")',
            )
        return write_report([self.directory], Path(path))

    def __repr__(self) -> str:
        return (
            f"Run({self.summary['strategy']}, {self.summary['epochs']} epochs, "
            f"val {self.val_accuracy:.4f}, test {self.test_accuracy:.4f})"
        )


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value
