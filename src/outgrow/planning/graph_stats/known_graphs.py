"""Graphs that are not on disk, by name: their published sizes, as data files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from outgrow.core.validation import validate_choice
from outgrow.planning.dataset_sizes import DatasetSizes
from outgrow.planning.graph_stats.analytic import AnalyticGraph
from outgrow.planning.graph_stats.degree_distribution import DegreeDistribution

_GRAPHS = resources.files("outgrow.planning") / "graphs"
_EXPONENT, _LOCALITY = 2.5, 0.5
_FLOAT = 4


def list_known_graphs() -> list[str]:
    """Return the names of the graphs whose sizes come with Outgrow."""
    return sorted(Path(each.name).stem for each in _GRAPHS.iterdir() if each.name.endswith(".json"))


def load_graph_facts(name: str) -> dict[str, Any]:
    """Return the facts about a graph; their entry ``source`` says where they are from.

    Raises:
        InputError: There is no such name.
    """
    validate_choice("workload", name, dict.fromkeys(list_known_graphs()))
    facts: dict[str, Any] = json.loads((_GRAPHS / f"{name}.json").read_text("utf-8"))
    return facts


def known_graph(facts: Mapping[str, Any]) -> AnalyticGraph:
    """Return a model of a graph from its facts: power-law degrees, and locality from replication factors."""
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
        edge_features=facts.get("edge_features", 0),
        edge_feature_bytes=_FLOAT,
    )
    exponent = facts.get("exponent", _EXPONENT)
    degrees = DegreeDistribution.from_power_law(sizes.nodes, edges, exponent, facts.get("largest_degree"))
    known = {int(parts): float(factor) for parts, factor in facts.get("replication", {}).items()}

    def edge_locality(method: str, parts: int) -> float:
        if parts == 1:
            return 1.0
        # A partition that ignores edges keeps one in ``parts`` inside by chance.
        if not method.startswith("metis"):
            return 1 / parts
        return (
            _solve_locality(degrees, parts, _interpolate_replication(known, parts))
            if known
            else max(1 / parts, _LOCALITY)
        )

    return AnalyticGraph(sizes, degrees, edge_locality)


def _interpolate_replication(known: Mapping[int, float], parts: int) -> float:
    """Interpolate the replication factor at a number of parts; beyond the known numbers, extrapolate the last line."""
    # On a logarithmic axis: the factor grows about as much with each doubling of the parts.
    counts = sorted({1: 1.0, **known}.items())
    low = max((each for each in counts[:-1] if each[0] <= parts), default=counts[0])
    high = counts[counts.index(low) + 1]
    return low[1] + (high[1] - low[1]) * math.log(parts / low[0]) / math.log(high[0] / low[0])


def _solve_locality(degrees: DegreeDistribution, parts: int, replication: float) -> float:
    """Return the share of edges within parts that yields a replication factor: sources of all parts per node."""
    low, high = 1 / parts, 1.0
    # Bisection: the more edges stay inside, the fewer distinct sources the parts have together.
    for _ in range(40):
        kept = (low + high) / 2
        sources = degrees.expected_sources(kept) + (parts - 1) * degrees.expected_sources((1 - kept) / (parts - 1))
        if sources / degrees.num_nodes > replication:
            low = kept
        else:
            high = kept
    return (low + high) / 2
