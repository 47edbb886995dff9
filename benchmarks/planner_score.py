"""How near the planner comes to measured cells: times, memory, choices, beside rules that know nothing.

    python benchmarks/planner_score.py --cells benchmarks/results/planner_cells.json --folder DIR

The cells are those of `planner_cells.py`, with the machine profiles that were measured before them; stores are taken
from the folder. Estimates are what `outgrow plan` says on these profiles, nothing else. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
from planner_cases import Case  # noqa: E402
from tables import show  # noqa: E402
from workers import versions  # noqa: E402

from outgrow.app.cli.options import parse_assignments  # noqa: E402
from outgrow.app.plan.question import PlanRequest, answer_request  # noqa: E402
from outgrow.app.strategy_registry import resolve_strategy  # noqa: E402
from outgrow.planning.estimators.registry import estimate_strategy  # noqa: E402
from outgrow.planning.planner import Plan, cost_model_for  # noqa: E402

NEAR = 1.1
_MIB = 1 << 20


def estimate_cells(figures: Mapping[str, Any], folder: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each measured cell: what it took, and what the planner says."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, profile in figures["profiles"].items():
            (Path(scratch) / f"{name}.json").write_text(json.dumps(profile))
        cases = dict.fromkeys(Case(*cell["case"]) for cell in figures["cells"])
        for case in cases:
            if only and not any(each in case.name for each in only):
                continue
            cells = [cell for cell in figures["cells"] if Case(*cell["case"]) == case and cell["seconds"]]
            key = f"{case.workers}x{case.rate}" if case.rate else str(case.workers)
            began = time.perf_counter()
            plan = _plan(case, Path(scratch) / f"{key}.json", folder)
            took = time.perf_counter() - began
            chosen = plan.chosen_candidate
            for cell in cells:
                found.append(
                    {
                        **case._asdict(),
                        "way": cell["way"],
                        "held_out": cell["held_out"],
                        "seconds": cell["seconds"],
                        "peak_bytes": max(each["peak_bytes"] for each in cell["rounds"] if "peak_bytes" in each),
                        **_estimate(plan, cell["way"], case),
                        "chosen": None if chosen is None else chosen.name,
                        "plan_seconds": took,
                    }
                )
    return found


def _plan(case: Case, profile: Path, folder: Path) -> Plan:
    words = case.options.split()
    given = zip(words[::2], words[1::2], strict=True)
    options = parse_assignments(f"{name.lstrip('-')}={value}" for name, value in given)
    request = PlanRequest(
        graph=str(folder / case.graph),
        model=case.model,
        options=options,
        workers=case.workers,
        memory=case.memory or None,
        hardware=str(profile),
    )
    return answer_request(request)[0]


def _estimate(plan: Plan, way: str, case: Case) -> dict[str, Any]:
    name, *settings = way.split(":")
    options = parse_assignments(settings)
    if case.memory:
        options["memory"] = case.memory
    strategy, _ = resolve_strategy(name, options, batches=case.in_batches)
    [layout] = plan.query.layouts
    found = estimate_strategy(strategy, plan.query.work, cost_model_for(plan.query, layout))
    return {
        "planned_seconds": found.epoch_seconds,
        "planned_bytes": found.peak_bytes,
        "parts": {part.name: round(part.seconds - part.hidden, 6) for part in found.parts},
    }


def score_times(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many estimates are near to what was measured."""
    ratios = [row["planned_seconds"] / row["seconds"] for row in rows]
    return {"cells": len(rows), **_nearness(ratios)}


def _nearness(ratios: Sequence[float]) -> dict[str, Any]:
    errors = [abs(math.log(each)) for each in ratios]
    return {
        "within_2x": _share(error <= math.log(2) for error in errors),
        "within_30_percent": _share(error <= math.log(1.3) for error in errors),
        "median_factor": math.exp(statistics.median(errors)) if errors else None,
        "median_ratio": statistics.median(ratios) if ratios else None,
    }


def _share(found: Iterable[bool]) -> float | None:
    kept = [*found]
    return sum(kept) / len(kept) if kept else None


def main() -> None:
    """Estimate, score, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--cells", type=Path, default=record.HERE / "results" / "planner_cells.json")
    add("--folder", type=Path, required=True, help="folder of the stores")
    add("--only", nargs="*", default=[], help="cases whose names contain one of these words")
    add("--out", type=Path)
    options = parser.parse_args()
    rows = estimate_cells(json.loads(options.cells.read_text()), options.folder, options.only)
    columns = ("graph", "model", "options", "workers", "rate", "way", "held_out", "seconds", "planned_seconds")
    ratios = [{"ratio": row["planned_seconds"] / row["seconds"]} for row in rows]
    show(
        "planned beside measured",
        [{name: row[name] for name in columns} | ratio for row, ratio in zip(rows, ratios, strict=True)],
    )
    print(json.dumps(score_times(rows), indent=1), file=sys.stderr)
    if options.out:
        print(record.write("planner_score", {"versions": versions(), "rows": rows}, options.out))


if __name__ == "__main__":
    main()
