"""`Run`: a finished run, as the Python interface returns it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from outgrow.app.runs.directory import RunDirectory, read_metrics
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """Result of training.

    Attributes:
        model: Trained model, with the parameters of its best epoch.
        logits: ``[V, C]`` logits of that model for every node. For a link model, the embeddings that its
            decoder takes, computed on the graph without held-out links. None on workers other than worker 0
            of a cluster, if only scored nodes were evaluated (``eval``), and if the rows of all nodes exceed
            memory: use `og.predict` or ``outgrow predict``.
        summary: Content of ``summary.json``: strategy and its options, workers, device, seed, epochs,
            ``loss`` and ``epoch_seconds`` (one per epoch), ``val_accuracy``, ``test_accuracy``,
            ``metric`` (the monitored one), ``val_score``, ``test_score``, ``scores``, ``peak_bytes``, ``ledger``,
            ``counters`` (both of the last session, if resumed), ``exact``, and the graph, the task and the options
            of the loop.
        directory: Run directory; None if no files were kept.
        interrupted_by: Number of the signal that ended training before its last epoch; None if none did.
    """

    model: Model
    logits: Tensor | None
    summary: dict[str, Any]
    directory: Path | None
    interrupted_by: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``; of a run without a directory the options of the loop, under ``train``."""
        return {"train": self.summary["train"]} if self.directory is None else RunDirectory(self.directory).config

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Loss, score and seconds of each epoch: lines of ``metrics.jsonl``; without a directory, loss and seconds."""
        if self.directory is not None:
            return read_metrics(RunDirectory(self.directory))
        curves = zip(self.loss, self.epoch_seconds, strict=True)
        return [{"epoch": epoch, "loss": loss, "seconds": seconds} for epoch, (loss, seconds) in enumerate(curves, 1)]

    def graph(self, *, data_dir: str | Path | None = None) -> Graph:
        """Load the graph that the run was trained on.

        Args:
            data_dir: Folder to look in first for the files of a named data set.

        Raises:
            InputError: The run has no directory, or its graph was in memory only.
        """
        from outgrow.app.runs.config import load_recorded_graph

        if self.directory is None:
            raise InputError(
                "a run without a directory has no graph",
                needed="the files of a run",
                got="og.train without out",
                repair='give og.train a directory: og.train(..., out="runs/first")',
            )
        return load_recorded_graph(self.config, None if data_dir is None else Path(data_dir))

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
        """Accuracy on validation nodes (micro-F1 if multi-label) or MRR of links; NaN if there are none."""
        return _nan_if_none(self.summary["val_accuracy"])

    @property
    def test_accuracy(self) -> float:
        """Accuracy on test nodes (micro-F1 if multi-label) or MRR of links; NaN if there are none."""
        return _nan_if_none(self.summary["test_accuracy"])

    @property
    def val_score(self) -> float:
        """The monitored metric, ``summary["metric"]``, on validation nodes or links; NaN if there are none."""
        return _nan_if_none(self.summary["val_score"])

    @property
    def test_score(self) -> float:
        """The monitored metric, ``summary["metric"]``, on test nodes or links; NaN if there are none."""
        return _nan_if_none(self.summary["test_score"])

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """All metrics by name, on ``"val"`` and on ``"test"`` nodes or links; NaN where there are none."""
        return {
            split: {name: _nan_if_none(value) for name, value in scores.items()}
            for split, scores in self.summary["scores"].items()
        }

    @property
    def ledger(self) -> dict[str, dict[str, int]]:
        """Bytes that crossed each link, by kind: ``{link: {kind: bytes}}``."""
        return dict(self.summary["ledger"])

    def report(self, path: str | Path) -> Path:
        """Write an HTML report on the results and on where time went, as ``outgrow report`` does.

        Args:
            path: File to write, which ends in ``.html``.

        Raises:
            InputError: The run has no directory, or the file cannot be written.
        """
        # Imported here: plotly takes long to load and only reports need it.
        from outgrow.app.report.page import write_report

        if self.directory is None:
            raise InputError(
                "a run without a directory cannot be reported",
                needed="the files of a run",
                got="og.train without out",
                repair='give og.train a directory: og.train(..., out="runs/first")',
            )
        return write_report([self.directory], Path(path))

    def __repr__(self) -> str:
        return (
            f"Run({self.summary['strategy']}, {self.summary['epochs']} epochs, "
            f"val {self.val_score:.4f}, test {self.test_score:.4f})"
        )


def _nan_if_none(value: float | None) -> float:
    # The summary has None, since JSON has no NaN; in Python a score is always a float.
    return math.nan if value is None else value
