"""How near the planner comes to measured cells: times, memory, choices, beside rules that know nothing.

    python benchmarks/planner_score.py --cells benchmarks/results/planner_cells.json --folder DIR

The cells are those of `planner_cells.py`, with the machine profiles that were measured before them; stores are taken
from the folder. Estimates are what `outgrow plan` says on these profiles, nothing else. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
from planner_cases import Case  # noqa: E402
from ratio_scores import score_ratios, share_of  # noqa: E402
from tables import show  # noqa: E402
from workers import versions  # noqa: E402

from outgrow.app.cli.options import parse_assignments  # noqa: E402
from outgrow.app.plan.question import PlanRequest, answer_request  # noqa: E402
from outgrow.app.runs.trials import MOST_RIVALS  # noqa: E402
from outgrow.app.strategy_registry import changed_options, resolve_strategy  # noqa: E402
from outgrow.planning.estimators.registry import estimate_strategy  # noqa: E402
from outgrow.planning.hardware.corrections import Observation, WorkKind, fit_corrections  # noqa: E402
from outgrow.planning.planner import Candidate, Plan, cost_model_for  # noqa: E402

_NEAR = 1.1
"""A choice is right if it takes no more times the fastest way's seconds."""
_SIMPLE = ("full", "sampled", "offload")
"""The rule that knows nothing: whole graphs in memory, batches by `sampled`, and `offload` where memory is limited."""
_TAUGHT_BY = 10
"""Runs that correct an estimate."""
_UNCOMPARED = ("orchestrate", "offload:")
"""Ways that `auto` never takes: what reuses old rows, and chunks where there is memory for all."""


def estimate_cells(figures: Mapping[str, Any], folder: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each measured cell: what it took, and what the planner says."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, profile in figures["profiles"].items():
            (Path(scratch) / f"{name}.json").write_text(json.dumps(profile))
        for case in dict.fromkeys(Case(*cell["case"]) for cell in figures["cells"]):
            if only and not any(each in case.name for each in only):
                continue
            cells = [cell for cell in figures["cells"] if Case(*cell["case"]) == case and cell["seconds"]]
            key = f"{case.workers}x{case.rate}" if case.rate else str(case.workers)
            began = time.perf_counter()
            plan = _plan(case, Path(scratch) / f"{key}.json", folder)
            known = {"plan_seconds": time.perf_counter() - began, "chosen": _name_choice(plan)}
            known["rivals"] = [_name_way(each) for each in plan.rivals]
            found += [{**_describe(case, cell), **_estimate(plan, cell, case), **known} for cell in cells]
    return found


def _describe(case: Case, cell: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **case._asdict(),
        "way": cell["way"],
        "held_out": cell["held_out"],
        "seconds": cell["seconds"],
        "peak_bytes": max(each["peak_bytes"] for each in cell["rounds"] if "peak_bytes" in each),
    }


def _name_choice(plan: Plan) -> str | None:
    chosen = plan.chosen_candidate
    return None if chosen is None else _name_way(chosen)


def _name_way(candidate: Candidate) -> str:
    """Return the way of a candidate, as cells are named: the strategy and its options that are not the usual ones."""
    assert candidate.estimate is not None
    strategy = candidate.estimate.strategy
    left_out = ("memory", "prefetch", "chunks")
    changed = {name: value for name, value in changed_options(strategy).items() if name not in left_out}
    return ":".join([candidate.name, *(f"{name}={str(value).lower()}" for name, value in changed.items())])


def _plan(case: Case, profile: Path, folder: Path) -> Plan:
    words = case.options.split()
    given = zip(words[::2], words[1::2], strict=True)
    options = parse_assignments(f"{name.lstrip('-')}={value}" for name, value in given)
    request = PlanRequest(
        graph=str(folder / case.graph),
        model=case.model,
        # As the cells were measured: evaluations do not count.
        options={**options, "eval_every": 1 << 30},
        workers=case.workers,
        memory=case.memory or None,
        hardware=str(profile),
    )
    return answer_request(request)[0]


def _estimate(plan: Plan, cell: Mapping[str, Any], case: Case) -> dict[str, Any]:
    name, *settings = cell["way"].split(":")
    options = parse_assignments(settings)
    if name == "full":
        # Cells that know of no such option were measured before features were summed once.
        used = next((each["options"] for each in cell["rounds"] if "options" in each), {})
        options["first_aggregate"] = used.get("first_aggregate", "each-step")
    if case.memory:
        options["memory"] = case.memory
    strategy, _ = resolve_strategy(name, options, batches=case.in_batches)
    [layout] = plan.query.layouts
    found = estimate_strategy(strategy, plan.query.work, cost_model_for(plan.query, layout))
    return {
        "planned_seconds": found.epoch_seconds,
        "planned_bytes": found.peak_bytes,
        "kinds": {kind.value: seconds for kind, seconds in found.seconds_by_kind().items()},
        "parts": {part.name: round(part.seconds - part.hidden, 6) for part in found.parts},
    }


def score_choices(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each case: the fastest way, what the planner chooses, and what the simple rule does."""
    found = []
    for _, group in groupby(rows, key=lambda row: [row[name] for name in Case._fields]):
        ways = {row["way"]: row for row in group if not row["way"].startswith(_UNCOMPARED)}
        if len(ways) < 2:
            continue
        row = next(iter(ways.values()))
        fastest = min(ways, key=lambda way: ways[way]["seconds"])
        simple = next(way for way in _SIMPLE if way in ways)
        # What a run tries beside its choice, it goes on by if it is faster.
        tried = [way for way in (row["chosen"], *row["rivals"][:MOST_RIVALS]) if way in ways]
        best = min(tried, key=lambda way: ways[way]["seconds"], default=row["chosen"])
        found.append(
            {
                **{name: row[name] for name in (*Case._fields, "held_out", "chosen")},
                "fastest": fastest,
                "seconds": ways[fastest]["seconds"],
                **_times("chosen", row["chosen"], ways, fastest),
                **_times("with_trials", best, ways, fastest),
                **_times("rule", simple, ways, fastest),
            }
        )
    return found


def _times(name: str, way: str, ways: Mapping[str, Mapping[str, Any]], fastest: str) -> dict[str, Any]:
    """Return how many times the fastest seconds a way takes; None if it was not measured."""
    return {f"{name}_times": ways[way]["seconds"] / ways[fastest]["seconds"] if way in ways else None}


def summarise(rows: Sequence[Mapping[str, Any]], choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of times, memory and choices, of cells that estimates were tuned on and of those held out."""
    parts: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "all": lambda row: True,
        "tuned": lambda row: not row["held_out"],
        "held_out": lambda row: bool(row["held_out"]),
    }
    return {
        name: {
            "times": _nearness([row["planned_seconds"] / row["seconds"] for row in rows if chosen(row)]),
            "memory": _nearness([row["planned_bytes"] / row["peak_bytes"] for row in rows if chosen(row)], 1.15),
            "choices": _score_choices([row for row in choices if chosen(row)]),
        }
        for name, chosen in parts.items()
    } | {"by_way": _by_way(rows), "after_ten_runs": {str(off): _score_learned(rows, off) for off in (1.0, 2.0, 0.5)}}


def _by_way(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ways = sorted({row["way"] for row in rows})
    return {
        way: _nearness([row["planned_seconds"] / row["seconds"] for row in rows if row["way"] == way]) for way in ways
    }


def _score_learned(rows: Sequence[Mapping[str, Any]], off: float) -> dict[str, Any]:
    """Return how near estimates are that ten runs of other cases in the same place correct.

    Args:
        rows: The cells.
        off: How many times too slow the profile is.
    """
    ratios, within = [], []
    for row in rows:
        name = Case(*(row[field] for field in Case._fields)).name
        others = [each for each in rows if _place(each) == _place(row) and each["graph"] != row["graph"]]
        # Which ten follows from the names alone.
        others.sort(key=lambda each: zlib.crc32(f"{name}{each['options']}{each['model']}{each['way']}".encode()))
        found = fit_corrections([_observe(each, off) for each in others[:_TAUGHT_BY]])
        seconds = sum(found.factors[kind] * took for kind, took in _observe(row, off).seconds.items())
        ratios.append(seconds / row["seconds"])
        within.append(1 / found.interval_factor <= ratios[-1] <= found.interval_factor)
    return {**_nearness(ratios), "within_interval": share_of(within)}


def _place(row: Mapping[str, Any]) -> tuple[int, str]:
    return row["workers"], row["rate"]


def _observe(row: Mapping[str, Any], off: float) -> Observation:
    kinds = {WorkKind(kind): off * seconds for kind, seconds in row["kinds"].items()}
    return Observation(kinds, row["seconds"], row["planned_bytes"], row["peak_bytes"])


def _score_choices(choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shares = {
        name: share_of(row[f"{name}_times"] is not None and row[f"{name}_times"] <= _NEAR for row in choices)
        for name in ("chosen", "with_trials", "rule")
    }
    return {"cases": len(choices), "not_measured": sum(row["chosen_times"] is None for row in choices), **shares}


def _nearness(ratios: Sequence[float], near: float = 1.3) -> dict[str, Any]:
    return score_ratios(ratios, near) | {"median_ratio": statistics.median(ratios) if ratios else None}


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
    choices = score_choices(rows)
    columns = ("graph", "model", "options", "workers", "rate", "way", "seconds", "planned_seconds")
    show("planned beside measured", [{name: row[name] for name in columns} for row in rows])
    show("choices", choices, hidden=("seconds", "memory"))
    scores = summarise(rows, choices)
    print(json.dumps(scores, indent=1))
    figures = {"versions": versions(), "score": scores, "choices": choices, "rows": rows}
    print(record.write("planner_score", figures, options.out))


if __name__ == "__main__":
    main()
