"""A run directory: everything about one run, each file whole or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from outgrow.core.errors import InputError
from outgrow.training import checkpoint
from outgrow.training.trainer import EpochReport


class RunDirectory:
    """Files of a run: ``config.json``, ``metrics.jsonl``, ``ledger.json``, ``summary.json``, ``checkpoint/``. Final.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.metrics = path / "metrics.jsonl"

    @staticmethod
    def create(path: Path, config: Mapping[str, Any]) -> RunDirectory:
        """A new run directory.

        Raises:
            InputError: There is something at ``path`` already, or it cannot be written.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(
                f"{path} is in use",
                needed="a new or empty directory for the run",
                got="a file" if path.is_file() else f"a directory with {sum(1 for _ in path.iterdir())} entries",
                repair="give another --out, or add --resume to go on with the run there",
            )
        run = RunDirectory(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run.write("config.json", config)
        except OSError as error:
            raise InputError(
                f"cannot write to {path}",
                needed="a directory that can be written",
                got=str(error),
                repair="give another --out",
            ) from error
        return run

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """An existing run directory.

        Raises:
            InputError: There is no run at ``path``.
        """
        if not (path / "config.json").is_file():
            raise InputError(
                f"there is no run in {path}",
                needed="a directory with config.json, as `outgrow train --out DIR` makes it",
                got="a directory without it" if path.is_dir() else "no such directory",
                repair="check the path; without --resume a new run starts",
            )
        return RunDirectory(path)

    @property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        return self.read("config.json")

    def read(self, name: str) -> dict[str, Any]:
        """Content of a JSON file of the run.

        Raises:
            InputError: It is missing or broken.
        """
        path = self.path / name
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot read {path}",
                needed="a JSON file written by outgrow",
                got=str(error),
                repair="start the run again in a new directory",
            ) from error
        return content

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file; it is replaced whole."""
        path = self.path / name
        partial = path.with_name(f".{name}.partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, path)

    def newest_checkpoint(self) -> Path:
        """The last checkpoint.

        Raises:
            InputError: There is none.
        """
        found = checkpoint.newest(self.checkpoints)
        if found is None:
            raise InputError(
                f"the run in {self.path} has no checkpoint",
                needed="at least one checkpoint, written every few epochs and at the end",
                got="none: the run ended before its first",
                repair="remove the directory and start again, with a smaller checkpoint_every",
            )
        return found

    def load_best(self, model: nn.Module) -> None:
        """Put the best model of the run into ``model``.

        Raises:
            InputError: There is no checkpoint, or it is of another model.
        """
        path = self.newest_checkpoint()
        saved = checkpoint.load(path)
        checkpoint.fill(model, saved["progress"]["best_model"] or saved["model"], path)

    def forget_after(self, epoch: int) -> None:
        """Drop the metrics of epochs after ``epoch``: they will be run again."""
        if self.metrics.exists():
            lines = self.metrics.read_text().splitlines()
            kept = [line for line in lines if _epoch_of(line) <= epoch]
            partial = self.metrics.with_suffix(".partial")
            partial.write_text("".join(f"{line}\n" for line in kept))
            os.replace(partial, self.metrics)

    def epoch(self, report: EpochReport) -> None:
        """Append a line to ``metrics.jsonl``."""
        line = {
            "epoch": report.epoch,
            "loss": report.loss,
            "val_score": report.val_score,
            "seconds": report.seconds,
            "edges_per_second": report.edges_per_second,
        }
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _epoch_of(line: str) -> float:
    """Epoch of a line of metrics; a line torn by a crash counts as never written."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
