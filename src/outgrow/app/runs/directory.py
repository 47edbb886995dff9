"""Run directory: the files of one run, each either complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn

from outgrow.app.messages import log_message, log_warning
from outgrow.app.runs.lock import NAME, RunLock
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.core.validation import finite_or_none, require_local_path
from outgrow.training import checkpoint
from outgrow.training.callbacks import Callback, EpochReport
from outgrow.training.embedding_files import read_vectors

SPLITS = "splits.json"
"""File of a directory that holds a run for each of several splits, in directories ``split-0`` and so on."""
_CONFIG = ("graph", "model", "train", "strategy")


class RunDirectory(Callback):
    """Files of a run, such as ``config.json``, ``metrics.jsonl`` and ``summary.json``. Final.

    Args:
        path: Path of the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_dir = path / "checkpoint"
        self.metrics_path = path / "metrics.jsonl"
        self._lock: RunLock | None = None

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], *, again: bool = False) -> RunDirectory:
        """Create a run directory, locked by this process.

        Args:
            path: New or empty directory.
            config: Content of ``config.json``.
            again: Whether this restarts a run, whose files may already be there.

        Raises:
            InputError: ``path`` is in use or no local path, or it cannot be written.
        """
        require_local_path(path)
        if not again and os.path.exists(path) and (not path.is_dir() or any(path.iterdir())):
            raise InputError(
                f"{path} is in use",
                needed="a new or empty directory for the run",
                got="a file" if path.is_file() else f"a directory with {sum(1 for _ in path.iterdir())} entries",
                repair="give another --out, or add --resume to continue the run there",
            )
        run = RunDirectory(path)
        with convert_write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        try:
            run.acquire_lock()
            run.write_json("config.json", config)
        except BaseException:
            run.release_lock()
            # Removes an empty directory only, and fails where another process has put its files.
            with suppress(OSError):
                path.rmdir()
            raise
        return run

    def acquire_lock(self) -> None:
        """Lock the directory until `release_lock` is called or this process ends.

        Raises:
            InputError: Another process holds the lock, or the directory cannot be written.
        """
        with convert_write_errors(self.path / NAME):
            self._lock = RunLock(self.path)
        if not self._lock.is_exclusive:
            log_warning(f"{self.path} is on a file system without locks: make sure that no other run uses it")

    @contextmanager
    def locked_unless_refused(self) -> Iterator[None]:
        """Context that takes the lock, and keeps it unless an error ends the context.

        Raises:
            InputError: See `acquire_lock`.
        """
        self.acquire_lock()
        try:
            yield
        except BaseException:
            # Also after Ctrl-C: nobody else knows yet that the lock is held.
            self.release_lock()
            raise

    def release_lock(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock is not None:
            self._lock.release()

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Open an existing run directory, without locking it.

        Raises:
            InputError: There is no run at ``path``.
        """
        run = RunDirectory(path)
        if not run.exists and (path / SPLITS).is_file():
            raise InputError(
                f"{path} holds a run for each of several splits",
                needed="the directory of one run",
                got=f"directories {', '.join(sorted(each.name for each in path.glob('split-*'))[:10])}",
                repair=f"name one of them, such as {path / 'split-0'}; outgrow report takes several",
            )
        if not run.exists:
            raise InputError(
                f"there is no run in {path}",
                needed="a directory with config.json, as `outgrow train --out DIR` makes it",
                got="a directory without it" if os.path.isdir(path) else "no such directory",
                repair="check the path; without --resume a new run starts",
            )
        return run

    @property
    def exists(self) -> bool:
        """Whether a run has been started here."""
        # Unlike `Path.is_file`, this is false for names that no file can have.
        return os.path.isfile(self.path / "config.json")

    def discard_unstarted(self) -> None:
        """Remove the directory of a refused run, unless an epoch has finished or there is a checkpoint."""
        # What is left would make the next run with the same --out fail: its directory must be empty.
        if not self.has_checkpoint and not (self.metrics_path.exists() and self.metrics_path.stat().st_size):
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``.

        Raises:
            InputError: The file is missing or broken, or lacks a required key.
        """
        config = self.read_json("config.json")
        missing = [key for key in _CONFIG if key not in config]
        if missing:
            raise _unreadable_error(self.path / "config.json", f"nothing under {', '.join(missing)}")
        return config

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run.

        Raises:
            InputError: The file is missing or broken.
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
        """Write a JSON file of the run, atomically.

        Raises:
            InputError: The file cannot be written.
        """
        write_text_atomically(self.path / name, json.dumps(content, indent=2) + "\n")

    @property
    def resume_hints(self) -> dict[str, Any]:
        """Content of ``hints.json``, the tuning results of strategies; empty if it is missing or broken."""
        try:
            return self.read_json("hints.json")
        except InputError:
            # Hints only save strategies trial epochs: a run can resume without them.
            return {}

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return checkpoint.latest_checkpoint(self.checkpoint_dir) is not None

    def latest_checkpoint(self, warn: Callable[[str], None] = lambda text: None) -> Path:
        """Return the path of the newest complete checkpoint.

        Args:
            warn: Called with a message for each newer checkpoint that is torn or changed.

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
                repair="remove the directory and start again, with a smaller checkpoint_every or with checkpoint_steps",
            )
        for path in torn:
            warn(f"the checkpoint {path} is torn or changed: its checksum differs; {found.name} is used instead")
        return found

    def newest_to_resume(self) -> Path | None:
        """Return the path of the newest complete checkpoint; None, and say so, if none was written yet.

        Raises:
            InputError: There are some, all of them torn or changed.
        """
        if not any(self.checkpoint_dir.glob("epoch-*.pt")):
            log_message(f"the run in {self.path} has no checkpoint yet: it starts from the beginning")
            return None
        return self.latest_checkpoint()

    def load_best(self, model: nn.Module) -> None:
        """Load the parameters of the run's best epoch into ``model``.

        Raises:
            InputError: There is no checkpoint, or it is of another model.
        """
        path = self.latest_checkpoint(log_warning)
        saved = checkpoint.load_checkpoint(path)
        checkpoint.load_parameters(model, checkpoint.final_parameters(saved), path)
        if saved.get("embeddings"):
            read_vectors(path.parent, saved["embeddings"], model, best=saved["progress"]["best_model"] is not None)

    def truncate_after(self, epoch: int) -> None:
        """Drop the metrics of epochs after ``epoch``, which are about to be trained again."""
        if self.metrics_path.exists():
            # A line torn by a crash may not be valid UTF-8; it belongs to no epoch and is dropped.
            lines = self.metrics_path.read_text("utf-8", "replace").splitlines()
            kept = [line for line in lines if _parse_epoch(line) <= epoch]
            write_text_atomically(self.metrics_path, "".join(f"{line}\n" for line in kept))

    def on_epoch(self, report: EpochReport) -> None:
        """Append a line to ``metrics.jsonl``."""
        line = {
            "epoch": report.epoch,
            "loss": report.loss,
            "val_score": report.val_score,
            "scores": {name: finite_or_none(value) for name, value in report.scores.items()},
            "lr": report.lr,
            "seconds": report.seconds,
            "edges_per_second": report.edges_per_second,
            "evaluation_seconds": report.evaluation_seconds,
            "compile_seconds": report.compile_seconds,
            "compiled_kernels": report.compiled_kernels,
            "phases": report.phases,
        }
        # Appended rather than replaced, since the file grows with every epoch; not flushed to disk, since
        # `truncate_after` drops a line torn by a crash.
        with convert_write_errors(self.metrics_path), self.metrics_path.open("a") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def release_on_exit(run: RunDirectory | None) -> Iterator[RunDirectory | None]:
    """Context that yields ``run`` and releases its lock on exit; ``run`` may be None."""
    try:
        yield run
    finally:
        if run is not None:
            run.release_lock()


def read_metrics(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``, one for each epoch; none without the file."""
    if not run.metrics_path.exists():
        return []
    found = []
    for line in run.metrics_path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            # Torn by a crash: counts as never written.
            break
    return found


class HintsWriter(Callback):
    """Callback that writes ``hints.json`` after epochs that changed the hints. Final.

    Args:
        run: Run directory.
        hints: Tuning results so far; strategies update this mapping in place.
    """

    def __init__(self, run: RunDirectory, hints: Mapping[str, object]) -> None:
        self.run = run
        self.hints = hints
        # A copy: strategies change the mapping in place, which would hide the change.
        self.last_written = dict(hints)

    def on_epoch(self, report: EpochReport) -> None:
        """Write the hints if they changed."""
        if self.hints != self.last_written:
            self.run.write_json("hints.json", self.hints)
            self.last_written = dict(self.hints)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically.

    Raises:
        InputError: The file cannot be written.
    """
    with convert_write_errors(path), atomic_write(path, temporary=f".{path.name}.partial") as temporary:
        temporary.write_text(text, encoding="utf-8")


def convert_write_errors(path: Path) -> AbstractContextManager[None]:
    """Context that turns an `OSError` while ``path`` is written into an `InputError`.

    Raises:
        InputError: The disk is full, or ``path`` cannot be written.
    """
    return os_errors_as_input_errors(
        f"cannot write {path}",
        needed="a writable path with enough free space",
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
    """Return the epoch of a line of metrics; infinity for a line torn by a crash."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        # Later than any epoch, so that `truncate_after` drops the line.
        return float("inf")
