"""`RunData`: content of a run directory, as the report shows it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from outgrow.app.runs.directory import RunDirectory, read_metrics
from outgrow.core.errors import InputError

OTHER = "other"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """Finished run.

    Attributes:
        path: Directory of the run.
        name: Name on the page.
        config: Content of ``config.json``.
        summary: Content of ``summary.json``.
        epochs: Lines of ``metrics.jsonl``, in order.
        workers: Records of the workers, from ``workers.json``.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    workers: Sequence[Mapping[str, Any]]

    @cached_property
    def epoch_seconds(self) -> float:
        """Median seconds of an epoch."""
        every = self.summary["epoch_seconds"]
        # The first epoch compiles kernels and fills caches; it counts only if there is no other.
        return statistics.median(every[1:] or every) if every else 0.0

    @cached_property
    def link_bytes(self) -> dict[str, float]:
        """Bytes that crossed each link during the last session."""
        return {link: sum(kinds.values()) for link, kinds in self.summary["ledger"].items()}

    def phase_seconds(self) -> list[dict[str, float]]:
        """Return the seconds of each epoch by phase; `OTHER` is what no phase covers."""
        found = []
        for line in self.epochs:
            phases = dict(line.get("phases", {}))
            # Clamped: phases and epochs are timed separately, so their sum may exceed the epoch slightly.
            phases[OTHER] = max(0.0, line["seconds"] - sum(phases.values()))
            found.append(phases)
        return found

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return str(self.summary["strategy"])

    @property
    def limit_bytes(self) -> int | None:
        """Smallest memory limit of any worker's DEVICE tier; None if not recorded."""
        return min((each["limit_bytes"] for each in self.workers), default=None)


def read_run(path: Path, name: str | None = None) -> RunData:
    """Read the files of a finished run.

    Args:
        path: Run directory.
        name: Name on the page; None for that of the directory.

    Raises:
        InputError: There is no run, it has not ended, or one of its files is broken.
    """
    run = RunDirectory.open(path)
    config = run.config
    if not (path / "summary.json").exists():
        raise InputError(
            f"the run in {path} has not ended",
            needed="summary.json, which is written at the end of training",
            got=f"a run with {len(read_metrics(run))} recorded epochs",
            repair=f"let it end, or continue with `outgrow train --resume --out {path}`",
        )
    workers = run.read_json("workers.json")["workers"] if (path / "workers.json").exists() else []
    summary = run.read_json("summary.json")
    missing = [key for key in ("strategy", "epoch_seconds", "ledger", "loss", "peak_bytes") if key not in summary]
    if missing:
        raise InputError(
            f"cannot show {path / 'summary.json'}",
            needed="the summary of a run, as outgrow writes it",
            got=f"nothing under {', '.join(missing)}",
            repair="train once more in a new directory",
        )
    return RunData(
        path=path,
        name=name or path.resolve().name,
        config=config,
        summary=summary,
        epochs=read_metrics(run),
        workers=workers,
    )


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return names of directories, with as many parent folders as are needed to make them distinct."""
    whole = [path.resolve().parts for path in paths]
    depth = 1
    # The same directory given twice never gets distinct names, hence the set on the right.
    while len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]
