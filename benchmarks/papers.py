"""The tables of the five papers, predicted: estimates of the planner beside what was published.

    python benchmarks/papers.py

Each system is taken for the strategy that it is nearest to (benchmarks/papers/README.md), on the data sheet of its
machine. How much of that it reaches is one number for each system, fitted on one table, as named in `FITTED`, and
used for all others. Only those are scored.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
from papers_cells import CASE, Entry, entries  # noqa: E402
from papers_score import score  # noqa: E402
from tables import show  # noqa: E402
from workers import versions  # noqa: E402

from outgrow.app.model_registry import build_model  # noqa: E402
from outgrow.app.plan.question import placeholder_graph  # noqa: E402
from outgrow.engine.batches import BatchConfig  # noqa: E402
from outgrow.planning.cost_model import CostModel  # noqa: E402
from outgrow.planning.estimate import Estimate  # noqa: E402
from outgrow.planning.estimators.registry import estimate_strategy  # noqa: E402
from outgrow.planning.graph_stats.analytic import AnalyticGraph  # noqa: E402
from outgrow.planning.graph_stats.known_graphs import known_graph, load_graph_facts  # noqa: E402
from outgrow.planning.peak_memory import minibatch_bytes, num_prefetched_batches  # noqa: E402
from outgrow.planning.sizes import model_sizes  # noqa: E402
from outgrow.planning.traffic import WorkerLayout  # noqa: E402
from outgrow.planning.workload import NeighborhoodStats, Workload  # noqa: E402
from outgrow.strategies.base import Strategy  # noqa: E402
from outgrow.strategies.full import Full  # noqa: E402
from outgrow.strategies.offload.strategy import Offload  # noqa: E402
from outgrow.strategies.orchestrate.strategy import Orchestrate  # noqa: E402
from outgrow.strategies.sampled import Sampled  # noqa: E402
from outgrow.strategies.tensor.strategy import TensorParallel  # noqa: E402

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
"""The table on which the constants of each system are fitted: the first that has it."""


class Way(NamedTuple):
    """How a system makes mini-batches ready, where it is not as Outgrow does.

    Attributes:
        draws: Whether the CPU draws neighbours.
        gathers: Whether the CPU gathers features; else the device reads them from the host's memory.
        caches: Whether free memory of the device holds features of the nodes that are asked for most.
        overlaps: Whether that goes on while batches are computed.
    """

    draws: bool = True
    gathers: bool = True
    caches: bool = False
    overlaps: bool = False


WAYS = {
    "DGL": Way(),
    "DistDGL": Way(),
    "DGL-UVA": Way(draws=False, gathers=False),
    "PaGraph": Way(caches=True),
    "GNNLab": Way(draws=False, caches=True, overlaps=True),
}


class Prediction(NamedTuple):
    """Of a cell.

    Attributes:
        seconds: Of an epoch, if the machine were used as its data sheet has it.
        peak_bytes: Of a device.
        memory: Of a device.
        parts: Seconds by what is done.
    """

    seconds: float
    peak_bytes: float
    memory: float
    parts: Mapping[str, float]


def predicted(entry: Entry) -> Prediction | None:
    """What the planner says of a cell; None where it knows nothing of the system or the model."""
    values = entry.values
    if entry.strategy is None or values["model"] not in ("gcn", "gat"):
        return None
    work = _workload(entry)
    pace = CostModel.from_profile(entry.machine, WorkerLayout(workers=entry.workers, hosts=entry.hosts), 4)
    options: dict[str, Any] = {}
    if entry.strategy == "offload":
        # reddit and products are cut into four parts: one for each device, or all for one
        options["chunks"] = values.get("chunks_per_worker", 4 // entry.workers)
    if entry.strategy == "tensor":
        options["attention"] = "coefficients"  # as published
    strategy = STRATEGIES[entry.strategy](**options)
    made = estimate_strategy(strategy, work, pace)
    parts = {part.name: part.seconds - part.hidden for part in made.parts}
    peak = float(made.peak_bytes)
    if isinstance(strategy, Sampled | Orchestrate):
        assert isinstance(work.sampling, AnalyticGraph)
        grown = _grown(strategy, work, entry.workers)
        peak = minibatch_bytes(work, grown, num_prefetched=num_prefetched_batches(pace))
        if isinstance(strategy, Sampled):
            parts = _made_ready(made, WAYS[values["system"]], work, pace.memory - peak)
    return Prediction(sum(parts.values()), peak, pace.memory, parts)


def _workload(entry: Entry) -> Workload:
    values = entry.values
    facts = load_graph_facts(values["graph"])
    facts |= facts.get("sizes_by_paper", {}).get(entry.paper, {})
    graph, stand_in = known_graph(facts), placeholder_graph(facts)
    name, options = values["model"], {"layers": values["layers"], "hidden": values["hidden"], "dropout": 0.5}
    options["input_dropout"] = 0.5  # no other system keeps what the first layer sums
    if values["model"] == "gat":
        options["heads"] = 1  # none of the papers says how many
    if values.get("decoupled"):
        name = "decoupled-gat" if values["model"] == "gat" else "decoupled"
        heads = {"heads": 1} if values["model"] == "gat" else {}
        options = {"hidden": values["hidden"], "rounds": values["layers"], **heads}
    model = build_model(name, stand_in, options)
    batches = BatchConfig()
    if entry.strategy in ("sampled", "orchestrate"):
        fanout = values.get("fanout") or [10] * values["layers"]
        batches = BatchConfig(size=values.get("batch_size") or 1024, fanout=tuple(fanout))
    return Workload(
        graph=graph.sizes, model=model_sizes(model, stand_in), partitioning=graph, sampling=graph, batches=batches
    )


def _grown(strategy: Sampled | Orchestrate, work: Workload, workers: int) -> NeighborhoodStats:
    drawing = work.sampling_spec(strategy.partition)
    if isinstance(strategy, Sampled):
        return work.sampling.batch_stats(drawing, workers).neighborhood
    assert strategy.hot_ratio is not None
    return work.sampling.orchestrate_stats(drawing, workers, strategy.hot_ratio, strategy.super_batch).neighborhood


def _made_ready(made: Estimate, way: Way, work: Workload, room: float) -> dict[str, float]:
    """Parts of an epoch of a system that samples; ``room`` is free memory of the device."""
    left = {
        "neighbours drawn": float(way.draws),
        "features gathered": float(way.gathers),
        "features to the device": 1.0,
    }
    if way.caches:
        missed = _missed(work, max(0.0, room))
        left = {name: share if name == "neighbours drawn" else share * missed for name, share in left.items()}
    parts = {part.name: part.seconds * left.get(part.name, 1.0) for part in made.parts}
    if way.overlaps:
        beside = [name for name in left if name in parts]
        busy = sum(seconds for name, seconds in parts.items() if name not in beside)
        waited = max(0.0, max(parts[name] for name in beside) - busy)
        parts = {name: seconds for name, seconds in parts.items() if name not in beside} | {"waits": waited}
    return parts


def _missed(work: Workload, room: float) -> float:
    """Share of the rows that batches ask for that are not among the hottest for which there is room."""
    graph = work.sampling
    assert isinstance(graph, AnalyticGraph)
    size = min(work.batches.size or work.graph.train, work.graph.train)
    asked = graph.degrees.neighborhood_levels(size, work.batches.fanout_per_hop(len(work.model.layers)), None)[-1].share
    kept = graph.degrees.hottest_share(room / work.graph.row_bytes, asked)
    return graph.degrees.count_nodes(asked * (1 - kept)) / graph.degrees.count_nodes(asked)


def rows_of() -> list[dict[str, Any]]:
    """Published beside predicted; times without constants, and with them."""
    found, seen = [], set()
    for entry in entries():
        made, values = predicted(entry), entry.values
        what = (entry.paper, values["system"], *(str(values.get(name)) for name in CASE), values.get("seconds"))
        repeated, _ = what in seen and entry.table != FITTED.get(_key(entry), ("", ""))[1], seen.add(what)
        found.append(
            {
                "paper": entry.paper,
                "table": entry.table,
                "system": values["system"],
                "strategy": entry.strategy,
                **{name: values.get(name) for name in CASE},
                "published": values.get("seconds"),
                "repeated": repeated,
                **({} if made is None else _facts(made)),
            }
        )
    constants = _constants(found)
    for row in found:
        constant = constants.get((row["system"], row["strategy"]))
        if "sheet_seconds" in row and constant is not None:
            row["predicted"] = row["sheet_seconds"] * constant["times"]
            row["fits"] = row["peak_gb"] * constant["holds"] <= row["memory_gb"]
            row["fitted"] = FITTED[row["system"], row["strategy"]] == (row["paper"], row["table"])
    return found


def _key(entry: Entry) -> tuple[str, str]:
    return entry.values["system"], entry.strategy or ""


def _facts(made: Prediction) -> dict[str, Any]:
    parts = {name: float(seconds) for name, seconds in made.parts.items()}
    sizes = {"peak_gb": float(made.peak_bytes) / 1e9, "memory_gb": made.memory / 1e9}
    return {"sheet_seconds": float(made.seconds), **sizes, "parts": parts}


def _constants(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """How many times the data sheet's seconds each system takes: the geometric mean over one table.

    And how many times as much it holds as Outgrow would, as far as that table tells.
    """
    found = {}
    for key, (paper, table) in FITTED.items():
        own = [
            row
            for row in rows
            if (row["system"], row["strategy"], row["paper"], row["table"]) == (*key, paper, table)
            and "sheet_seconds" in row
        ]
        ratios = [row["published"] / row["sheet_seconds"] for row in own if row["published"]]
        if ratios:
            found[key] = {"times": statistics.geometric_mean(ratios), "holds": _holds(own), "cells": len(own)}
    return found


def _holds(rows: Sequence[Mapping[str, Any]]) -> float:
    """The factor by which most cells are told right that ran or did not; of several, the nearest to 1."""
    factors = [2 ** (power / 8) for power in range(-24, 25)]

    def wrong(factor: float) -> int:
        return sum((row["peak_gb"] * factor <= row["memory_gb"]) != bool(row["published"]) for row in rows)

    least = min(map(wrong, factors))
    return min((factor for factor in factors if wrong(factor) == least), key=lambda factor: abs(math.log(factor)))


def main() -> None:
    """Predict all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = rows_of()
    constants = {f"{system} ({strategy})": each for (system, strategy), each in _constants(rows).items()}
    figures = {"constants": constants, "score": score(rows), "rows": rows}
    columns = ("paper", "table", "system", *CASE, "published", "predicted", "fits", "peak_gb", "fitted")
    show(
        "published beside predicted", [{name: row.get(name) for name in columns} for row in rows if "predicted" in row]
    )
    print(json.dumps({name: figures[name] for name in ("constants", "score")}, indent=1))
    print(record.write("papers", {"versions": versions(), **figures}, options.out))


if __name__ == "__main__":
    main()
