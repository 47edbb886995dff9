"""What becomes of a run that was disturbed: where it is, how it ended, what it left, what of that was not promised."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

WORKERS = 4
_LEAVE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What was done to a run.

    Attributes:
        moment: Which of `MOMENTS` was waited for.
        rank: The worker that was killed; None if the run was over before.
        epochs: Epochs that were finished then.
        done: Whether the worker had handed over its result already: then the run need not fail.
    """

    moment: str
    rank: int | None = None
    epochs: int = 0
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a command ended.

    Attributes:
        code: Exit status; None if it had to be ended after the longest time.
        seconds: How long it took.
        errors: What it wrote to standard error.
        summary: `summary.json` of the run; empty without one.
        left: Processes and scratch folders that were left behind.
        broken: Checkpoints that cannot be read.
        partial: Files that were not written to their end.
        checkpoints: Whether there is one to go on from.
        metrics: Loss of each line of `metrics.jsonl`.
    """

    code: int | None
    seconds: float
    errors: str
    summary: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    checkpoints: bool = False
    metrics: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run is: its directory, and a folder of its own for temporary files.

    Attributes:
        out: Directory of the run.
        scratch: What TMPDIR says.
    """

    out: Path
    scratch: Path

    @property
    def metrics(self) -> list[str]:
        """The lines that the run has written of its epochs."""
        with suppress(OSError):
            return (self.out / "metrics.jsonl").read_text().splitlines()
        return []

    @property
    def epochs(self) -> int:
        """Epochs that the run says it has finished."""
        return len(self.metrics)

    @property
    def summary(self) -> dict[str, Any]:
        """The summary, if the run has one."""
        with suppress(OSError):
            return dict(json.loads((self.out / "summary.json").read_text()))
        return {}


def violations(
    kill: Kill, restarts: int, first: Ending, resumed: Ending | None, reference: dict[str, Any]
) -> list[str]:
    """What of a run is not as promised.

    Args:
        kill: What was done to it.
        restarts: How often it might start again.
        first: How it ended.
        resumed: How it ended when it was resumed; None if it was not.
        reference: Summary of a run that nobody disturbed.
    """
    found = [f"run: {text}" for text in _remains(first)]
    unhurt = kill.rank is None or (kill.done and first.code == 0)
    if unhurt or restarts:
        found += [f"run: {text}" for text in _unlike(first, reference)]
    else:
        said = f"worker {kill.rank} of {WORKERS} was killed by SIGKILL"
        if first.code != 1:
            found.append(f"run: exit code {first.code}, not 1")
        if said not in first.errors:
            found.append(f"run: does not say {said!r}")
    if restarts and not unhurt and "start again (restart 1)" not in first.errors:
        found.append("run: does not say that it starts again")
    if resumed is not None:
        found += [f"resumed: {text}" for text in _remains(resumed)]
        if first.checkpoints:
            found += [f"resumed: {text}" for text in _unlike(resumed, reference)]
        elif resumed.code != 2 or "no checkpoint" not in resumed.errors:
            found.append(f"resumed: exit code {resumed.code}, and does not say that there is no checkpoint")
    return found


def _remains(ending: Ending) -> list[str]:
    """What must not be, however a command ends."""
    found = [f"hangs: {ending.seconds:.0f} s"] if ending.code is None else []
    found += [f"left behind: {what}" for what in ending.left]
    found += [f"cannot be read: {name}" for name in ending.broken]
    if ending.code == 0:
        found += [f"not written to its end: {name}" for name in ending.partial]
    return found


def _unlike(ending: Ending, reference: dict[str, Any]) -> list[str]:
    """How a run that should have reached its end differs from one that nobody disturbed."""
    if ending.code != 0:
        return [f"exit code {ending.code}, not 0"]
    names = ("loss", "epochs", "val_accuracy", "test_accuracy", "best_epoch")
    found = [f"another {name}" for name in names if ending.summary.get(name) != reference[name]]
    return found + (["other lines in metrics.jsonl"] if list(ending.metrics) != reference["loss"] else [])


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def workers_of(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The living workers of a run, by rank."""
    found = {}
    for child in children(process):
        words = words_of(child)
        if "outgrow.worker" in words:
            found[int(words[-1])] = child
    return found


def _marked(place: Place) -> Iterator[psutil.Process]:
    """Living processes that were started with the run's folder for temporary files."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(place.scratch):
                yield process


def left_in(place: Place, patience_seconds: float = _LEAVE_SECONDS) -> tuple[str, ...]:
    """Processes and files that are still there some seconds after a command has ended."""
    deadline = time.monotonic() + patience_seconds
    while True:
        found = [f"process {process.pid}: {' '.join(words_of(process))}" for process in _marked(place)]
        found += [path.name for path in place.scratch.iterdir()]
        if not found or time.monotonic() > deadline:
            return tuple(found)
        time.sleep(0.1)


def sweep(process: subprocess.Popen[str], place: Place) -> None:
    """End what is left of a run."""
    for each in _marked(place):
        with suppress(psutil.Error):
            each.kill()
    process.wait()


def readable(path: Path) -> bool:
    """Whether a checkpoint is whole."""
    from outgrow.core.errors import InputError
    from outgrow.training.checkpoint import load

    try:
        load(path)
    except InputError:
        return False
    return True


def loss_of(line: str) -> float:
    """The loss of a line of metrics; NaN if the line is torn."""
    with suppress(ValueError, KeyError):
        return float(json.loads(line)["loss"])
    return float("nan")
