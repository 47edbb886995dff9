"""What the files of a run say, as the page shows it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from outgrow.app.runs.directory import RunDirectory
from outgrow.core.errors import InputError

OTHER = "other"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """A run that has ended.

    Attributes:
        name: What to call it on the page.
        config: Content of ``config.json``.
        summary: Content of ``summary.json``.
        epochs: Lines of ``metrics.jsonl``, in order.
        workers: What each worker did and held, from ``workers.json``.
    """

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    workers: Sequence[Mapping[str, Any]]

    @cached_property
    def epoch_seconds(self) -> float:
        """Of an epoch; the first, which compiles and fills caches, counts only where there is no other."""
        every = self.summary["epoch_seconds"]
        return statistics.median(every[1:] or every) if every else 0.0

    @cached_property
    def link_bytes(self) -> dict[str, float]:
        """Bytes that crossed each link, in all of the last session."""
        return {link: sum(kinds.values()) for link, kinds in self.summary["ledger"].items()}

    def phase_seconds(self) -> list[dict[str, float]]:
        """Seconds of each epoch by phase; what no phase covers is the rest."""
        found = []
        for line in self.epochs:
            phases = dict(line.get("phases", {}))
            phases[OTHER] = max(0.0, line["seconds"] - sum(phases.values()))
            found.append(phases)
        return found

    @property
    def strategy(self) -> str:
        """Its name."""
        return str(self.summary["strategy"])

    @property
    def limit_bytes(self) -> int | None:
        """The least that any worker's DEVICE tier might hold; None where it was not recorded."""
        return min((each["limit_bytes"] for each in self.workers), default=None)


def read_run(path: Path, name: str | None = None) -> RunData:
    """What there is to show of a run.

    Args:
        path: Its directory.
        name: What to call it; None for the directory's name.

    Raises:
        InputError: There is no run, it has not ended, or a file of it is broken.
    """
    run = RunDirectory.open(path)
    config = run.config
    if not (path / "summary.json").exists():
        raise InputError(
            f"the run in {path} has not ended",
            needed="summary.json, which is written at the end of training",
            got=f"a run of which {len(_read_metrics(run))} epochs are known",
            repair=f"let it end, or go on with `outgrow train --resume --out {path}`",
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
        name=name or path.resolve().name, config=config, summary=summary, epochs=_read_metrics(run), workers=workers
    )


def _read_metrics(run: RunDirectory) -> list[dict[str, Any]]:
    if not run.metrics_path.exists():
        return []
    found = []
    for line in run.metrics_path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # torn by a crash: as if never written
    return found


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Names of directories, with as much of their paths as tells them apart."""
    whole = [path.resolve().parts for path in paths]
    depth = 1
    while len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]
