"""What is estimated to cross links is what the ledger says, to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from outgrow.core.types import Kind, Link
from outgrow.graph.graph import Graph
from outgrow.planning.of_full import traffic_of_full
from outgrow.planning.of_tensor import traffic_of_tensor
from outgrow.planning.shapes import workload_of
from outgrow.planning.traffic import Place, Traffic
from outgrow.strategies.full import Full
from planted import planted
from suites import test_tensor_traffic, test_traffic
from suites.sessions import graph_of
from suites.traffic import Sizes


def graph_at_hand(*, half: bool) -> Graph:
    """The graph that the suites train on."""
    graph = graph_of(planted())
    return replace(graph, features=graph.features.half()) if half else graph  # type: ignore[union-attr]


def is_the_ledger(estimate: Traffic, sizes: Sizes, ledger: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a run of workers on one host moved what was estimated, besides what they told each other of losses."""
    expected = estimate.of_run(sizes.epochs, sizes.evaluations)
    found = {kind: count for kind, count in ledger["peer"].items() if kind != Kind.METRICS}
    return expected == {(Link.PEER, Kind(kind)): count for kind, count in found.items()}


@pytest.mark.parametrize("sizes", [test_traffic.SHORT, test_traffic.LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", test_traffic.MODELS)
def test_full(name: str, sizes: Sizes) -> None:
    traffic = test_traffic.MODELS[name]
    work = workload_of(graph_at_hand(half=traffic.half), test_traffic.model_of(traffic))
    place = Place(workers=test_traffic.WORKERS)
    estimate = traffic_of_full(Full(partition=traffic.partition), work, place)
    assert is_the_ledger(estimate, sizes, test_traffic.results()[name, sizes].summary["ledger"])


@pytest.mark.parametrize("sizes", [test_tensor_traffic.SHORT, test_tensor_traffic.LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", test_tensor_traffic.MODELS)
def test_tensor(name: str, sizes: Sizes) -> None:
    traffic = test_tensor_traffic.MODELS[name]
    graph = replace(graph_at_hand(half=traffic.half), topology=test_tensor_traffic.topology())
    work = workload_of(graph, test_tensor_traffic.model_of(traffic))
    estimate = traffic_of_tensor(traffic.strategy, work, Place(workers=test_tensor_traffic.WORKERS))
    [first, *_] = test_tensor_traffic.seen(sizes)
    assert is_the_ledger(estimate, sizes, first.results[name].summary["ledger"])
