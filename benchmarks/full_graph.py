"""Time and memory of a full-graph training epoch: Outgrow, PyG in both its forms, and DGL, side by side.

    benchmarks/rivals/setup.sh                 (once: makes the environments of the rivals)
    python benchmarks/full_graph.py --models gcn,gat --rounds 5

Every rival runs in a process of its own and gets the same arrays and the same parameters to start from; rounds are
interleaved. The table goes to the terminal, all figures to benchmarks/results/. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rivals.process import HERE, Limits, Rival, run

from outgrow.runtime.hardware import cores, describe

ROOT = HERE.parent
ALL = frozenset({"gcn", "sage", "gin", "gat"})
FIXED = ALL - {"gat"}
# What outgrow.runtime.launch sets for us anybody can set for the others: sleeping threads, huge pages.
TUNED = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}
RIVALS = (
    Rival(name="outgrow", module="ours", form="outgrow", python="", models=ALL),
    Rival(name="dgl", module="dgl", form="int32", python="dgl", models=ALL),
    Rival(name="dgl-tuned", module="dgl", form="int32", python="dgl", models=ALL, settings=TUNED),
    Rival(name="pyg-csr", module="pyg", form="csr", python="pyg", models=FIXED),
    Rival(name="pyg-csr-tuned", module="pyg", form="csr", python="pyg", models=FIXED, settings=TUNED),
    Rival(name="pyg-edge", module="pyg", form="edge_index", python="pyg", models=ALL),
    Rival(name="pyg-edge-tuned", module="pyg", form="edge_index", python="pyg", models=ALL, settings=TUNED),
)
OURS = RIVALS[0].name
_SAME_LOSS = 1e-3


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Reports by model and rival, one a round; a rival that failed is not asked again."""
    limits = Limits(
        threads=options.threads, memory_bytes=int(options.memory_gib * 2**30), seconds=options.timeout_minutes * 60
    )
    found: dict[str, dict[str, list[dict[str, Any]]]] = {model: {} for model in options.models}
    for turn in range(options.rounds):
        for model in options.models:
            takers = [rival for rival in options.rivals if model in rival.models]
            at = turn % len(takers)
            for rival in takers[at:] + takers[:at]:
                reports = found[model].setdefault(rival.name, [])
                if reports and "failed" in reports[-1]:
                    continue
                job = {"model": model, "folder": str(folder)}
                job |= {"warmup": str(options.warmup), "epochs": str(options.epochs)}
                reports.append(run(_python(rival, options.envs), rival, job, limits))
                print(f"round {turn + 1}: {model} {rival.name}: {_one_line(reports[-1])}", file=sys.stderr, flush=True)
    return found


def summarise(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[dict[str, Any]]:
    """One row for each model and rival."""
    rows = []
    for model, rivals in found.items():
        ours = rivals.get(OURS, [])
        for name, reports in rivals.items():
            row: dict[str, Any] = {"model": model, "rival": name}
            good = [report for report in reports if "failed" not in report]
            failed = [report["failed"] for report in reports if "failed" in report]
            if good:
                row |= _figures(good) | _against(good, [report for report in ours if "failed" not in report])
            if failed:
                row["failed"] = failed[0]
            rows.append(row)
    return rows


def _figures(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    medians = [statistics.median(report["seconds"]) for report in reports]
    return {
        "rounds": len(reports),
        "median_seconds": statistics.median(medians),
        "slowest_round_seconds": max(medians),
        "min_seconds": min(min(report["seconds"]) for report in reports),
        "median_cpu_seconds": statistics.median(statistics.median(report["cpu_seconds"]) for report in reports),
        "warmup_seconds": statistics.median(sum(report["warmup_seconds"]) for report in reports),
        "peak_rss_bytes": max(report["peak_rss_bytes"] for report in reports),
        "peak_anonymous_bytes": max(report["peak_anonymous_bytes"] for report in reports),
        "median_load_before": statistics.median(report["load"] for report in reports),
    }


def _against(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Our time over theirs round by round, and whether both computed the same losses."""
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return {}
    ratios = [statistics.median(our["seconds"]) / statistics.median(their["seconds"]) for our, their in pairs]
    gaps = [abs(a - b) / abs(b) for our, their in pairs for a, b in zip(our["losses"], their["losses"], strict=True)]
    medians = [statistics.median([statistics.median(r["seconds"]) for r in side]) for side in (ours, theirs)]
    return {
        "ours_over_it": statistics.median(ratios),
        "ours_over_it_of_minima": min(min(r["seconds"]) for r in ours) / min(min(r["seconds"]) for r in theirs),
        "it_over_ours_of_medians": medians[1] / medians[0],
        "largest_loss_gap": max(gaps),
        "same_losses": max(gaps) < _SAME_LOSS,
    }


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """The table."""
    table = Table(title=title)
    for name in ("model", "rival"):
        table.add_column(name)
    for name in ("median s", "min s", "CPU s", "peak RSS GB", "anonymous GB", "ours / it", "(minima)", "same losses"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row["model"], row["rival"]]
        if "median_seconds" in row:
            cells += [f"{row[name]:.3f}" for name in ("median_seconds", "min_seconds", "median_cpu_seconds")]
            cells += [f"{row[name] / 1e9:.2f}" for name in ("peak_rss_bytes", "peak_anonymous_bytes")]
            if "ours_over_it" in row:
                cells += [f"{row[name]:.2f}" for name in ("ours_over_it", "ours_over_it_of_minima")]
                cells += ["yes" if row["same_losses"] else f"NO: {row['largest_loss_gap']:.1e}"]
        else:
            cells += [row["failed"]]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def record(options: argparse.Namespace, facts: Mapping[str, Any], rows: Any, found: Any) -> Path:
    """Write the JSON; returns where."""
    machine = describe()
    result = {
        "benchmark": "full_graph",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": asdict(machine),
        "parameters": {
            **facts,
            **{name: getattr(options, name) for name in ("rounds", "warmup", "epochs", "threads", "memory_gib")},
            "heads": [4, 1],
            "dropout": 0.0,
            "dtype": "float32",
            "settings": {rival.name: dict(rival.settings) for rival in options.rivals},
        },
        "versions": _versions(found),
        "rows": rows,
        "reports": found,
    }
    path: Path = options.out or HERE / "results" / f"full_graph_{cpu_slug(machine.processor)}_{result['date']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def commit() -> str:
    """The commit that is measured, with a mark if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def cpu_slug(processor: str) -> str:
    """The name of a processor as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", processor.lower()).strip("-")


def write_data(folder: Path, scale: int, widths: Sequence[int]) -> dict[str, Any]:
    """Make the arrays of all rivals below ``folder``, unless they are there; returns what they are."""
    facts = folder / "data.json"
    if facts.exists():
        there: dict[str, Any] = json.loads(facts.read_text())
        if [there["scale"], *there["widths"]] != [scale, *widths]:
            sys.exit(f"{folder} holds other data ({there}); give an empty --scratch folder")
        return there
    command = [sys.executable, "-m", "rivals.data", str(folder.resolve()), str(scale), *map(str, widths)]
    subprocess.run(command, cwd=HERE, check=True)
    made: dict[str, Any] = json.loads(facts.read_text())
    return made


def _versions(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    return {
        name: report["versions"]
        for rivals in found.values()
        for name, reports in rivals.items()
        for report in reports
        if "versions" in report
    }


def _python(rival: Rival, envs: Path) -> Path:
    return envs / rival.python / "bin" / "python" if rival.python else Path(sys.executable)


def _one_line(report: Mapping[str, Any]) -> str:
    if "failed" in report:
        return f"{report['failed']} {report.get('message', '')}"
    seconds, peak = statistics.median(report["seconds"]), report["peak_rss_bytes"] / 1e9
    return f"{seconds:.3f} s, {peak:.2f} GB (load {report['load']:.1f})"


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=_names, default=sorted(ALL), help="some of gcn,sage,gin,gat")
    add(
        "--rivals",
        type=_names,
        default=[rival.name for rival in RIVALS],
        help="some of " + ",".join(r.name for r in RIVALS),
    )
    add("--rounds", type=int, default=5)
    add("--warmup", type=int, default=1, help="epochs of each process before those that count")
    add("--epochs", type=int, default=5, help="epochs of each process that count")
    add("--scale", type=int, default=18, help="the graph has 2^scale nodes")
    add("--widths", type=lambda text: [int(part) for part in text.split(",")], default=[100, 256, 47])
    add("--threads", type=int, default=cores())
    add("--memory-gib", type=float, default=20.0, help="private memory of each process")
    add("--timeout-minutes", type=float, default=15.0, help="wall time of each process")
    add("--envs", type=Path, default=ROOT / ".venv-rivals", help="folder of the rivals' environments")
    add("--scratch", type=Path, help="keep and reuse the arrays here; else they go to a temporary folder")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    options.envs = options.envs.absolute()
    known = {rival.name: rival for rival in RIVALS}
    unknown = (set(options.models) - ALL) | (set(options.rivals) - known.keys())
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    options.rivals = [known[name] for name in options.rivals]
    missing = [python for python in {_python(rival, options.envs) for rival in options.rivals} if not python.exists()]
    if missing:
        parser.error(f"no {missing[0]}; run benchmarks/rivals/setup.sh, or choose --rivals")
    return options


def main() -> None:
    """Measure, show, write."""
    options = _options()
    with ExitStack() as stack:
        folder = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        facts = write_data(folder, options.scale, options.widths)
        found = measure(options, folder.resolve())
    rows = summarise(found)
    title = f"R-MAT scale {facts['scale']}: {facts['nodes']:,} nodes, {facts['edges']:,} edges; widths "
    show(rows, title + "-".join(map(str, facts["widths"])) + f"; {options.threads} threads")
    print(record(options, facts, rows, found))
    if any(row.get("same_losses") is False for row in rows):
        sys.exit("some rival computed other losses: the comparison is not one of the same work")


if __name__ == "__main__":
    main()
