"""Full-graph training beyond memory: strategy `offload` against itself without its techniques, and against `full`.

    python benchmarks/offload.py quarter eighth ablation chunks gat cap --graph it-2004@0.02 --scratch DIR
    python benchmarks/offload.py ablation --workers 2 --models gcn,gat --layers 2,3,4    # figure 9 of the paper
    python benchmarks/offload.py scaling --workers 2 --models gcn,gat                    # figure 11
    sudo python benchmarks/offload.py commits --checkout DIR                             # beside another commit
    python benchmarks/offload.py gpu --graph products --device-memory 4GiB

Every run is a process of its own (`offload_run.py`); rivals are interleaved, one run of each per round. `cap` and
`commits` need root, for a control group whose limit holds for the page cache too. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import capped
import record
from offload_bench import Bench, Rows
from offload_rates import link_rate, sequential_rate
from rich.console import Console
from rich.table import Table

MIB = 1 << 20
VANILLA = {"sharing": False, "reuse": False, "reorganise": False, "overlap": False}
NARROW = ("bfloat16", "int8")
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vanilla", VANILLA),
    ("+ sharing", {**VANILLA, "sharing": True}),
    ("+ reuse", {"reorganise": False, "overlap": False}),
    ("+ reorganise", {"overlap": False}),
    ("+ overlap", {}),
    ("all, no cache", {"cache": False}),
)


def _figures(name: str, reports: Rows) -> dict[str, Any]:
    """One line: medians over rounds."""
    good = [report for report in reports if "failed" not in report]
    if not good:
        return {"run": name, "failed": reports[0]["failed"]}
    last = good[-1]
    seconds = [statistics.median(report["epoch_seconds"]) for report in good]
    moved = last["bytes"]
    return {
        "run": name,
        "epoch_seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_mib": max(report["peak_bytes"] for report in good) / MIB,
        "host_to_device_mb": _of(moved, "host_to_device") / 1e6,
        "device_to_host_mb": _of(moved, "device_to_host") / 1e6,
        "peer_mb": _of(moved, "peer") / 1e6,
        "disk_read_mb": last["counters"].get("disk_read_bytes", 0) / 1e6,
        "speedup_of_edges": last["speedup_of_edges"],
        "spans": last["spans"],
        "facts": last["facts"],
        "loss": last["loss"],
        "group_mib": last["group_bytes"] / MIB,
    }


def _of(moved: Mapping[str, float], link: str) -> float:
    rows = ("features", "activations", "gradients")
    return sum(count for name, count in moved.items() if name.startswith(link) and name.endswith(rows))


def quarter(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """In memory, with an ample budget, and at a quarter of the memory that `full` takes, with narrow rows too."""
    first = bench.run(graph, strategy=None)
    budget = f"{first['peak_bytes'] // 4 // MIB}MiB"
    return _lines(
        bench,
        {
            "full": lambda: bench.run(graph, strategy=None),
            "offload, ample": lambda: bench.run(graph, strategy={}),
            f"offload, {budget}": lambda: bench.run(graph, strategy={"memory": budget}),
            **{
                f"offload, {budget}, {narrow}": (
                    lambda narrow=narrow: bench.run(graph, strategy={"memory": budget, "storage_precision": narrow})
                )
                for narrow in NARROW
            },
        },
    )


def eighth(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """At an eighth of the memory that `full` takes: in chunks without the techniques, with them, with narrow rows.

    Where memory can be capped, the page cache is capped with it, at twice the budget, so that disks are at work.
    """
    memory = bench.run(graph, strategy=None)["peak_bytes"] // 8
    limit = None if capped.unavailable() else 2 * memory
    budget = {"memory": f"{memory // MIB}MiB"}
    first = bench.run(graph, limit, strategy=budget)
    if "failed" in first:
        return [_figures("offload, first run", [first])]
    same = {**budget, "chunks": first["facts"]["chunks"]}
    rivals = {"vanilla": {**same, **VANILLA}, "offload": budget}
    rivals |= {f"offload, {narrow}": {**budget, "storage_precision": narrow} for narrow in NARROW}
    return _lines(
        bench,
        {name: (lambda chosen=chosen: bench.run(graph, limit, strategy=chosen)) for name, chosen in rivals.items()},
    )


def ablation(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """Technique by technique, beside `full`, for every model and depth that is asked for (figure 9 of the paper)."""
    common = {"chunks": options.chunks}
    found = []
    for model in options.models.split(","):
        for layers in map(int, options.layers.split(",")):
            what = {"model": model, "layers": layers, "workers": options.workers}
            rivals: dict[str, dict[str, Any] | None] = {
                name: {**common, **chosen}
                for name, chosen in STEPS
                # Nothing of an attention layer is kept, whatever the option says.
                if (options.workers > 1 or name != "+ sharing") and (model == "gcn" or "cache" not in chosen)
            }
            rivals["full"] = None
            lines = _lines(
                bench,
                {
                    name: (lambda chosen=chosen, what=what: bench.run(graph, strategy=chosen, **what))
                    for name, chosen in rivals.items()
                },
            )
            found += [{**line, "run": f"{model} {layers}: {line['run']}", **what} for line in lines]
    return found


def scaling(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """One worker to as many as asked for, one thread each, which have as many chunks together (figure 11).

    Beside the seconds are counts: all edges that are aggregated, by the most that one worker aggregates.
    """
    found, total = [], options.chunks
    for model in options.models.split(","):
        counts = [count for count in (1, 2, 3, 4, 6, 8) if count <= options.workers]
        lines = _lines(
            bench,
            {
                f"{model}: {count} workers": (
                    lambda count=count, model=model: bench.run(
                        graph,
                        threads=1,
                        strategy={"chunks": -(-total // count)},
                        workers=count,
                        model=model,
                        layers=int(options.layers.split(",")[0]),
                    )
                )
                for count in counts
            },
        )
        for line in lines:
            if "times_first" in line:
                line["speedup"] = 1 / line["times_first"]
        found += lines
    return found


def commits(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """This commit beside that of another checkout, within the same memory, under a hard cap."""
    within = {"memory": f"{options.memory_mib}MiB"}
    if reason := capped.unavailable():
        raise SystemExit(reason)
    limit = options.cap_mib * MIB
    git = ["git", "-C", str(options.checkout), "rev-parse", "HEAD"]
    other = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    return _lines(
        bench,
        {
            other: lambda: bench.run(graph, limit, strategy=within, checkout=options.checkout),
            "this commit": lambda: bench.run(graph, limit, strategy=within),
        },
    )


def chunks(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """One, two, three and four times the chunks (figure 10 of the paper)."""
    return _lines(
        bench,
        {
            f"{factor * options.chunks} chunks": (
                lambda factor=factor: bench.run(
                    graph, strategy={"chunks": factor * options.chunks}, workers=options.workers
                )
            )
            for factor in (1, 2, 3, 4)
        },
    )


def gat(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """Attention within 1 GiB."""
    return _lines(bench, {"gat, 1GiB": lambda: bench.run(graph, model="gat", strategy={"memory": "1GiB"}, layers=2)})


def cap(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """Under a hard cap, page cache included: all techniques against none, and what the disk gives at most."""
    if reason := capped.unavailable():
        raise SystemExit(reason)
    limit, memory = options.cap_mib * MIB, f"{options.memory_mib}MiB"
    chosen = bench.run(graph, limit, strategy={"memory": memory})
    rows = [_figures("offload, first run", [chosen])]
    if "failed" in chosen:
        return rows
    same = {"chunks": chosen["facts"]["chunks"], "memory": memory}
    rows += _lines(
        bench,
        {
            "offload": lambda: bench.run(graph, limit, strategy={"memory": memory}),
            "vanilla": lambda: bench.run(graph, limit, strategy={**same, **VANILLA}),
        },
    )
    rate = sequential_rate(bench.scratch, 4 * limit)
    for row in rows:
        if "failed" not in row:
            row["sequential_mb_per_second"] = rate / 1e6
            row["reached_mb_per_second"] = row["disk_read_mb"] / row["epoch_seconds"]
            row["load_mb_per_second"] = row["disk_read_mb"] / row["spans"]["load"]
    return rows


def gpu(bench: Bench, graph: str, options: argparse.Namespace) -> Rows:
    """On a GPU: everything there, and within a budget, technique by technique; what the link gives at most."""
    budget = {"memory": options.device_memory}
    steps = {name: {**budget, **chosen} for name, chosen in STEPS if name != "+ sharing"}
    rows = _lines(
        bench,
        {
            name: (lambda chosen=chosen: bench.run(graph, strategy=chosen, device="cuda"))
            for name, chosen in {"full": None, **steps}.items()
        },
    )
    link = link_rate()
    for row in rows:
        if "failed" not in row:
            row["link_mb_per_second"] = link / 1e6
            row["reached_mb_per_second"] = row["host_to_device_mb"] / row["spans"].get("load", float("inf"))
    return rows


def _lines(bench: Bench, rivals: Mapping[str, Callable[[], dict[str, Any]]]) -> Rows:
    rows = [_figures(name, reports) for name, reports in bench.interleaved(rivals).items()]
    first = rows[0].get("all_seconds")
    for row in rows:
        if first and "all_seconds" in row:
            row["times_first"] = statistics.median(
                mine / other for mine, other in zip(row["all_seconds"], first, strict=False)
            )
            if "preprocessing_seconds" in row["facts"]:
                row["preprocessing_of_100_epochs"] = row["facts"]["preprocessing_seconds"] / (
                    100 * row["epoch_seconds"]
                )
    return rows


def _show(title: str, rows: Rows) -> None:
    table = Table(title=title)
    numbers = ("epoch_seconds", "times_first", "peak_mib", "host_to_device_mb", "device_to_host_mb", "peer_mb")
    numbers += (
        "speedup",
        "speedup_of_edges",
        "disk_read_mb",
        "preprocessing_of_100_epochs",
        "group_mib",
        "load_mb_per_second",
    )
    for name in ("run", *numbers, "chunks", "spans"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for row in rows:
        spans = " ".join(f"{name} {seconds:.2f}" for name, seconds in row.get("spans", {}).items())
        figures = [f"{row[name]:,.3f}" if name in row else str(row.get("failed", "")) for name in numbers]
        table.add_row(row["run"], *figures, str(row.get("facts", {}).get("chunks", "")), spans)
    Console(width=250).print(table)


def main() -> None:
    """Run the tables that are asked for."""
    tables = {
        "quarter": quarter,
        "eighth": eighth,
        "ablation": ablation,
        "scaling": scaling,
        "chunks": chunks,
        "gat": gat,
        "cap": cap,
        "commits": commits,
        "gpu": gpu,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=tables)
    parser.add_argument("--graph", default="it-2004@0.02")
    parser.add_argument("--stores", type=Path, help="folder for the stores of graphs, which are kept there")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--models", default="gcn", help="of ablation and scaling: gcn, gat, or both with a comma")
    parser.add_argument("--layers", default="3", help="of ablation and scaling, with commas")
    parser.add_argument("--cap-mib", type=int, default=768)
    parser.add_argument("--memory-mib", type=int, default=640)
    parser.add_argument("--checkout", type=Path, help="of commits: a folder with another commit of this repository")
    parser.add_argument("--device-memory", default="4GiB")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(options.stores or Path(made), options.rounds, options.epochs, options.scratch)
        figures: dict[str, Any] = {"graph": options.graph, "workers": options.workers}
        for name in options.tables:
            figures[name] = tables[name](bench, options.graph, options)
            _show(f"{name}: {options.graph}, {options.workers} workers", figures[name])
    print(record.write("offload", figures, options.out))


if __name__ == "__main__":
    main()
