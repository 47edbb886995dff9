"""Rivals that make mini-batches, in interleaved rounds: what `sampling.py` and `minibatch.py` share.

A library may come in several forms. All are tried, briefly, before the rounds; these are for the forms that were the
fastest of their library.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from comparison import TUNED
from record import ROOT
from rivals.batches import Task
from rivals.process import Limits, Rival, run

from outgrow.runtime.system.environment import available_cores

OURS = "outgrow"
Report = Mapping[str, Any]
Reports = Mapping[str, Sequence[Report]]
"""What the processes reported, by rival, one a round."""


class Job(NamedTuple):
    """Batches or epochs of a process that do not count, and those that do."""

    warmup: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library and the forms in which it is tried.

    Attributes:
        name: What the table calls it.
        module: Module of `rivals` that runs it.
        python: Name of its environment; empty for the one that the benchmark runs in.
        needs: What must be importable there.
        forms: What the module is told; with ``-tuned`` at the end it gets the settings that Outgrow gives itself.
    """

    name: str
    module: str
    python: str
    needs: str
    forms: Sequence[str]

    def rivals(self, model: str) -> list[Rival]:
        """One for each form."""
        return [
            Rival(
                name=f"{self.name}:{form}" if form else self.name,
                module=self.module,
                form=form.removesuffix("-tuned"),
                python=self.python,
                models=frozenset([model]),
                settings=TUNED if form.endswith("-tuned") else {},
            )
            for form in self.forms
        ]

    def missing(self, envs: Path) -> str:
        """Why it cannot run; empty if it can."""
        python = python_of(self.python, envs)
        if not python.exists():
            return f"no {python}; run benchmarks/rivals/setup.sh"
        tried = subprocess.run([python, "-c", f"import {self.needs}"], capture_output=True, text=True, check=False)
        return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


def library_of(rival: str) -> str:
    """Name of the library of a rival."""
    return rival.partition(":")[0]


def python_of(environment: str, envs: Path) -> Path:
    """The interpreter of an environment."""
    return envs / environment / "bin" / "python" if environment else Path(sys.executable)


def add_options(parser: argparse.ArgumentParser, libraries: Sequence[Library]) -> None:
    """The options that both benchmarks have."""
    add = parser.add_argument
    names = [library.name for library in libraries]
    add("--only", type=lambda text: text.split(","), default=names, help="some of " + ",".join(names))
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=available_cores())
    add("--batch-size", type=int, default=1024)
    add("--forms", nargs="+", default=[], metavar="LIBRARY:FORM", help="forms that need no trial, one of a library")
    add("--memory-gib", type=float, default=16.0, help="private memory of each process")
    add("--timeout-minutes", type=float, default=15.0, help="wall time of each process")
    add("--envs", type=Path, default=ROOT / ".venv-rivals", help="folder of the rivals' environments")
    add("--scratch", type=Path, help="keep and reuse the arrays here; else they go to a temporary folder")
    add("--out", type=Path, help="file of the figures")


def available(options: argparse.Namespace, libraries: Sequence[Library]) -> tuple[list[Library], dict[str, str]]:
    """The libraries that were asked for and can run, and why others cannot."""
    unknown = set(options.only) - {library.name for library in libraries}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    given = dict(form.split(":", 1) for form in options.forms)
    if unknown := given.keys() - {library.name for library in libraries}:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    asked = [
        replace(library, forms=(given[library.name],)) if library.name in given else library
        for library in libraries
        if library.name in options.only
    ]
    reasons = {library.name: library.missing(options.envs.absolute()) for library in asked}
    absent = {name: reason for name, reason in reasons.items() if reason}
    for name, reason in absent.items():
        print(f"without {name}: {reason}", file=sys.stderr)
    return [library for library in asked if library.name not in absent], absent


@contextmanager
def scratch(options: argparse.Namespace) -> Iterator[Path]:
    """The folder of the arrays."""
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.scratch or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()


@dataclass(frozen=True, kw_only=True)
class Course:
    """What rivals run, and where.

    Attributes:
        options: Of `add_options`.
        task: What is done in a round.
        folder: Where processes get folders of their own.
        speeds: How fast a process was at each thing that it did.
    """

    options: argparse.Namespace
    task: Callable[[int], Task]
    folder: Path
    speeds: Callable[[Report], Sequence[float]]

    def choose(self, libraries: Sequence[Library], model: str, job: Job) -> tuple[list[Rival], dict[str, Any]]:
        """The forms that are the fastest of their library at something, and what the processes that tried reported."""
        chosen, trials = [], {}
        for library in libraries:
            rivals = library.rivals(model)
            if len(rivals) > 1:
                tried = {rival.name: self.run(rival, "trial", 0, job) for rival in rivals}
                best = fastest({name: self.speeds(report) for name, report in tried.items() if "failed" not in report})
                rivals = [rival for rival in rivals if rival.name in best]
                trials |= tried
            chosen += rivals
        return chosen, trials

    def measure(self, rivals: Sequence[Rival], job: Job, cold: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """Run all rounds, those of libraries in ``cold`` without warming up. A rival that failed is not asked again."""
        reports: dict[str, list[dict[str, Any]]] = {rival.name: [] for rival in rivals}
        for turn in range(self.options.rounds):
            at = turn % max(1, len(rivals))
            for rival in [*rivals[at:], *rivals[:at]]:
                if not reports[rival.name] or "failed" not in reports[rival.name][-1]:
                    warm = 0 if library_of(rival.name) in cold else job.warmup
                    reports[rival.name].append(self.run(rival, f"round {turn + 1}", turn, job._replace(warmup=warm)))
        return reports

    def run(self, rival: Rival, title: str, turn: int, job: Job) -> dict[str, Any]:
        """Run one process; the report says in which folder, below that of the course."""
        options, name = self.options, f"{rival.name}-{title}".replace(":", "_").replace(" ", "-")
        place = self.folder / "runs" / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.task(turn).write(place)
        (model,) = rival.models
        given = {"model": model, "folder": str(place), "warmup": str(job.warmup), "epochs": str(job.count)}
        memory, seconds = int(options.memory_gib * 2**30), options.timeout_minutes * 60
        limits = Limits(threads=options.threads, memory_bytes=memory, seconds=seconds)
        report = run(python_of(rival.python, options.envs.absolute()), rival, given, limits)
        print(f"{title}: {rival.name}: {_one_line(report, self.speeds)}", file=sys.stderr, flush=True)
        return {**report, "place": name}


def fastest(speeds: Mapping[str, Sequence[float]]) -> set[str]:
    """The forms that were the fastest of their library at something."""
    best = set()
    for library in set(map(library_of, speeds)):
        forms = [name for name in speeds if library_of(name) == library]
        for side_by_side in zip(*(speeds[name] for name in forms), strict=True):
            best.add(forms[side_by_side.index(max(side_by_side))])
    return best


def good(reports: Sequence[Report]) -> list[Report]:
    """Those of processes that did not fail."""
    return [report for report in reports if "failed" not in report]


def by_epoch(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean over rounds."""
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def versions(reports: Reports) -> dict[str, Any]:
    """Versions of what each library is made of."""
    return {library_of(name): report["versions"] for name, some in reports.items() for report in good(some)}


def _one_line(report: Report, speeds: Callable[[Report], Sequence[float]]) -> str:
    if "failed" in report:
        return f"{report['failed']} {report.get('message', '')}"
    evaluations = "".join(
        f", {way} {statistics.median(figures['seconds']):.2f} s"
        for way, figures in report.get("evaluations", {}).items()
    )
    return f"{', '.join(f'{speed:.3g}' for speed in speeds(report))} a second{evaluations} (load {report['load']:.1f})"
