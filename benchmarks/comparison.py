"""Rivals side by side: each in a process of its own, in interleaved rounds, from the same start, with the same losses.

What `full_graph.py` and `relational.py` share: options, rounds, medians, the table, the JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import record
from record import HERE, ROOT
from rich.console import Console
from rich.table import Table
from rivals.process import Limits, Rival, run

from outgrow.runtime.system.environment import available_cores

# What outgrow.runtime.system.environment sets for us anybody can set for the others: sleeping threads, huge pages.
TUNED = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "THP_MEM_ALLOC_ENABLE": "1"}
_OURS = "outgrow"
_SAME_LOSS = 1e-3

Reports = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""What the processes reported, by model and rival, one a round."""


def add_options(parser: argparse.ArgumentParser, models: Sequence[str], rivals: Sequence[Rival]) -> None:
    """The options that all comparisons have."""
    add = parser.add_argument
    names = [rival.name for rival in rivals]
    add("--models", type=_names, default=list(models), help="some of " + ",".join(models))
    add("--rivals", type=_names, help=f"some of {','.join(names)}; those that are installed unless given")
    add("--rounds", type=int, default=5)
    add("--warmup", type=int, default=1, help="epochs of each process before those that count")
    add("--epochs", type=int, default=5, help="epochs of each process that count")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where to train: of Outgrow and PyG also cuda")
    add("--threads", type=int, default=available_cores())
    add("--memory-gib", type=float, default=20.0, help="private memory of each process")
    add("--timeout-minutes", type=float, default=15.0, help="wall time of each process")
    add("--envs", type=Path, default=ROOT / ".venv-rivals", help="folder of the rivals' environments")
    add("--scratch", type=Path, help="keep and reuse the arrays here; else they go to a temporary folder")
    add("--out", type=Path, help="file of the figures")


def parse(parser: argparse.ArgumentParser, models: Sequence[str], rivals: Sequence[Rival]) -> argparse.Namespace:
    """The options given, ``rivals`` as records; ends the process if one of them cannot be."""
    options = parser.parse_args()
    options.envs = options.envs.absolute()
    known = {rival.name: rival for rival in rivals}
    if options.rivals is None:
        options.rivals = [name for name, rival in known.items() if _python(rival, options.envs).exists()]
        for name in sorted(known.keys() - set(options.rivals)):
            print(f"{name} is left out: no {_python(known[name], options.envs)}", file=sys.stderr)
    unknown = (set(options.models) - set(models)) | (set(options.rivals) - known.keys())
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    options.rivals = [known[name] for name in options.rivals]
    missing = [python for python in {_python(rival, options.envs) for rival in options.rivals} if not python.exists()]
    if missing:
        parser.error(f"no {missing[0]}; run benchmarks/rivals/setup.sh, or choose --rivals")
    return options


def compare(
    name: str,
    options: argparse.Namespace,
    *,
    data: Callable[[Path], dict[str, Any]],
    title: Callable[[Mapping[str, Any]], str],
    fixed: Mapping[str, Any],
) -> None:
    """Measure, show, write; fails if some rival did other work.

    Args:
        name: Of the benchmark.
        options: Of `parse`.
        data: Makes the arrays in a folder; returns what they are.
        title: Says what they are in a line.
        fixed: Parameters of the benchmark that are no options.
    """
    with ExitStack() as stack:
        folder = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        facts = data(folder)
        found = measure(options, folder.resolve())
    rows = summarise(found)
    show(rows, f"{title(facts)}; {options.threads} threads")
    parameters = {
        **facts,
        **{name: getattr(options, name) for name in ("rounds", "warmup", "epochs", "threads", "memory_gib")},
        **fixed,
        "settings": {rival.name: dict(rival.settings) for rival in options.rivals},
    }
    figures = {"parameters": parameters, "versions": versions(found), "rows": rows, "reports": found}
    print(record.write(name, figures, options.out))
    require_same_losses(rows)


def require_same_losses(rows: Sequence[Mapping[str, Any]]) -> None:
    """End the process with an error if a row of `summarise` tells of other losses than ours."""
    if any(row.get("same_losses") is False for row in rows):
        sys.exit("some rival computed other losses: the comparison is not one of the same work")


def write_data(folder: Path, wanted: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Make the arrays of all rivals below ``folder``, unless they are there.

    Args:
        folder: Where they go.
        wanted: What ``data.json`` in it must say.
        command: Module of ``rivals`` that writes them, and its arguments but for the folder.

    Returns:
        What ``data.json`` says.
    """
    facts = folder / "data.json"
    if not facts.exists():
        module, *arguments = command
        subprocess.run([sys.executable, "-m", f"rivals.{module}", folder.resolve(), *arguments], cwd=HERE, check=True)
    there: dict[str, Any] = json.loads(facts.read_text())
    if {name: there.get(name) for name in wanted} != wanted:
        sys.exit(f"{folder} holds other data ({there}); give an empty --scratch folder")
    return there


def measure(options: argparse.Namespace, folder: Path) -> Reports:
    """Reports of all rounds; a rival that failed is not asked again."""
    limits = Limits(
        threads=options.threads, memory_bytes=int(options.memory_gib * 2**30), seconds=options.timeout_minutes * 60
    )
    found: dict[str, dict[str, list[dict[str, Any]]]] = {model: {} for model in options.models}
    for turn in range(options.rounds):
        for model in options.models:
            takers = [rival for rival in options.rivals if model in rival.models]
            at = turn % len(takers) if takers else 0
            for rival in takers[at:] + takers[:at]:
                reports = found[model].setdefault(rival.name, [])
                if reports and "failed" in reports[-1]:
                    continue
                job = {"model": model, "folder": str(folder)}
                job |= {"warmup": str(options.warmup), "epochs": str(options.epochs), "device": options.device}
                reports.append(run(_python(rival, options.envs), rival, job, limits))
                print(f"round {turn + 1}: {model} {rival.name}: {_one_line(reports[-1])}", file=sys.stderr, flush=True)
    return found


def summarise(found: Reports) -> list[dict[str, Any]]:
    """One row for each model and rival."""
    rows = []
    for model, rivals in found.items():
        ours = rivals.get(_OURS, [])
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
    """Print the rows of `summarise` as a table."""
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


def versions(found: Reports) -> dict[str, Any]:
    """Versions of what each rival is made of."""
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
