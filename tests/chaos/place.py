"""Where a disturbed run is: its directory, its temporary files and its processes, and how a command ended there."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_LEAVE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a command ended.

    Attributes:
        code: Exit status; of several hosts that of the first that failed; None if it took longer than it may.
        seconds: How long it took after it was disturbed, or in all.
        errors: What it wrote to standard error.
        summary: `summary.json` of the run; empty without one.
        left: Processes and scratch folders that were left behind.
        broken: Checkpoints that cannot be read.
        partial: Files that were not written to their end.
        checkpoints: Whether there is one to go on from.
        metrics: Loss and score of each line of `metrics.jsonl`.
    """

    code: int | None
    seconds: float
    errors: str
    summary: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    checkpoints: bool = False
    metrics: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run is: its directory, and a folder of its own for temporary files.

    Attributes:
        out: Directory of the run.
        scratch: What TMPDIR says, or on several hosts, where their folders are.
        store: The graph.
    """

    out: Path
    scratch: Path
    store: Path

    @property
    def metrics_file(self) -> Path:
        """Where the run writes of its epochs."""
        return self.out / "metrics.jsonl"

    @property
    def metrics(self) -> list[str]:
        """The lines that the run has written of its epochs."""
        with suppress(OSError):
            return self.metrics_file.read_text().splitlines()
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

    def ending(self, code: int | None, seconds: float, errors: str, left: tuple[str, ...]) -> Ending:
        """How a command ended that ran here."""
        found = sorted((self.out / "checkpoint").glob("*"))
        torn = [*found, *self.out.glob(".*"), *self.store.glob(".*"), *self.store.rglob("*.partial")]
        return Ending(
            code=code,
            seconds=seconds,
            errors=errors,
            summary=self.summary,
            left=left,
            broken=tuple(path.name for path in found if path.suffix == ".pt" and not readable(path)),
            partial=tuple(path.name for path in torn if path.suffix == ".partial" or path.name.startswith(".")),
            checkpoints=any(path.suffix == ".pt" for path in found),
            metrics=tuple(figures_of(line) for line in self.metrics),
        )


def children(processes: Sequence[subprocess.Popen[str]]) -> list[psutil.Process]:
    """All processes that commands have started, and those that these have started."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += psutil.Process(process.pid).children(recursive=True)
    return found


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing once it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def workers_of(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The living workers of a run on this host, by rank."""
    found = {}
    for child in children([process]):
        words = words_of(child)
        if "outgrow.runtime.distributed.worker_main" in words:
            found[int(words[-1])] = child
    return found


def marked(scratch: Path) -> Iterator[psutil.Process]:
    """Living processes whose temporary files go to a folder, or into it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            given = process.environ().get("TMPDIR", "")
            if Path(given).is_relative_to(scratch) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def left_in(scratch: Path, patience_seconds: float = _LEAVE_SECONDS) -> tuple[str, ...]:
    """Processes and files that are still there some seconds after a command has ended."""
    deadline = time.monotonic() + patience_seconds
    while True:
        found = [f"process {process.pid}: {' '.join(words_of(process))}" for process in marked(scratch)]
        found += [path.name for path in _files_in(scratch) if not _expected(path, scratch)]
        if not found or time.monotonic() > deadline:
            return tuple(found)
        time.sleep(0.1)


def _files_in(folder: Path) -> list[Path]:
    while True:
        with suppress(FileNotFoundError):  # a folder went while it was looked into
            return sorted(folder.rglob("*"))


def _expected(path: Path, scratch: Path) -> bool:
    """Whether the harness has made it: the folder of a host; or torch, which keeps logs and a cache in any case."""
    parts = path.relative_to(scratch).parts
    return parts[0].startswith("host-") and (
        len(parts) == 1 or parts[1].startswith(("torchelastic_", "torchinductor_"))
    )


def sweep(processes: Sequence[subprocess.Popen[str]], scratch: Path) -> None:
    """End what is left of a run."""
    for each in marked(scratch):
        with suppress(psutil.Error):
            each.kill()
    for process in processes:
        process.kill()
        process.wait()


def readable(path: Path) -> bool:
    """Whether a checkpoint is whole."""
    from outgrow.core.errors import InputError
    from outgrow.training.checkpoint import load_checkpoint

    try:
        load_checkpoint(path)
    except InputError:
        return False
    return True


def figures_of(line: str) -> tuple[float, float]:
    """The loss and the score of a line of metrics; NaN if the line is torn."""
    with suppress(ValueError, KeyError):
        found = json.loads(line)
        return float(found["loss"]), float(found["val_score"])
    return float("nan"), float("nan")
