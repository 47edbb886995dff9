"""Graphs that are not here, by name: their published sizes, as data files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from outgrow.core.validation import validate_choice
from outgrow.planning.graph_stats.analytic import AnalyticGraph, DegreeDistribution
from outgrow.planning.sizes import DatasetSizes

_GRAPHS = resources.files("outgrow.planning") / "graphs"
_EXPONENT, _LOCALITY = 2.5, 0.5
_FLOAT = 4


def list_known_graphs() -> list[str]:
    """Names of the graphs whose sizes come with Outgrow."""
    return sorted(Path(each.name).stem for each in _GRAPHS.iterdir() if each.name.endswith(".json"))


def load_graph_facts(name: str) -> dict[str, Any]:
    """What is known of a graph: see ``source`` in it.

    Raises:
        InputError: There is no such name.
    """
    validate_choice("workload", name, dict.fromkeys(list_known_graphs()))
    facts: dict[str, Any] = json.loads((_GRAPHS / f"{name}.json").read_text("utf-8"))
    return facts


def known_graph(facts: Mapping[str, Any]) -> AnalyticGraph:
    """A graph by what is known of it: degrees fall with their rank, edges stay in parts as replication tells."""
    edges, features = facts["edges"], facts["features"]
    sizes = DatasetSizes(
        nodes=facts["nodes"],
        edges=edges,
        features=features,
        feature_bytes=_FLOAT,
        row_entries=features,
        row_bytes=_FLOAT * features,
        sparse=False,
        train=facts["train"],
        classes=facts.get("classes", 2),
    )
    exponent = facts.get("exponent", _EXPONENT)
    degrees = DegreeDistribution.from_power_law(sizes.nodes, edges, exponent, facts.get("largest_degree"))
    known = {int(parts): float(factor) for parts, factor in facts.get("replication", {}).items()}

    def edge_locality(method: str, parts: int) -> float:
        if parts == 1:
            return 1.0
        if not method.startswith("metis"):
            return 1 / parts
        return (
            _solve_locality(degrees, parts, _interpolate_replication(known, parts))
            if known
            else max(1 / parts, _LOCALITY)
        )

    return AnalyticGraph(sizes, degrees, edge_locality)


def _interpolate_replication(known: Mapping[int, float], parts: int) -> float:
    """The replication factor at a number of parts: on the line between the nearest two, beyond them on the last."""
    counts = sorted({1: 1.0, **known}.items())
    low = max((each for each in counts[:-1] if each[0] <= parts), default=counts[0])
    high = counts[counts.index(low) + 1]
    return low[1] + (high[1] - low[1]) * math.log(parts / low[0]) / math.log(high[0] / low[0])


def _solve_locality(degrees: DegreeDistribution, parts: int, replication: float) -> float:
    """The share of edges within parts with which parts have so many in-neighbours, over all nodes."""
    low, high = 1 / parts, 1.0
    for _ in range(40):
        kept = (low + high) / 2
        sources = degrees.expected_sources(kept) + (parts - 1) * degrees.expected_sources((1 - kept) / (parts - 1))
        if sources / degrees.num_nodes > replication:
            low = kept
        else:
            high = kept
    return (low + high) / 2
