"""A run directory: everything about one run, each file whole or absent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn

from outgrow.app.console import log_message
from outgrow.app.runs.lock import NAME, RunLock
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.training import checkpoint
from outgrow.training.trainer import EpochReport

_CONFIG = ("graph", "model", "train", "strategy")


class RunDirectory:
    """Files of a run: ``config.json``, ``metrics.jsonl``, ``ledger.json``, ``summary.json`` and others. Final.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_dir = path / "checkpoint"
        self.metrics_path = path / "metrics.jsonl"
        self._lock: RunLock | None = None

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], *, again: bool = False) -> RunDirectory:
        """A new run directory, held by this process.

        Args:
            path: Where.
            config: Content of ``config.json``.
            again: Whether the run was started before, and may find its own files.

        Raises:
            InputError: There is something at ``path`` already, or it cannot be written.
        """
        if not again and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(
                f"{path} is in use",
                needed="a new or empty directory for the run",
                got="a file" if path.is_file() else f"a directory with {sum(1 for _ in path.iterdir())} entries",
                repair="give another --out, or add --resume to go on with the run there",
            )
        run = RunDirectory(path)
        with convert_write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        try:
            run.acquire_lock()
            run.write_json("config.json", config)
        except InputError:
            run.release_lock()
            with suppress(OSError):
                path.rmdir()
            raise
        return run

    def acquire_lock(self) -> None:
        """Let nobody else train here until `release`, or the end of this process.

        Raises:
            InputError: Another process does, or nothing can be written here.
        """
        with convert_write_errors(self.path / NAME):
            self._lock = RunLock(self.path)
        if not self._lock.is_exclusive:
            log_message(f"the file system of {self.path} has no locks: see to it that no other run is at work there")

    def release_lock(self) -> None:
        """Let others train here."""
        if self._lock is not None:
            self._lock.release()

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

    def discard_unstarted(self) -> None:
        """Remove a run of which no epoch has ended, and which was refused: nothing of it is of use."""
        if not self.has_checkpoint and not (self.metrics_path.exists() and self.metrics_path.stat().st_size):
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``.

        Raises:
            InputError: It is missing or broken, or says nothing of the run.
        """
        config = self.read_json("config.json")
        missing = [key for key in _CONFIG if key not in config]
        if missing:
            raise _unreadable_error(self.path / "config.json", f"nothing under {', '.join(missing)}")
        return config

    def read_json(self, name: str) -> dict[str, Any]:
        """Content of a JSON file of the run.

        Raises:
            InputError: It is missing or broken.
        """
        path = self.path / name
        try:
            content: object = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise _unreadable_error(path, str(error)) from error
        if not isinstance(content, dict):
            raise _unreadable_error(path, f"a {type(content).__name__} instead of named values")
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file; it is replaced whole.

        Raises:
            InputError: It cannot be written.
        """
        write_text_atomically(self.path / name, json.dumps(content, indent=2) + "\n")

    @property
    def resume_hints(self) -> dict[str, Any]:
        """Content of ``hints.json``: what strategies found out; nothing if it is missing or broken."""
        try:
            return self.read_json("hints.json")
        except InputError:
            return {}

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return checkpoint.latest_checkpoint(self.checkpoint_dir) is not None

    def latest_checkpoint(self, warn: Callable[[str], None] = lambda text: None) -> Path:
        """The last checkpoint that is whole.

        Args:
            warn: Told, in a sentence, of later ones that are not.

        Raises:
            InputError: There is none.
        """
        torn: list[Path] = []
        found = checkpoint.latest_checkpoint(self.checkpoint_dir, torn.append)
        if found is None:
            raise InputError(
                f"the run in {self.path} has no checkpoint",
                needed="at least one checkpoint, written every few epochs and at the end",
                got=f"{len(torn)} that are torn or changed" if torn else "none: the run ended before its first",
                repair="remove the directory and start anew, with a smaller checkpoint_every or with checkpoint_steps",
            )
        for path in torn:
            warn(f"the checkpoint {path} is torn or changed: its checksum is another; {found.name} is used instead")
        return found

    def load_best(self, model: nn.Module) -> None:
        """Put the best model of the run into ``model``.

        Raises:
            InputError: There is no checkpoint, or it is of another model.
        """
        path = self.latest_checkpoint(log_message)
        saved = checkpoint.load_checkpoint(path)
        checkpoint.load_parameters(model, saved["progress"]["best_model"] or saved["model"], path)

    def truncate_after(self, epoch: int) -> None:
        """Drop the metrics of epochs after ``epoch``: they will be run again."""
        if self.metrics_path.exists():
            lines = self.metrics_path.read_text("utf-8", "replace").splitlines()  # what was torn is of no epoch
            kept = [line for line in lines if _parse_epoch(line) <= epoch]
            write_text_atomically(self.metrics_path, "".join(f"{line}\n" for line in kept))

    def on_epoch_end(self, report: EpochReport) -> None:
        """Append a line to ``metrics.jsonl``."""
        line = {
            "epoch": report.epoch,
            "loss": report.loss,
            "val_score": report.val_score,
            "seconds": report.seconds,
            "edges_per_second": report.edges_per_second,
            "evaluation_seconds": report.evaluation_seconds,
            "phases": report.phases,
        }
        # Appended, and not flushed: the file grows with every epoch, and `truncate_after` drops a line torn by a crash.
        with convert_write_errors(self.metrics_path), self.metrics_path.open("a") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def release_on_exit(run: RunDirectory | None) -> Iterator[RunDirectory | None]:
    """A directory in which nobody else trains until the end of the context, or none."""
    try:
        yield run
    finally:
        if run is not None:
            run.release_lock()


class HintsWriter:
    """Writes ``hints.json`` after epochs that have changed the hints. Final.

    Args:
        run: The directory of the run.
        hints: What strategies found out so far; changed by them.
    """

    def __init__(self, run: RunDirectory, hints: Mapping[str, object]) -> None:
        self.run, self.hints, self.last_written = run, hints, dict(hints)

    def on_epoch_end(self, report: EpochReport) -> None:
        """See `Listener.on_epoch_end`."""
        if self.hints != self.last_written:
            self.run.write_json("hints.json", self.hints)
            self.last_written = dict(self.hints)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file, in UTF-8; it is replaced whole.

    Raises:
        InputError: It cannot be written.
    """
    with convert_write_errors(path), atomic_write(path, temporary=f".{path.name}.partial") as temporary:
        temporary.write_text(text, encoding="utf-8")


def convert_write_errors(path: Path) -> AbstractContextManager[None]:
    """Turn a refusal of the system while ``path`` is written into an error with a repair.

    Raises:
        InputError: The disk is full, or ``path`` cannot be written.
    """
    return os_errors_as_input_errors(
        f"cannot write {path}",
        needed="a place that can be written, with enough free space",
        repair="free some space or change the permissions, or give another --out",
    )


def _unreadable_error(path: Path, got: str) -> InputError:
    return InputError(
        f"cannot read {path}",
        needed="a JSON file written by outgrow",
        got=got,
        repair="start the run again in a new directory",
    )


def _parse_epoch(line: str) -> float:
    """Epoch of a line of metrics; a line torn by a crash counts as never written."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
