"""One worker against several on the cores of this machine, on the same whole job, under the strategy `full`.

    python benchmarks/workers.py                                   # GCN and GAT, R-MAT scale 18, 1 and 2 workers
    python benchmarks/workers.py --scale 14 --rounds 1 --epochs 2

Every cell of the table is started anew in each round, by what `og.train(..., workers=N)` starts its workers with. The
table goes to the terminal, all figures to benchmarks/results/. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import record
from full_graph import write_data
from rivals.common import Job, read_arrays
from rivals.ours import make_graph
from workers_table import show, summarise
from workers_task import MIS_SET, Cell, Training, start

from outgrow.runtime.system.environment import available_cores

MODELS = ("gcn", "gat")


def cells(options: argparse.Namespace) -> list[Cell]:
    """All lines of the table, those of one model together."""
    found = []
    for model in options.models:
        for workers in options.workers:
            ways = itertools.product(options.partitions, options.overlap) if workers > 1 else [("-", False)]
            found += [Cell(model, workers, partition, overlap) for partition, overlap in ways]
            if workers > 1 and options.misset_epochs:
                found.append(Cell(model, workers, options.partitions[-1], options.overlap[0], MIS_SET))
    return found


def measure(options: argparse.Namespace, folder: Path, store: Path) -> dict[Cell, list[dict[str, Any]]]:
    """Reports by cell, one a round; rounds begin with another cell each time. Mis-set threads have one round."""
    every = cells(options)
    found: dict[Cell, list[dict[str, Any]]] = {cell: [] for cell in every}
    for turn in range(options.rounds):
        at = turn % len(every)
        for cell in every[at:] + every[:at]:
            mis_set = cell.threads == MIS_SET
            if mis_set and found[cell]:
                continue
            epochs, seconds = options.epochs, options.timeout_minutes * 60
            if mis_set:
                epochs, seconds = options.misset_epochs, options.misset_seconds
            job = Job(model=cell.model, form="", folder=folder, warmup=options.warmup, epochs=epochs, limit_bytes=0)
            report = start(Training(cell=cell, job=job, store=store), seconds)
            found[cell].append(report)
            said = report.get("failed") or f"{statistics.median(report['seconds']):.3f} s"
            print(f"round {turn + 1}: {_name(cell)}: {said}", file=sys.stderr, flush=True)
    return found


def prepare(options: argparse.Namespace, folder: Path) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """The store of the graph, with all partitions in it; what the graph is, and what the partitions cut."""
    from outgrow.graph.partition.methods import make_partitioner
    from outgrow.graph.partition.partition_cache import load_or_make_partition
    from outgrow.graph.partition.quality import measure_quality
    from outgrow.graph.store.reader import is_store, open_store, write_store

    facts, store = write_data(folder, options.scale, options.widths), folder / "store"
    if not is_store(store):
        write_store(make_graph(f"rmat-{options.scale}", read_arrays(folder), options.widths[-1]), store)
    topology = open_store(store).topology
    cuts = []
    for workers, name in itertools.product([n for n in options.workers if n > 1], options.partitions):
        found = load_or_make_partition(topology, make_partitioner(name), workers, store=store)
        cuts.append({"workers": workers, "partition": name, **asdict(measure_quality(topology, found))})
    return store, facts, cuts


def _name(cell: Cell) -> str:
    ways = f", {cell.partition}, overlap {'on' if cell.overlap else 'off'}" if cell.workers > 1 else ""
    return f"{cell.model}, {cell.workers} worker{'s' if cell.workers > 1 else ''}{ways}, threads {cell.threads}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=_names, default=list(MODELS), help="some of " + ",".join(MODELS))
    add("--workers", type=_numbers, default=[1, 2], help="numbers of workers")
    add("--partitions", type=_names, default=["metis", "range-edges"], help="see `outgrow partition`")
    add("--overlap", type=_switches, default=[True, False], help="on, off, or both")
    add("--scale", type=int, default=18, help="the graph has 2^scale nodes")
    add("--widths", type=_numbers, default=[100, 256, 47], help="of input, hidden layer and output")
    add("--rounds", type=int, default=3)
    add("--warmup", type=int, default=1, help="epochs of each run before those that count")
    add("--epochs", type=int, default=5, help="epochs of each run that count")
    add("--misset-epochs", type=int, default=1, help="epochs with mis-set threads that count; 0 for none")
    add("--misset-seconds", type=float, default=180.0, help="time for all of a run with mis-set threads")
    add("--timeout-minutes", type=float, default=15.0, help="time for all of any other run")
    add("--scratch", type=Path, help="keep and reuse the graph here; else it goes to a temporary folder")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    unknown = set(options.models) - set(MODELS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _switches(text: str) -> list[bool]:
    return [{"on": True, "off": False}[name] for name in text.split(",")]


def main() -> None:
    """Measure, show, write; fails if some cell computed other losses."""
    options = _parse()
    with ExitStack() as stack:
        folder = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        store, facts, cuts = prepare(options, folder.resolve())
        found = measure(options, folder.resolve(), store)
    rows = summarise(found)
    sizes = f"{facts['nodes']:,} nodes, {facts['edges']:,} edges"
    show(rows, cuts, f"R-MAT scale {facts['scale']}: {sizes}; widths {'-'.join(map(str, facts['widths']))}")
    names = ("workers", "rounds", "warmup", "epochs", "misset_epochs", "misset_seconds")
    figures = {
        "parameters": {**facts, "cores": available_cores(), **{name: getattr(options, name) for name in names}},
        "versions": versions(),
        "partitions": cuts,
        "rows": rows,
        "reports": [{**cell._asdict(), "rounds": reports} for cell, reports in found.items()],
    }
    print(record.write("workers", figures, options.out))
    if any(row.get("same_losses") is False for row in rows):
        sys.exit("some cell computed other losses: the comparison is not one of the same work")


def versions() -> dict[str, str]:
    """What is measured, and with what."""
    packages = ("outgrow", "torch", "numpy", "numba", "pymetis")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


if __name__ == "__main__":
    main()
