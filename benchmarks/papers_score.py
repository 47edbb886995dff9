"""How well published figures are predicted, beside rules that know little: times, memory, and who wins."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from papers_cells import CASE, CPUS
from ratio_scores import score_ratios, share_of

from outgrow.planning.graph_stats.known_graphs import load_graph_facts
from outgrow.planning.hardware.corrections import NO_CORRECTIONS
from outgrow.planning.planner import PlannerQuery

_TIE = 1.05
"""Times that are so near are the same in two printed digits."""
_FLOAT = 4
SIMPLE_FIRST = ("full", "offload", "tensor", "sampled", "orchestrate")
"""Strategies in the order of a plan."""
TOLERANCE = PlannerQuery.tolerance_of(NO_CORRECTIONS)
"""Relative difference for which a plan prefers a strategy to a simpler one."""
OWN_SYSTEM = {"hongtu": "HongTu", "neutrontp": "NeutronTP", "neutronorch": "NeutronOrch"}
Row = Mapping[str, Any]
Rule = Callable[[Sequence[Row]], Row]


def score(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how well cells are predicted without constants, then with them; null rules stand beside each score."""
    known = [row for row in rows if "predicted" in row and not row["repeated"]]
    return {
        "times_without_constants": _score_times(known, "predicted"),
        "times_with_constants": _score_times([row for row in known if not row["fitted"]], "with_constant"),
        "memory": _score_memory(known),
        "winners_without_constants": _score_winners(known, "predicted"),
        "winners_with_constants": _score_winners(known, "with_constant"),
    }


def _score_times(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """Return how near times are; the rules beside them have one rate for all systems, the best one for these cells."""
    ran = [row for row in rows if row["published"]]
    return {
        "planner": score_ratios([row[name] / row["published"] for row in ran]),
        "by_system": {
            system: statistics.median(row[name] / row["published"] for row in ran if row["system"] == system)
            for system in sorted({row["system"] for row in ran})
        },
        "rule: the same time for all": score_ratios(_at_best_rate([1 / row["published"] for row in ran])),
        "rule: edges, layers and width": score_ratios(_at_best_rate([_work(row) / row["published"] for row in ran])),
    }


def _work(row: Row) -> float:
    workers = int(row["machine"].rpartition(" ")[2])
    return float(load_graph_facts(row["graph"])["edges"] * row["layers"] * row["hidden"] / workers)


def _at_best_rate(ratios: Sequence[float]) -> list[float]:
    return [ratio / statistics.median(ratios) for ratio in ratios]


def _score_memory(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how many cells are told right that ran out of memory, and that ran."""

    def told(fits: Callable[[Row], bool]) -> dict[str, Any]:
        return {
            "out_of_memory": share_of(not fits(row) for row in rows if row["published"] is None),
            "ran": share_of(fits(row) for row in rows if row["published"]),
            "all": share_of(fits(row) == bool(row["published"]) for row in rows),
        }

    return {
        "out_of_memory": sum(row["published"] is None for row in rows),
        "ran": sum(row["published"] is not None for row in rows),
        "planner": told(lambda row: bool(row["fits"])),
        "rule: everything fits": told(lambda row: True),
        "rule: rows of all layers": told(lambda row: _rows_of_all_layers(row) <= row["memory_gb"] * 1e9),
    }


def _rows_of_all_layers(row: Row) -> float:
    """Return the bytes of input and hidden rows, shared out among the workers."""
    facts, workers = load_graph_facts(row["graph"]), int(row["machine"].rpartition(" ")[2])
    return float(_FLOAT * facts["nodes"] * (facts["features"] + row["hidden"] * row["layers"]) / workers)


def _score_winners(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """Return how many comparisons between strategies, or places, are told right: on the planner's word, and by rules.

    Of several systems that stand for one strategy in one place the fastest counts.
    """
    compared = [*_comparisons(rows, fitted=name == "predicted")]
    rules: dict[str, Rule] = {
        "planner": lambda case: _choose_by_plan(case, name),
        "rule: the paper's own system": _own_system,
        "rule: full, then offload, then sampled": _make_rule("full", "offload", "sampled"),
        "rule: full if rows of all layers fit, then offload, then sampled": _make_rule(
            "full", "offload", "sampled", only_fitting=True
        ),
    }
    orders = [_make_rule(*order, only_fitting=fit) for order in permutations(SIMPLE_FIRST) for fit in (False, True)]
    return {
        "comparisons": len(compared),
        **{rule: share_of(_wins(choose(case), case) for case in compared) for rule, choose in rules.items()},
        "rule: the best of all orders of strategies, in hindsight": max(
            (share_of(_wins(choose(case), case) for case in compared) or 0.0 for choose in orders), default=None
        ),
        "by_table": {
            f"{paper}, table {table}": {
                "comparisons": len(some),
                "planner": share_of(_wins(rules["planner"](case), case) for case in some),
                "the paper's own system": share_of(_wins(_own_system(case), case) for case in some),
            }
            for paper, table in dict.fromkeys((case[0]["paper"], case[0]["table"]) for case in compared)
            for some in [[case for case in compared if (case[0]["paper"], case[0]["table"]) == (paper, table)]]
        },
    }


def _comparisons(rows: Sequence[Row], *, fitted: bool) -> Iterator[list[Row]]:
    """Yield the cells of each comparison; with constants none of them may be fitted."""
    cases = defaultdict(list)
    for row in rows:
        cases[(row["paper"], row["table"], *(str(row[name]) for name in CASE))].append(row)
    for case in cases.values():
        ways = {(row["strategy"], row["machine"]) for row in case}
        if len(ways) < 2 or not any(row["published"] for row in case):
            continue
        if fitted or not any(row["fitted"] for row in case):
            yield case


def _choose_by_plan(case: Sequence[Row], name: str) -> Row:
    """Return what a plan chooses of what it believes to fit: the simplest that is not slower by the tolerance."""
    believed = [row for row in case if row["fits"]] or case
    most = (1 + TOLERANCE) * min(float(row[name]) for row in believed)
    near = [row for row in believed if row[name] <= most]
    return min(near, key=lambda row: (SIMPLE_FIRST.index(row["strategy"]), row[name]))


def _own_system(case: Sequence[Row]) -> Row:
    return next((row for row in case if row["system"] == OWN_SYSTEM.get(row["paper"])), case[0])


def _make_rule(*order: str, only_fitting: bool = False) -> Rule:
    """Return a rule that takes strategies in an order, on devices before CPUs."""

    def choose(case: Sequence[Row]) -> Row:
        fitting = [row for row in case if _rows_of_all_layers(row) <= row["memory_gb"] * 1e9]
        asked = (only_fitting and fitting) or case
        rank = {strategy: place for place, strategy in enumerate(order)}
        return min(asked, key=lambda row: (row["machine"].startswith(CPUS), rank.get(row["strategy"], len(order))))

    return choose


def _wins(chosen: Row, case: Sequence[Row]) -> bool:
    """Whether the fastest system of a strategy in a place is the fastest of all."""
    way = (chosen["strategy"], chosen["machine"])
    of_way = [row["published"] for row in case if (row["strategy"], row["machine"]) == way and row["published"]]
    best = min(row["published"] for row in case if row["published"])
    return bool(of_way) and min(of_way) <= _TIE * best
