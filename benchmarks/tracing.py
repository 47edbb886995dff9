"""What it costs to note when what was done: epochs with spans, and without.

    python benchmarks/tracing.py                          # full and sampled on reddit@0.03, offload on products@0.05
    python benchmarks/tracing.py --graphs wordnet --rounds 9

Both train in turns, each in a process of its own, which differ by more than spans cost: so the cost of one span, times
their number, is given as a share of the epoch too. All spans of a run count, those of preparation and evaluation too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record
from workers import versions

from outgrow.core.timeline import Timeline

WAYS = {
    "full": "--strategy full",
    "sampled": "--strategy sampled --batch-size 1024 --fanout 10,10",
    "offload": "--strategy offload --set chunks=16",
    "orchestrate": "--strategy orchestrate --batch-size 256 --fanout 10,10",
}
WITHOUT = """
import contextlib, sys
from outgrow.core.timeline import Timeline
Timeline.span = lambda self, name, thread=None: contextlib.nullcontext()
Timeline.record_since = lambda self, name, thread, start: 0.0
Timeline.record_waits = lambda self, name, items: iter(items)
from outgrow.__main__ import main
main()
"""
_SPANS = 100_000
PROGRAM = {"with": ["-m", "outgrow"], "without": ["-c", WITHOUT]}


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    rows = []
    for graph in options.graphs:
        for way in options.ways:
            seconds: dict[str, list[float]] = {name: [] for name in PROGRAM}
            spans = 0
            for _ in range(options.rounds):
                for name in PROGRAM:
                    run, found = _trained(graph, way, name, options)
                    seconds[name].append(statistics.median(run["epoch_seconds"][1:]))
                    spans = max(spans, found)
            medians = {name: statistics.median(each) for name, each in seconds.items()}
            row: dict[str, Any] = {"graph": graph, "way": way, "spans": spans, "seconds": seconds}
            row["ratio_of_medians"] = medians["with"] / medians["without"]
            row["share_of_spans"] = spans / options.epochs * span_seconds() / medians["without"]
            rows.append(row)
            print({key: value for key, value in row.items() if key != "seconds"}, flush=True)
    figures = {"parameters": vars(options) | {"out": None}, "versions": versions(), "rows": rows}
    print(record.write("tracing", figures, options.out))


def span_seconds() -> float:
    """What noting one span takes."""
    timeline = Timeline()
    began = time.perf_counter()
    for _ in range(_SPANS):
        with timeline.span("outer"), timeline.span("inner"):
            pass
    return (time.perf_counter() - began) / (2 * _SPANS)


def _trained(graph: str, way: str, name: str, options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = f"train {graph} --model sage --layers 2 --epochs {options.epochs} {WAYS[way]} --set eval_every=1000"
        command = [sys.executable, *PROGRAM[name], *words.split(), "--json", "--out", str(out)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        trace = json.loads((out / "trace.json").read_text())
        return json.loads(done.stdout.splitlines()[-1]), sum(event["ph"] == "X" for event in trace["traceEvents"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["reddit@0.03"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
