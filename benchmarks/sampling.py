"""Edges that neighbour sampling draws in a second: Outgrow, GraphBolt (DGL 2.1) and PyG's NeighborLoader.

    benchmarks/rivals/setup.sh                 (once: makes the environments of the rivals)
    python benchmarks/sampling.py --out benchmarks/results/sampling_scale18.json

Batches of the same seeds from the same R-MAT graph, without replacement, relabelled as training needs them. Every
rival runs in a process of its own; rounds are interleaved. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import record
from comparison import write_data
from rich.console import Console
from rich.table import Table
from rivals.batches import SAMPLING, Task, spelled
from rounds import (
    OURS,
    Course,
    Job,
    Library,
    Report,
    Reports,
    add_options,
    available,
    good,
    library_of,
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
        forms=("int32-0", "int32-0-tuned", "int64-0-tuned", "int32-1-tuned", "int32-2", "int32-2-tuned"),
    ),
    Library(
        name="neighborloader",
        module="neighborloader",
        python="pyg",
        needs="torch_sparse",
        forms=("edge-0", "edge-2"),
    ),
)
_DRAWS_EVERY_NODE = ("graphbolt",)
_SAME_EDGES = 0.02


def _speeds(report: Report) -> list[float]:
    return [cell["edges"] / cell["seconds"] for cell in report["cells"].values()]


def _summarise(reports: Reports) -> list[dict[str, Any]]:
    """One row for each fan-out and rival."""
    ours = [report["cells"] for report in good(reports.get(OURS, []))]
    rows = []
    for name, some in reports.items():
        theirs = [report["cells"] for report in good(some)]
        failed = [report["failed"] for report in some if "failed" in report]
        if failed:
            rows.append({"fanout": "", "rival": name, "failed": failed[0]})
        for fanout in theirs[0] if theirs else ():
            row = _figures([cells[fanout] for cells in theirs])
            pairs = [(mine[fanout], cells[fanout]) for mine, cells in zip(ours, theirs, strict=False)]
            rows.append({"fanout": fanout, "rival": name, **row, **_against(pairs)})
    return sorted(rows, key=lambda row: list(dict.fromkeys(row["fanout"] for row in rows)).index(row["fanout"]))


def _figures(cells: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    rates = [cell["edges"] / cell["seconds"] for cell in cells]
    batches = sum(cell["batches"] for cell in cells)
    return {
        "rounds": len(cells),
        "edges_per_second": statistics.median(rates),
        "least_edges_per_second": min(rates),
        "most_edges_per_second": max(rates),
        "batches_per_second": statistics.median(cell["batches"] / cell["seconds"] for cell in cells),
        "edges_per_batch": sum(cell["edges"] for cell in cells) / batches,
        "nodes_per_batch": sum(cell["nodes"] for cell in cells) / batches,
        "batches": batches,
    }


def _against(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, float]:
    """Our rates over theirs, round by round."""
    if not pairs:
        return {}
    times = [our["seconds"] / their["seconds"] for our, their in pairs]
    return {
        "ours_over_it_edges": statistics.median(
            our["edges"] / their["edges"] / time for (our, their), time in zip(pairs, times, strict=True)
        ),
        "ours_over_it_batches": statistics.median(
            our["batches"] / their["batches"] / time for (our, their), time in zip(pairs, times, strict=True)
        ),
    }


def _other_work(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rivals that draw in-edges of the same nodes as we do, and have drawn another number of them."""
    done = [row for row in rows if "failed" not in row]
    ours = {row["fanout"]: row["edges_per_batch"] for row in done if row["rival"] == OURS}
    return [
        f"{row['rival']} {row['fanout']}: {row['edges_per_batch']:.0f} edges a batch, ours {ours[row['fanout']]:.0f}"
        for row in done
        if library_of(row["rival"]) in _DRAWS_EVERY_NODE
        and row["fanout"] in ours
        and abs(row["edges_per_batch"] / ours[row["fanout"]] - 1) > _SAME_EDGES
    ]


def _show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = Table(title=title)
    for name in ("fan-out", "rival"):
        table.add_column(name)
    for name in ("rounds", "M edges/s", "(least, most)", "batches/s", "edges/batch", "ours / it", "(batches)"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row["fanout"], row["rival"]]
        if "failed" in row:
            table.add_row(*cells, row["failed"])
            continue
        rates = [row[name] / 1e6 for name in ("edges_per_second", "least_edges_per_second", "most_edges_per_second")]
        cells += [str(row["rounds"]), f"{rates[0]:.1f}", f"{rates[1]:.1f}, {rates[2]:.1f}"]
        cells += [f"{row['batches_per_second']:.1f}", f"{row['edges_per_batch']:,.0f}"]
        if "ours_over_it_edges" in row:
            cells += [f"{row['ours_over_it_edges']:.2f}", f"{row['ours_over_it_batches']:.2f}"]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _fanouts(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, fanout.split("-"))) for fanout in text.split(","))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, LIBRARIES)
    add = parser.add_argument
    add("--scale", type=int, default=18, help="the graph has 2^scale nodes")
    add("--fanouts", type=_fanouts, default=_fanouts("25-10,10-10-10,25-10-5"), help="hops outward from the seeds")
    add("--warmup", type=int, default=8, help="batches that do not count")
    add("--count", type=int, default=240, help="batches that count, for each fan-out and process")
    add("--trial", type=int, default=30, help="the same where a form is tried")
    add("--seconds", type=float, default=5.0, help="longest time for those that count")
    return parser.parse_args()


def main() -> None:
    """Measure, show, write."""
    options = _parse()
    libraries, absent = available(options, LIBRARIES)
    with scratch(options) as folder:
        facts = write_data(folder, {"scale": options.scale}, ["batch_data", "sampling", str(options.scale)])

        def task(turn: int) -> Task:
            sizes = {"fanouts": options.fanouts, "batch_size": options.batch_size}
            return Task(arrays=folder, seed=turn, seconds=options.seconds, **sizes)

        course = Course(options=options, task=task, folder=folder, speeds=_speeds)
        rivals, trials = course.choose(libraries, SAMPLING, Job(options.warmup, options.trial))
        reports = course.measure(rivals, Job(options.warmup, options.count))
    rows = _summarise(reports)
    sizes = f"{facts['nodes']:,} nodes, {facts['edges']:,} edges"
    _show(rows, f"R-MAT scale {options.scale}: {sizes}; batches of {options.batch_size}; {options.threads} threads")
    names = ("rounds", "warmup", "count", "trial", "seconds", "threads", "batch_size")
    parameters = {**facts, **{name: getattr(options, name) for name in names}, "replace": False, "absent": absent}
    parameters["fanouts"] = [spelled(fanout) for fanout in options.fanouts]
    figures = {"parameters": parameters, "versions": versions(reports), "rows": rows}
    print(record.write("sampling", {**figures, "reports": reports, "trials": trials}, options.out))
    if wrong := _other_work(rows):
        sys.exit("the comparison is not one of the same work: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
