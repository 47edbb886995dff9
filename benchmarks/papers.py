"""The tables of the papers, predicted: estimates of the planner beside what was published.

    python benchmarks/papers.py

Each system is taken for the strategy that it is nearest to (benchmarks/papers/README.md), on the data sheet of its
machine. Times and memory are those of the planner and of nothing else; the test `tests/benchmarks/test_papers.py` holds
them to it. Beside them stand times with one constant for each system, how many times the sheet's seconds it takes,
fitted on one table, as named in `FITTED`: of these only cells of other tables are scored.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
from papers_cells import CASE, Entry, entries  # noqa: E402
from papers_score import score  # noqa: E402
from tables import show  # noqa: E402
from workers import versions  # noqa: E402

from outgrow.app.plan.question import PlanSite, query_for_graph_facts  # noqa: E402
from outgrow.engine.batches import BatchConfig  # noqa: E402
from outgrow.planning.estimators.registry import estimate_strategy  # noqa: E402
from outgrow.planning.graph_stats.known_graphs import load_graph_facts  # noqa: E402
from outgrow.planning.planner import PlannerQuery, cost_model_for, fits_in  # noqa: E402
from outgrow.planning.traffic import WorkerLayout  # noqa: E402
from outgrow.strategies.base import Strategy  # noqa: E402
from outgrow.strategies.full import Full  # noqa: E402
from outgrow.strategies.offload.strategy import Offload  # noqa: E402
from outgrow.strategies.orchestrate.strategy import Orchestrate  # noqa: E402
from outgrow.strategies.sampled import Sampled  # noqa: E402
from outgrow.strategies.tensor.strategy import TensorParallel  # noqa: E402
from outgrow.training.config import TrainConfig  # noqa: E402

STRATEGIES: Mapping[str, type[Strategy]] = {
    "full": Full,
    "offload": Offload,
    "tensor": TensorParallel,
    "sampled": Sampled,
    "orchestrate": Orchestrate,
}
FITTED = {
    **dict.fromkeys(
        [("DistGNN", "full"), ("DGL", "full"), ("HongTu-IM", "full"), ("HongTu", "offload")], ("hongtu", "5")
    ),
    **dict.fromkeys([("Sancus", "full"), ("DistDGL", "sampled")], ("hongtu", "6")),
    **dict.fromkeys([("NeutronStar", "full"), ("NeutronTP", "tensor")], ("neutrontp", "2")),
    **dict.fromkeys(
        [*((name, "sampled") for name in ("DGL", "DGL-UVA", "PaGraph", "GNNLab")), ("NeutronOrch", "orchestrate")],
        ("neutronorch", "5"),
    ),
}
"""The table on which the constant of each system is fitted: the first that has it."""
_BATCH_SIZE, _FANOUT = 1024, 10


class Prediction(NamedTuple):
    """The planner's estimate of a cell.

    Attributes:
        seconds: Of an epoch.
        peak_bytes: Of a device.
        memory: Of a device.
        fits: Whether the planner would choose it.
        parts: Seconds by what is done.
    """

    seconds: float
    peak_bytes: int
    memory: int
    fits: bool
    parts: Mapping[str, float]


def predict(entry: Entry) -> Prediction | None:
    """Return what the planner says of a cell; None where it knows nothing of the system or the model."""
    if entry.strategy is None or entry.values["model"] not in ("gcn", "gat"):
        return None
    query = make_query(entry)
    [layout] = query.layouts
    costs = cost_model_for(query, layout)
    found = estimate_strategy(choose_strategy(entry), query.work, costs)
    parts = {part.name: part.seconds - part.hidden for part in found.parts}
    return Prediction(found.epoch_seconds, found.peak_bytes, costs.memory, fits_in(found, costs), parts)


def choose_strategy(entry: Entry) -> Strategy:
    """Return the strategy that stands for the system of a cell, as the paper has set it."""
    values = entry.values
    options: dict[str, Any] = {}
    if entry.strategy == "offload":
        # reddit and products are cut into four parts: one for each device, or all for one
        options["chunks"] = values.get("chunks_per_worker", 4 // entry.workers)
    if entry.strategy == "tensor":
        options["attention"] = "coefficients"  # as published
    assert entry.strategy is not None
    return STRATEGIES[entry.strategy](**options)


def make_query(entry: Entry) -> PlannerQuery:
    """Return the question to the planner that a cell answers."""
    values = entry.values
    facts = load_graph_facts(values["graph"])
    facts |= facts.get("sizes_by_paper", {}).get(entry.paper, {})
    name, options = values["model"], {"layers": values["layers"], "hidden": values["hidden"], "dropout": 0.5}
    options["input_dropout"] = 0.5  # no other system keeps what the first layer sums
    if values["model"] == "gat":
        options["heads"] = 1  # none of the papers says how many
    if values.get("decoupled"):
        name = "decoupled-gat" if values["model"] == "gat" else "decoupled"
        heads = {"heads": 1} if values["model"] == "gat" else {}
        options = {"hidden": values["hidden"], "rounds": values["layers"], **heads}
    batches = BatchConfig()
    if entry.strategy in ("sampled", "orchestrate"):
        fanout = values.get("fanout") or [_FANOUT] * values["layers"]
        batches = BatchConfig(size=values.get("batch_size") or _BATCH_SIZE, fanout=tuple(fanout))
    config = TrainConfig().with_options(batch_size=batches.size, fanout=batches.fanout)
    site = PlanSite(entry.machine, [WorkerLayout(workers=entry.workers, hosts=entry.hosts)])
    return query_for_graph_facts(facts, name, options, config, site)


def make_rows() -> list[dict[str, Any]]:
    """Return what was published beside what is predicted, without constants and with them."""
    found, seen = [], set()
    for entry in entries():
        made, values = predict(entry), entry.values
        what = (entry.paper, values["system"], *(str(values.get(name)) for name in CASE), values.get("seconds"))
        repeated, _ = what in seen and entry.table != FITTED.get(_key(entry), ("", ""))[1], seen.add(what)
        found.append(
            {
                "paper": entry.paper,
                "table": entry.table,
                "system": values["system"],
                "strategy": entry.strategy,
                "machine": f"{entry.machine.name}, {entry.workers}",
                **{name: values.get(name) for name in CASE},
                "published": values.get("seconds"),
                "repeated": repeated,
                **({} if made is None else _facts(made)),
            }
        )
    constants = fit_constants(found)
    for row in found:
        constant = constants.get((row["system"], row["strategy"]))
        if "predicted" in row and constant is not None:
            row["with_constant"] = row["predicted"] * constant["times"]
            row["fitted"] = FITTED[row["system"], row["strategy"]] == (row["paper"], row["table"])
    return found


def _key(entry: Entry) -> tuple[str, str]:
    return entry.values["system"], entry.strategy or ""


def _facts(made: Prediction) -> dict[str, Any]:
    parts = {name: float(seconds) for name, seconds in made.parts.items()}
    sizes = {"peak_gb": made.peak_bytes / 1e9, "memory_gb": made.memory / 1e9, "fits": made.fits}
    return {"predicted": float(made.seconds), **sizes, "parts": parts}


def fit_constants(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return how many times the predicted seconds each system takes: the geometric mean over one table."""
    found = {}
    for key, (paper, table) in FITTED.items():
        ratios = [
            row["published"] / row["predicted"]
            for row in rows
            if (row["system"], row["strategy"], row["paper"], row["table"]) == (*key, paper, table)
            and "predicted" in row
            and row["published"]
        ]
        if ratios:
            found[key] = {"times": statistics.geometric_mean(ratios), "cells": len(ratios)}
    return found


def main() -> None:
    """Predict all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = make_rows()
    constants = {f"{system} ({strategy})": each for (system, strategy), each in fit_constants(rows).items()}
    figures = {"score": score(rows), "constants": constants, "rows": rows}
    columns = ("paper", "table", "system", *CASE, "published", "predicted", "with_constant", "fits", "peak_gb")
    show(
        "published beside predicted", [{name: row.get(name) for name in columns} for row in rows if "predicted" in row]
    )
    print(json.dumps({name: figures[name] for name in ("constants", "score")}, indent=1))
    print(record.write("papers", {"versions": versions(), **figures}, options.out))


if __name__ == "__main__":
    main()
