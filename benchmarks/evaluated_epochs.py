"""What `minibatch.py --evaluation` adds: ways to evaluate are tried, then epochs are measured with what follows them.

A rival scores the validation nodes after each epoch on samples and exactly, one after the other, in one process: both
follow the same epoch. Outgrow, which evaluates in one way in a run, has a process for each.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from record import HERE
from rich.console import Console
from rich.table import Table
from rivals.batches import EXACT, LAYERWISE, NEIGHBORS, SAMPLED, TRAINING, WHOLE
from rivals.process import Rival
from rounds import OURS, Course, Job, Library, Report, Reports, by_epoch, good, library_of

EVALUATIONS = (SAMPLED, EXACT)
EXACT_WAYS = (NEIGHBORS, LAYERWISE, WHOLE)
"""How rivals score nodes exactly: by all their neighbours; layer by layer for all nodes, in batches; or all at once."""
_SAME_SCORE, _FEW_NODES = 0.002, 2
_SUFFIXES = {"both": "", "train": "_train", "evaluation": "_evaluation"}


def choose(
    course: Course, libraries: Sequence[Library], evaluations: Sequence[str], job: Job
) -> tuple[list[Rival], dict[str, Any]]:
    """The fastest form of each library with the fastest exact way, and what the processes that tried reported.

    Args:
        course: Its speeds are those of training.
        libraries: A form that ends in the name of an exact way, after a plus, is not tried in others.
        evaluations: Some of `EVALUATIONS`.
        job: Of the trials of training.
    """
    ways = {
        f"{library.name}:{form.partition('+')[0]}": form.partition("+")[2]
        for library in libraries
        for form in library.forms
    }
    libraries = [replace(each, forms=[form.partition("+")[0] for form in each.forms]) for each in libraries]
    rivals, trials = course.choose(libraries, TRAINING, job)
    chosen = []
    for rival in rivals:
        if rival.name == OURS:
            chosen += [evaluating(rival, [evaluation]) for evaluation in evaluations]
            continue
        way = ways[rival.name]
        if EXACT in evaluations and not way:
            tried = {each: course.run(evaluating(rival, [each]), "trial", 0, Job(0, 0)) for each in EXACT_WAYS}
            trials |= {f"{rival.name}+{each}": report for each, report in tried.items()}
            way = fastest_way(tried)
        chosen.append(evaluating(rival, [way if each == EXACT else each for each in evaluations]))
    return chosen, trials


def evaluating(rival: Rival, ways: Sequence[str]) -> Rival:
    """The same rival, which evaluates in these ways after each epoch."""
    suffix = "+".join(ways)
    if rival.name == OURS:
        return replace(rival, name=f"{OURS}:{suffix}", form=suffix)
    return replace(rival, name=f"{rival.name}+{suffix}", form=f"{rival.form}+{suffix}")


def fastest_way(tried: Mapping[str, Report]) -> str:
    """The way that took the fewest seconds; the first if none can be gone."""
    seconds = {
        way: min(report["evaluations"][way]["seconds"]) for way, report in tried.items() if "failed" not in report
    }
    return min(seconds, key=lambda way: seconds[way], default=next(iter(tried)))


def summarise(reports: Reports, evaluations: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each kind of evaluation and rival."""
    rows = []
    for evaluation in evaluations:
        ours: list[dict[str, float]] = []
        for name, some in reports.items():  # ours come first
            ways = [way for way in ways_of(name) if (way == SAMPLED) == (evaluation == SAMPLED)]
            if not ways:
                continue
            theirs = [_seconds(report, ways[0]) for report in good(some)]
            ours = theirs if library_of(name) == OURS else ours
            row: dict[str, Any] = {"evaluation": evaluation, "rival": name}
            if theirs:
                row |= _figures(good(some), ways[0], theirs) | _against(theirs, ours)
            if failed := [report["failed"] for report in some if "failed" in report]:
                row["failed"] = failed[0]
            rows.append(row)
    return rows


def ways_of(name: str) -> list[str]:
    """In which ways a rival evaluates."""
    return [part for part in re.split("[:+]", name) if part in (*EVALUATIONS, *EXACT_WAYS)]


def _seconds(report: Report, way: str) -> dict[str, float]:
    """Medians of a process: of training, of evaluation, and of an epoch with both."""
    train = report["seconds"]
    evaluate = report["evaluations"][way]["seconds"][-len(train) :]  # without those after epochs that do not count
    both = [sum(pair) for pair in zip(train, evaluate, strict=True)]
    found = {"train": train, "evaluation": evaluate, "both": both}
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _figures(reports: Sequence[Report], way: str, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "rounds": len(rounds),
        "way": reports[0].get("facts", {}).get("validation", way),  # ours chooses for itself
        **{f"{name}_seconds": statistics.median(each[name] for each in rounds) for name in rounds[0]},
        "slowest_round_seconds": max(each["both"] for each in rounds),
        "peak_rss_bytes": max(report["peak_rss_bytes"] for report in reports),
        "loss_by_epoch": by_epoch([report["losses"] for report in reports]),
        "val_by_epoch": by_epoch([report["evaluations"][way]["val"] for report in reports]),
    }


def _against(theirs: Sequence[Mapping[str, float]], ours: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """How many times faster we are, round by round."""
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return {}
    return {
        "it_over_ours" + suffix: statistics.median(their[name] / our[name] for our, their in pairs)
        for name, suffix in _SUFFIXES.items()
    }


def wrong_scores(folder: Path, reports: Reports) -> list[str]:
    """Rivals whose exact score of the last epoch of the first round is not that of `rivals.score`.

    Roundings differ, so the class of some nodes may.
    """
    first = {name: good(some)[0] for name, some in reports.items() if good(some)}
    told = {
        name: (report, figures["val"][-1])
        for name, report in first.items()
        for way, figures in report["evaluations"].items()
        if way != SAMPLED
    }
    if not told:
        return []
    files = [folder / "runs" / each["place"] / f"epoch-{len(each['losses'])}.npz" for each, _ in told.values()]
    scores = _reference_scores(folder, files)
    most = max(_SAME_SCORE, (_FEW_NODES + 0.5) / len(np.load(folder / "val.npy")))
    return [
        f"{name} scores {val:.4f}, not {score:.4f}"
        for (name, (_, val)), score in zip(told.items(), scores, strict=True)
        if abs(val - score) > most
    ]


def _reference_scores(folder: Path, files: Sequence[Path]) -> list[float]:
    """Accuracy on the validation nodes of each file of parameters."""
    command = [sys.executable, "-m", "rivals.score", str(folder), *map(str, files)]
    done = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
    return [epochs[-1]["val"] for epochs in json.loads(done.stdout.splitlines()[-1])]


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print a table of the rows."""
    table = Table(title=title)
    for name in ("evaluation", "rival"):
        table.add_column(name)
    for name in ("rounds", "train s", "evaluate s", "both s", "it / ours", "(train)", "(evaluate)", "peak GB", "val %"):
        table.add_column(name, justify="right")
    for row in rows:
        how = row.get("way", row["evaluation"])
        cells = [row["evaluation"] if how == row["evaluation"] else f"{row['evaluation']}: {how}", row["rival"]]
        if "both_seconds" in row:
            cells += [
                str(row["rounds"]),
                *(f"{row[f'{name}_seconds']:.2f}" for name in ("train", "evaluation", "both")),
            ]
            cells += [
                f"{row['it_over_ours' + name]:.2f}" if "it_over_ours" in row else "" for name in _SUFFIXES.values()
            ]
            cells += [f"{row['peak_rss_bytes'] / 1e9:.2f}"]
            cells += [" ".join(f"{100 * value:.1f}" for value in row["val_by_epoch"])]
        else:
            cells += [row["failed"]]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
