"""Time and memory of a full-graph training epoch on the graphs that users have: Outgrow, PyG and DGL, side by side.

    benchmarks/rivals/setup.sh                 (once: makes the environments of the rivals)
    python benchmarks/real_graphs.py --data-dir DATA --rounds 3
    python benchmarks/real_graphs.py --data-dir DATA --graphs amazon-photo --models gcn,sage
    python benchmarks/real_graphs.py --means results/a.json results/b.json      (over the graphs of several files)

Two layers, 64 wide, no dropout. Outgrow gets the features as a graph stores them, mostly sparse; PyG and DGL get them
dense, as their examples do. All start from the same parameters and must compute the same losses. R-GCN, with 4 bases,
reads the relations of edges; for the others edges of all types are edges of one. Processes, rounds, settings and checks
are those of full_graph.py. The geometric means at the end are over all cells in which both finished with the same
losses; the others are named. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import record
from comparison import add_options, measure, parse, show, summarise, versions, write_data
from full_graph import ALL, MODELS, RIVALS
from rivals.process import Rival

GRAPHS = (
    "cora",
    "citeseer",
    "amazon-photo",
    "coauthor-cs",
    "wordnet",
    "debian",
    "heco-acm",
    "products@0.1",
    "reddit@0.05",
    "rmat-18",
)
RELATIONAL = "rgcn"
TASKS = (*MODELS, RELATIONAL)
_WITHOUT_RELATIONS = ("outgrow-recompute", "pyg-csr", "pyg-csr-tuned", "isplib", "isplib-tuned")
TAKERS = (
    *(
        rival if rival.name in _WITHOUT_RELATIONS else replace(rival, models=rival.models | {RELATIONAL})
        for rival in RIVALS
    ),
    Rival(name="pyg-compiled", module="pyg", form="compiled", python="pyg", models=ALL | {RELATIONAL}),
)
Row = Mapping[str, Any]


def compare_graph(graph: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one graph, and show it."""
    place = folder / graph
    place.mkdir(parents=True, exist_ok=True)
    wanted = {"graph": graph, "hidden": options.hidden, "inputs": options.inputs}
    facts = write_data(place, wanted, ["real_data", *map(str, wanted.values()), options.data_dir])
    found = measure(options, place.resolve())
    rows = summarise(found)
    sizes = f"{facts['nodes']:,} nodes, {facts['edges']:,} edges"
    widths = "-".join(map(str, facts["widths"]))
    show(rows, f"{graph}: {sizes}; widths {widths}, {facts['density']:.1%} of the features not zero")
    return {"facts": facts, "rows": rows, "reports": found, "versions": versions(found)}


def means(cells: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """For each rival, geometric means over graphs and models of its time and its memory over ours.

    Args:
        cells: Rows of `summarise`, by graph.
    """
    ours = {(graph, row["model"]): row for graph, rows in cells.items() for row in rows if row["rival"] == "outgrow"}
    found = []
    for rival in dict.fromkeys(row["rival"] for rows in cells.values() for row in rows):
        pairs = [
            (ours[graph, row["model"]], row, f"{row['model']} on {graph}")
            for graph, rows in cells.items()
            for row in rows
            if row["rival"] == rival and "ours_over_it" in row
        ]
        other = [cell for _, row, cell in pairs if not row["same_losses"]]
        pairs = [pair for pair in pairs if pair[1]["same_losses"]]
        if rival == "outgrow" or not pairs:
            continue
        slower = [cell for _, row, cell in pairs if row["ours_over_it"] > 1]
        found.append(
            {
                "rival": rival,
                "cells": len(pairs),
                "times_as_fast": statistics.geometric_mean(1 / row["ours_over_it"] for _, row, _ in pairs),
                "memory_over_ours": statistics.geometric_mean(
                    row["peak_rss_bytes"] / own["peak_rss_bytes"] for own, row, _ in pairs
                ),
                "slower_than_it": slower,
                "other_losses": other,
            }
        )
    return found


def show_means(found: Sequence[Row]) -> None:
    """Print a line for each rival."""
    for row in found:
        factors = f"{row['times_as_fast']:.1f} times its speed, {1 / row['memory_over_ours']:.2f} of its memory"
        slower, other = (", ".join(row[name]) or "none" for name in ("slower_than_it", "other_losses"))
        print(f"{row['rival']}: {factors}, over {row['cells']} cells; slower in: {slower}; left out: {other}")


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, TASKS, TAKERS)
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=list(GRAPHS), help="with commas")
    parser.add_argument("--data-dir", default="", help="folder of the files of named data sets")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--inputs", type=int, default=100, help="random features of a graph that has none")
    # Small graphs take milliseconds an epoch, and the first epochs of each library more.
    parser.set_defaults(rounds=3, warmup=3, epochs=10)
    parser.add_argument("--means", type=Path, nargs="+", help="files of this benchmark to take means over")
    options = parse(parser, TASKS, TAKERS)
    if options.means:
        files = [json.loads(path.read_text())["graphs"] for path in options.means]
        show_means(means({graph: figures["rows"] for graphs in files for graph, figures in graphs.items()}))
        return
    with ExitStack() as stack:
        folder = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        graphs = {graph: compare_graph(graph, options, folder) for graph in options.graphs}
    found = means({graph: figures["rows"] for graph, figures in graphs.items()})
    show_means(found)
    names = ("rounds", "warmup", "epochs", "threads", "memory_gib", "hidden", "inputs")
    parameters = {name: getattr(options, name) for name in names}
    print(record.write("real_graphs", {"parameters": parameters, "means": found, "graphs": graphs}, options.out))


if __name__ == "__main__":
    main()
