"""An epoch of mini-batch training: Outgrow, GraphBolt with DGL's layers, NeighborLoader with PyG's.

    benchmarks/rivals/setup.sh                 (once: makes the environments of the rivals)
    python benchmarks/minibatch.py --out benchmarks/results/minibatch_products.json
    python benchmarks/minibatch.py --evaluation sampled exact --graph papers100M@0.02
    python benchmarks/minibatch.py --graph amazon-photo --data-dir DATA --fanout 10-5 --hidden 64

SAGE (mean), by default of three layers on a generated graph; all start from the same parameters. Outgrow gets the
features as the graph has them, the others dense. Every rival runs in a process of its own; rounds are interleaved.
What each has learnt after every epoch is scored by the same code, outside what is timed; with --evaluation by the
libraries themselves, which is timed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import evaluated_epochs
import record
from comparison import write_data
from record import HERE
from rich.console import Console
from rich.table import Table
from rivals.batches import DROPOUT, LEARNING_RATE, TRAINING, Task, spelled
from rounds import (
    OURS,
    Course,
    Job,
    Library,
    Report,
    Reports,
    add_options,
    available,
    by_epoch,
    good,
    scratch,
    versions,
)

LIBRARIES = (
    Library(name=OURS, module="ours_batches", python="", needs="outgrow", forms=("",)),
    Library(
        name="graphbolt",
        module="graphbolt",
        python="dgl",
        needs="dgl",
        forms=("int32-0", "int32-0-tuned", "int32-1-tuned", "int32-2-tuned"),
    ),
    Library(
        name="neighborloader",
        module="neighborloader",
        python="pyg",
        needs="torch_sparse",
        forms=("adj-0-tuned", "adj-2-tuned", "edge-0-tuned"),
    ),
)
_SAME_ACCURACY = 0.01


def _speeds(report: Report) -> list[float]:
    return [1 / statistics.median(report["seconds"])] if report["seconds"] else []


def _score(folder: Path, reports: Sequence[dict[str, Any]]) -> None:
    """Add to every report the accuracies after each epoch."""
    places = [str(folder / "runs" / report["place"]) for report in reports]
    command = [sys.executable, "-m", "rivals.score", str(folder), *places]
    done = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
    for report, accuracy in zip(reports, json.loads(done.stdout.splitlines()[-1]), strict=True):
        report["accuracy"] = accuracy


def _summarise(reports: Reports) -> list[dict[str, Any]]:
    """One row for each rival."""
    ours = good(reports.get(OURS, []))
    rows = []
    for name, some in reports.items():
        theirs = good(some)
        row: dict[str, Any] = {"rival": name}
        if theirs:
            row |= _figures(theirs) | _against(theirs, ours)
        if failed := [report["failed"] for report in some if "failed" in report]:
            row["failed"] = failed[0]
        rows.append(row)
    return rows


def _figures(reports: Sequence[Report]) -> dict[str, Any]:
    medians = [statistics.median(report["seconds"]) for report in reports]
    return {
        "rounds": len(reports),
        "median_seconds": statistics.median(medians),
        "slowest_round_seconds": max(medians),
        "min_seconds": min(min(report["seconds"]) for report in reports),
        "peak_bytes": max(report["peak_bytes"] for report in reports),
        "loss_by_epoch": by_epoch([report["losses"] for report in reports]),
        "val_by_epoch": by_epoch([[epoch["val"] for epoch in report["accuracy"]] for report in reports]),
        "test_by_epoch": by_epoch([[epoch["test"] for epoch in report["accuracy"]] for report in reports]),
    }


def _against(theirs: Sequence[Report], ours: Sequence[Report]) -> dict[str, Any]:
    """How many times faster we are, round by round; and how far from ours the accuracy is."""
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return {}
    gaps = [_gaps(our, their) for our, their in pairs]
    return {
        "it_over_ours": statistics.median(
            statistics.median(their["seconds"]) / statistics.median(our["seconds"]) for our, their in pairs
        ),
        "test_gap_by_epoch": by_epoch(gaps),
        "last_test_gap": statistics.fmean(gap[-1] for gap in gaps),
    }


def _gaps(ours: Report, theirs: Report) -> list[float]:
    """Test accuracy of ours less theirs, by epoch."""
    return [our["test"] - their["test"] for our, their in zip(ours["accuracy"], theirs["accuracy"], strict=True)]


def _show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = Table(title=title)
    table.add_column("rival")
    for name in ("rounds", "median s", "min s", "it / ours", "peak GB", "val %, by epoch", "test %", "ours - it"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row["rival"]]
        if "median_seconds" in row:
            cells += [str(row["rounds"]), f"{row['median_seconds']:.2f}", f"{row['min_seconds']:.2f}"]
            cells += [f"{row['it_over_ours']:.2f}" if "it_over_ours" in row else "", f"{row['peak_bytes'] / 1e9:.2f}"]
            cells += [" ".join(f"{100 * value:.1f}" for value in row["val_by_epoch"])]
            cells += [f"{100 * row['test_by_epoch'][-1]:.2f}"]
            cells += [f"{100 * row['last_test_gap']:+.2f}"] if "last_test_gap" in row else []
        else:
            cells += [row["failed"]]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, LIBRARIES)
    add = parser.add_argument
    add("--graph", default="products@0.1", help="a data set, or a share of one that is generated")
    add("--data-dir", default="", help="folder of the files of named data sets")
    add("--fanout", type=lambda text: tuple(map(int, text.split("-"))), default=(15, 10, 5), help="hops outward")
    add("--hidden", type=int, default=256)
    add("--warmup", type=int, default=1, help="epochs that do not count")
    add("--cold", nargs="+", default=[], help="libraries without such epochs, for theirs take minutes")
    add("--evaluation", nargs="+", default=[], choices=evaluated_epochs.EVALUATIONS, help="what follows an epoch")
    add("--eval-batch-size", type=int, default=4096, help="nodes of a batch where samples are evaluated")
    add("--layer-batch-size", type=int, default=4096, help="nodes of a batch of layer-wise inference")
    add("--count", type=int, default=4, help="epochs of each process that count")
    add("--trial", type=int, default=1, help="the same where a form is tried")
    options = parser.parse_args()
    if options.cold and not options.evaluation:
        parser.error("--cold needs --evaluation: without, accuracies are compared epoch by epoch")
    return options


def _measure(course: Course, libraries: Sequence[Library]) -> tuple[dict[str, Any], Reports, list[str]]:
    """What trials and rounds reported, the latter with accuracies or evaluations, and which of these are wrong."""
    options, folder = course.options, course.folder
    trial, job = Job(0, options.trial), Job(options.warmup, options.count)
    if options.evaluation:
        rivals, trials = evaluated_epochs.choose(course, libraries, options.evaluation, trial)
        reports = course.measure(rivals, job, options.cold)
        return trials, reports, evaluated_epochs.wrong_scores(folder, reports)
    rivals, trials = course.choose(libraries, TRAINING, trial)
    reports = course.measure(rivals, job, options.cold)
    _score(folder, [report for some in reports.values() for report in good(some)])
    return trials, reports, []


def main() -> None:
    """Measure, show, write."""
    options = _parse()
    evaluations = options.evaluation
    libraries, absent = available(options, LIBRARIES)
    with scratch(options) as folder:
        layers = str(len(options.fanout))
        data = ["batch_data", "training", options.graph, str(options.hidden), layers, options.data_dir]
        facts = write_data(folder, {"graph": options.graph}, data)

        def task(turn: int) -> Task:
            return Task(
                arrays=folder,
                fanouts=(options.fanout,),
                batch_size=options.batch_size,
                seed=turn,
                eval_batch_size=options.eval_batch_size,
                layer_batch_size=options.layer_batch_size,
            )

        course = Course(options=options, task=task, folder=folder, speeds=_speeds)
        trials, reports, wrong = _measure(course, libraries)
    rows = evaluated_epochs.summarise(reports, evaluations) if evaluations else _summarise(reports)
    sizes = f"{facts['nodes']:,} nodes, {facts['edges']:,} edges, {facts['train_nodes']:,} to train on"
    title = f"{options.graph}: {sizes}; batches of {options.batch_size}; {options.threads} threads"
    (evaluated_epochs.show if evaluations else _show)(rows, title)
    names = ["rounds", "warmup", "cold", "count", "trial", "threads", "batch_size", "hidden"]
    names += ["evaluation", "eval_batch_size", "layer_batch_size"] if evaluations else []
    parameters = {**facts, **{name: getattr(options, name) for name in names}, "absent": absent}
    parameters |= {"fanout": spelled(options.fanout), "dropout": DROPOUT, "lr": LEARNING_RATE, "dtype": "float32"}
    figures = {"parameters": parameters, "versions": versions(reports), "rows": rows}
    print(record.write("minibatch", {**figures, "reports": reports, "trials": trials}, options.out))
    worse = [row["rival"] for row in rows if row.get("last_test_gap", 0.0) < -_SAME_ACCURACY]
    if wrong:
        sys.exit(f"not the work of the others: {', '.join(wrong)}")
    if worse:
        sys.exit(f"these learn more in as many epochs: {', '.join(worse)}")


if __name__ == "__main__":
    main()
