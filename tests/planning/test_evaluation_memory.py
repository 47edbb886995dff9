"""What evaluations of mini-batch runs compute at a time, and what those in chunks hold, as planned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import outgrow as og
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph
from outgrow.inference.chunked import CHUNKS_IN_FLIGHT
from outgrow.inference.layer_nodes import find_layer_nodes
from outgrow.planning.cost_model import CostModel
from outgrow.planning.evaluation_memory import WHOLE_LAYERS, chunked_inference_bytes, evaluated_neighborhoods
from outgrow.planning.graph_stats.counted import make_workload, sketch_graph
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload

LAYERS = 3
COSTS = CostModel.from_profile(find_profile("2-core-cpu"), WorkerLayout(workers=1), 4, 1 << 30)


@cache
def graph() -> Graph:
    return og.load("papers100M@0.0005")


def workload(val: str = "auto", test: str = "auto") -> Workload:
    model = og.nn.SAGE(graph().num_features, 16, graph().num_classes, layers=LAYERS)
    return replace(make_workload(graph(), model), evaluation=(val, test))


@pytest.mark.parametrize("with_test", [False, True])
def test_neighbourhoods_are_those_that_an_inference_computes(with_test: bool) -> None:
    split = graph().split
    nodes = torch.unique(torch.cat([split.val, split.test])) if with_test else split.val.sort().values
    model = og.nn.SAGE(graph().num_features, 16, graph().num_classes, layers=LAYERS)
    expected = find_layer_nodes(FullGraphShard(graph().topology), model.layers_list(), nodes)
    found = workload().sampling.scored_neighborhood(LAYERS, with_test=with_test)
    assert found.rows.tolist() == [len(each) for each in expected.outputs]
    assert found.edges.tolist() == expected.num_edges


@pytest.mark.parametrize("with_test", [False, True])
def test_they_are_nearly_those_that_degrees_lead_to(with_test: bool) -> None:
    counted = workload().sampling.scored_neighborhood(LAYERS, with_test=with_test)
    expected = sketch_graph(graph()).scored_neighborhood(LAYERS, with_test=with_test)
    assert expected.rows.tolist() == pytest.approx(counted.rows.tolist(), rel=0.35)
    assert expected.edges.tolist() == pytest.approx(counted.edges.tolist(), rel=0.35)


@pytest.mark.parametrize(
    ("val", "test", "fits", "whole"),
    [
        ("none", "none", True, []),
        ("sampled", "none", True, []),
        ("exact", "none", True, [False]),
        ("layerwise", "none", True, [True]),
        ("layerwise", "none", False, [False]),
        ("exact", "layerwise", True, [False, True]),
    ],
)
def test_what_is_computed_at_a_time(val: str, test: str, fits: bool, whole: list[bool]) -> None:
    found = evaluated_neighborhoods(workload(val, test), whole_fits=fits)
    assert [each is WHOLE_LAYERS for each in found] == whole
    for each in found:
        if each is not None and val == "layerwise":
            assert each.rows.tolist() == [graph().num_nodes] * LAYERS


def test_auto_takes_whole_layers_where_the_neighbourhood_is_most_of_them() -> None:
    """And where they fit: as `InferenceChooser` does."""
    everything = replace(graph(), split=replace(graph().split, val=torch.arange(graph().num_nodes)))
    model = og.nn.SAGE(everything.num_features, 16, everything.num_classes, layers=LAYERS)
    work = replace(make_workload(everything, model), evaluation=("auto", "none"))
    assert evaluated_neighborhoods(work, whole_fits=True) == [WHOLE_LAYERS]
    assert evaluated_neighborhoods(work, whole_fits=False) != [WHOLE_LAYERS]
    assert evaluated_neighborhoods(workload("auto", "none"), whole_fits=True) != [WHOLE_LAYERS]


def test_chunks_and_tables_keep_to_the_memory() -> None:
    work = workload("exact", "none")
    [needed] = evaluated_neighborhoods(work, whole_fits=True)
    assert needed is not None
    ample, half = chunked_inference_bytes(work, COSTS, needed, 1.0), chunked_inference_bytes(work, COSTS, needed, 0.5)
    # Half as many in-edges may lead to as many nodes, of which a chunk has each once.
    assert ample / 2 <= half <= ample
    chunks = CHUNKS_IN_FLIGHT * work.graph.nodes * max(layer.spec.in_features for layer in work.model.layers) * 4
    tables = 8 * float(needed.rows.sum()) + 2 * float(needed.rows[:-1].max()) * 16 * 4
    assert ample <= chunks + tables
    scarce = chunked_inference_bytes(work, replace(COSTS, memory=1 << 20), needed, 1.0)
    ids = 8 * float(needed.rows.sum())
    assert ids < scarce <= ids + 0.5 * (1 << 20)
